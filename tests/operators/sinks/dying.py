"""A process that dies at a change of the file system, and what it leaves in a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest


class DiedError(BaseException):
    """Ends a call as the death of its process does."""


class Mortal:
    """Dies at the n-th change of the file system: before one of `calls`, or after it."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, calls: Iterable[tuple[Any, str]], dies_at: int
    ) -> None:
        self.dies_at, self.steps = dies_at, 0
        for module, name in calls:
            monkeypatch.setattr(module, name, self._mortal(getattr(module, name)))

    def _mortal(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self._step()
            result = function(*arguments, **options)
            self._step()
            return result

        return call

    def _step(self) -> None:
        self.steps += 1
        if self.steps >= self.dies_at:
            raise DiedError


def parts_in(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if not name.startswith("_whale-parts"))
