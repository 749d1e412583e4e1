"""How many rows a source reads at a time.

A read and all that is fused after the source is one turn of a worker, and markers, other sources
and other operators wait for its end. So it is short where functions of Python take each row. Where
rows are read and computed with in columns, a turn of few rows is mostly calls: there it has more.
While the markers of a checkpoint are on their way through a worker, or are about to come, a read
takes a fixed time instead, by what rows have taken before: a marker waits behind what is in its
ring, and behind a read for each turn that this takes.
"""

from __future__ import annotations

from collections import deque
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
ROWS_IN_COLUMNS = 32_768
HURRIED_NS = 2_500_000
"""How long a read takes, with all that is fused after the source, while markers wait for it."""
HURRIED_SHARE = 8
"""A part of the rows, as long as nobody knows how long they take."""
HURRIED_ROWS_MIN = 256
"""Fewer rows are mostly calls."""
READ_BYTES = 2 << 20
"""Larger reads leave the processor's caches, and wait as copies where an edge has no room."""

_MEASURED = 8
"""The fastest of so many reads counts: what else runs on the processor made the others slower."""

_IN_COLUMNS = (OperatorKind.TABLE_JOIN, OperatorKind.PARTIAL, OperatorKind.SINK)


class ReadSize:
    """The rows of a read: so many that they fill `READ_BYTES`, within two bounds.

    Attributes:
        hurried: whether markers wait for the end of each read, or are about to.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._rows = least
        self._row_ns: deque[float] = deque(maxlen=_MEASURED)
        self.hurried = False

    @property
    def rows(self) -> int:
        """The rows of the next read."""
        if not self.hurried:
            return self._rows
        row_ns = min(self._row_ns, default=0.0)
        if not row_ns:
            return max(1, self._rows // HURRIED_SHARE)
        return min(self._rows, max(HURRIED_ROWS_MIN, int(HURRIED_NS / row_ns)))

    @property
    def read_ns(self) -> int:
        """How long a read of all rows takes, about; 0 as long as nobody knows."""
        return int(self._rows * min(self._row_ns, default=0.0))

    def note(self, batch: Batch, elapsed_ns: int) -> None:
        """Learn from a batch how wide its rows are, and how long they took until its end."""
        if not batch.num_rows:
            return
        self._row_ns.append(elapsed_ns / batch.num_rows)
        if self._least < self._most:
            fitting = READ_BYTES * batch.num_rows // max(batch.nbytes, 1)
            self._rows = max(self._least, min(self._most, fitting))


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
    return ReadSize(ROWS, ROWS_IN_COLUMNS if in_columns else ROWS)


def _takes_columns(node: OperatorNode) -> bool:
    if node.kind is OperatorKind.TRANSFORM:
        return isinstance(node.payload, FilterExpression | MapExpressions | TopFilter)
    return node.kind in _IN_COLUMNS
