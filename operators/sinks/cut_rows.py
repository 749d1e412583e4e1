"""The rows that a sink's writer has set apart at the marker of an epoch, to be staged beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .base import Staged

__all__ = ["CutRows"]


class CutRows:
    """The rows of one writer and one epoch; `staged` is for the thread that writes snapshots."""

    def __init__(self, epoch: int, stage: Callable[[], Staged]) -> None:
        """`stage` is what `SinkWriter.cut_epoch` returned."""
        self._epoch = epoch
        self._stage: Callable[[], Staged] | None = stage
        self._staged: Staged | None = None

    def staged(self) -> Staged:
        """Stage the rows, unless a call before this one has; return what tells of them.

        Raises:
            OutputError: they cannot be staged at present.
        """
        if self._staged is None:
            assert self._stage is not None
            self._staged = replace(self._stage(), epoch=self._epoch)
            self._stage = None  # with the rows that it holds
        return self._staged
