"""How many rows a source reads at a time.

A read and all that is fused after the source is one turn of a worker, and markers, other sources
and other operators wait for its end. So it is short where functions of Python take each row. Where
rows are read and computed with in columns, a turn of few rows is mostly calls: there it has more.
While the markers of a checkpoint are on their way through a worker, and shortly before, it reads a
part of that (`worker.epoch_schedule`): a marker waits behind what is in its ring, and behind a read
for each turn that this takes.
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
READ_BYTES = 4 << 20
"""Larger reads leave the processor's caches, and wait as copies where an edge has no room."""

_IN_COLUMNS = (OperatorKind.TABLE_JOIN, OperatorKind.PARTIAL, OperatorKind.SINK)


class ReadSize:
    """The rows of a read: so many that they fill `READ_BYTES`, within two bounds.

    Attributes:
        divisor: by how much a read is divided; more than 1 while markers wait for its end, or soon
            will.
    """

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most
        self._rows = least
        self.divisor = 1

    @property
    def rows(self) -> int:
        """The rows of the next read."""
        return max(1, self._rows // self.divisor)

    def note(self, batch: Batch) -> None:
        """Learn from a batch that was read how wide its rows are."""
        if self._least < self._most and batch.num_rows:
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
