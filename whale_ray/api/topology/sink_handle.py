"""`SinkHandle`: the object that `sink` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import misuse
from .checks import mistake
from .registry import Registry


class SinkHandle:
    """A sink of a topology; `job.results(handle.id)` returns what it has published."""

    def __init__(self, registry: Registry, operator_id: str) -> None:
        self._registry = registry
        self._id = operator_id

    @property
    def id(self) -> str:
        """The sink's id, as in `job.results(id)`."""
        return self._id

    def __repr__(self) -> str:
        return f"SinkHandle({self.id!r} of topology {self._registry.name!r})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            text = misuse.on_sink(name)
            if text:
                raise mistake(self.id, text)
            raise AttributeError(misuse.other_name("SinkHandle", name))
