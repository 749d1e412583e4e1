"""How many rows a source reads at a time.

A read and all that is fused after the source is one turn of a worker, and markers, other sources
and other operators wait for its end. So it is short where functions of Python take each row. Where
rows are read and computed with in columns, a turn of few rows is mostly calls: there it has more,
as long as it stays short.
While the markers of a checkpoint are on their way through a worker, and shortly before, a read
takes a few milliseconds (`worker.epoch_schedule`): a marker waits for the end of a read, behind
what is in its ring, and behind a read for each turn that this takes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..operators.transforms import FilterExpression, MapExpressions
from ..operators.windows.top_filter import TopFilter
from ..plan.logical import OperatorKind

if TYPE_CHECKING:
    from ..operators.sources.base import Source
    from ..plan.logical import OperatorNode
    from ..transport.wire.batch import Batch

__all__ = ["ROWS", "ROWS_IN_COLUMNS", "ReadSize", "read_size"]

ROWS = 8192
ROWS_IN_COLUMNS = 65_536
"""At least, where rows are not wide; up to `ROWS_MAX` while a turn is below `TURN_NS`.

Python's share of a turn hardly depends on its rows, so it halves where they double. Processor time
with 262,144 rows, however long that takes, against 65,536, from mapped files, on a processor with
2 MiB of cache a core: Yahoo 0.75, NEXMark 5, 7, 8, 11: 0.90, 0.67, 0.93, 0.83 times as much.
"""
ROWS_MAX = 262_144
READ_BYTES = 16 << 20
"""Larger reads leave even shared caches, and wait as copies where an edge has no room."""

TURN_NS = 12_000_000
"""About how long a read of more than `ROWS_IN_COLUMNS` takes with all that is fused after it."""

HURRIED_NS = 4_000_000
"""About how long a read takes with all that is fused after it while markers wait, or soon will.

Small reads cost more for each row: with a half of 65,536 a row takes 1.2 to 1.3 times as much
processor time, with a quarter 1.2 to 1.5 times, with an eighth 1.4 to 2.2 times (Yahoo, NEXMark 5
and 8 on two workers). So a read that is short anyway is not divided.
"""
DIVISOR_MAX = 8
"""A read of up to `ROWS_IN_COLUMNS` is not divided by more than that."""

_IN_COLUMNS = (OperatorKind.TABLE_JOIN, OperatorKind.PARTIAL, OperatorKind.SINK)


class ReadSize:
    """The rows of a read: so many that they fill `READ_BYTES`, within two bounds.

    Attributes:
        hurries: whether reads are to be short, since markers wait for their ends, or soon will.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._rows = least
        self._ns_per_row = 0.0
        self.hurries = False

    @property
    def rows(self) -> int:
        """The rows of the next read."""
        least, within_ns = min(self._rows, ROWS_IN_COLUMNS), TURN_NS
        if self.hurries:
            least, within_ns = max(1, least // DIVISOR_MAX), HURRIED_NS
        if self._ns_per_row * self._rows <= within_ns:
            return self._rows
        return max(least, int(within_ns / self._ns_per_row))

    def note(self, batch: Batch) -> None:
        """Learn from a batch that was read how wide its rows are."""
        if self._least < self._most and batch.num_rows:
            fitting = READ_BYTES * batch.num_rows // max(batch.nbytes, 1)
            self._rows = max(self._least, min(self._most, fitting))

    def note_time(self, rows: int, took_ns: int) -> None:
        """Learn from a read of so many rows how long it took, with all that is fused after it.

        The shortest of late counts: others were interrupted.
        """
        if rows:
            ns = took_ns / rows
            self._ns_per_row = min(ns, self._ns_per_row * 1.125) if self._ns_per_row else ns


def read_size(rows: int, source: Source, followers: Iterable[OperatorNode]) -> ReadSize:
    """Return how many rows a source reads at a time.

    Args:
        rows: the setting; 0 leaves it to this function.
        source: what is read.
        followers: the operators that are fused after it.
    """
    if rows:
        return ReadSize(rows, rows)
    in_columns = source.in_columns and all(map(_takes_columns, followers))
    return ReadSize(ROWS, ROWS_MAX if in_columns else ROWS)


def _takes_columns(node: OperatorNode) -> bool:
    if node.kind is OperatorKind.TRANSFORM:
        return isinstance(node.payload, FilterExpression | MapExpressions | TopFilter)
    return node.kind in _IN_COLUMNS
