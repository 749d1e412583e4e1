"""A source for the measurements: numbered rows in an open loop, which can kill its worker once."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ....operators.sources.base import Source, SourceReader
from ....transport.clock import SystemClock
from ....transport.wire.batch import Batch
from ....transport.wire.types import Schema

if TYPE_CHECKING:
    from ....operators.process import InstanceContext
    from ....operators.snapshots import Position

__all__ = ["NumberedRows", "note", "noted_ns"]

_SCHEMA = Schema.of(number="int64", key="int64")
_CLOCK = SystemClock()


def note(path: Path) -> None:
    """Write the time into a file, if it is not there; who sees the file sees the time."""
    if path.exists():
        return
    whole = path.with_suffix(".part")
    whole.write_text(str(_CLOCK.monotonic_ns()))
    whole.replace(path)


def noted_ns(path: Path) -> int:
    """Return the time that `note` wrote, which holds for all processes of the machine."""
    return int(path.read_text())


@dataclass(frozen=True)
class NumberedRows(Source):
    """Rows with a number and a key: `fill` at once, then `more` of them, endlessly if that is None.

    Attributes:
        fill: rows that have the keys 0 … fill - 1, once each.
        rate_per_s: of the rows behind them, by the clock: none is lost while nobody reads.
        more: how many rows follow.
        keys: the keys of these are multiples of `stride` below `fill`.
        stride: from one of these keys to the next.
        folder: where the source waits for a file `go` before them, and notes its times.
        kills: whether its worker kills itself once there is a file `kill`, unless one has before.
            `killed` tells when, and `unread` the number of the first row that was not read then.
    """

    fill: int
    rate_per_s: float
    folder: Path
    more: int | None = None
    stride: int = 1
    waits: bool = False
    kills: bool = False
    bounded: bool = False

    def schema(self) -> Schema:
        """Return the columns."""
        return _SCHEMA

    def open(self, context: InstanceContext) -> SourceReader:
        """Open it at its first row."""
        return self.open_at(context, ())

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        """Open it at a row; there is one instance."""
        return _NumberedReader(self, int(positions[0]["row"]) if positions else 0)

    def describe(self) -> str:
        """Return its name."""
        return f"{self.fill:,} rows, then {self.rate_per_s:,.0f} a second"


class _NumberedReader(SourceReader):
    def __init__(self, source: NumberedRows, row: int) -> None:
        self._source, self._row = source, row
        self._paced = source.folder / "paced"

    def read(self, max_rows: int) -> Batch | None:
        """Return the rows that are due."""
        source, first = self._source, self._row
        if first < source.fill:
            stop = min(first + max_rows, source.fill)
            numbers = np.arange(first, stop)
            self._row = stop
            return Batch.from_pydict({"number": numbers, "key": numbers}, _SCHEMA)
        stop = min(self._due(), first + max_rows)
        if stop <= first:
            return None
        if source.kills and (source.folder / "kill").exists():
            self._kill_once(source.folder / "killed", first)
        self._row = stop
        numbers = np.arange(first, stop)
        keys = (numbers - source.fill) * source.stride % source.fill
        return Batch.from_pydict({"number": numbers, "key": keys}, _SCHEMA)

    def _due(self) -> int:
        """Return the number behind the last row that is due."""
        source = self._source
        if source.waits and not (source.folder / "go").exists():
            return source.fill
        note(self._paced)
        passed_s = (_CLOCK.monotonic_ns() - noted_ns(self._paced)) / 1e9
        due = int(min(passed_s * source.rate_per_s, 1 << 60))
        return source.fill + (due if source.more is None else min(due, source.more))

    def _kill_once(self, killed: Path, unread: int) -> None:
        if not killed.exists():
            killed.with_name("unread").write_text(str(unread))
            note(killed)
            os.kill(os.getpid(), signal.SIGKILL)

    @property
    def finished(self) -> bool:
        """It never ends: the job is stopped."""
        return False

    def next_ready_ns(self) -> int:
        """Return a time shortly from now."""
        return _CLOCK.monotonic_ns() + 500_000

    def position(self) -> dict[str, Any]:
        """Return the number of the next row."""
        return {"row": self._row}
