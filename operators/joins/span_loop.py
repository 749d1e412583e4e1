"""`SpanLoop`: joins and keeps the rows of a batch in one compiled loop, through all of its spans.

See `span_kernels` for what the loop does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .kernels import END
from .row_log import take_of_logs
from .span_kernels import (
    ANY_DISTANCE,
    BEGIN,
    EMITS,
    FIRST,
    FIRST_OF_KEY,
    KEPT,
    MARKS,
    ONCE_KEPT,
    ONCE_NEW,
    OWN,
    STOP,
    TABLE_ENTRIES,
    UNTIL,
    VISIT,
    VISIT_ENTRIES,
    WAITS,
    join_rows,
)

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from .kept_rows import KeptRows
    from .key_bytes import KeyBytes

__all__ = ["FoundPairs", "SpanLoop", "Visit", "rules_of"]

Int64s = npt.NDArray[np.int64]

PAIRS_MAX = 1 << 16
_PAIRS_MIN = 1 << 10


@dataclass(frozen=True)
class Visit:
    """Rows of one slice in one of its spans.

    Attributes:
        span: which.
        first, stop: the rows, as places in the order by slices.
        own: keeps them.
        partners: what the spans keep with whose rows they may join.
    """

    span: int
    first: int
    stop: int
    own: KeptRows
    partners: Sequence[KeptRows]


@dataclass(frozen=True)
class FoundPairs:
    """Pairs of a new row and a kept one, (m,) each.

    Attributes:
        new: the rows of the batch, int64.
        times: the later event time of both rows, int64.
        spans: those of the new rows, int64.
    """

    new: Int64s
    times: Int64s
    spans: Int64s
    _logs: tuple[Sequence[KeptRows], Int64s, Int64s]

    def kept(self) -> Batch:
        """Return the columns of the kept rows."""
        tables, counts, numbers = self._logs
        return take_of_logs([table.log for table in tables], counts, numbers)


def rules_of(how: str, *, of_left: bool, any_distance: bool, marks: bool) -> int:
    """Return the rules of the loop.

    Args:
        how: the type of the join.
        of_left: whether the new rows are those of the left side.
        any_distance: whether all rows of spans join.
        marks: whether the other side's rows are emitted if they join with none.
    """
    once = how in ("semi", "anti")
    rules = (ANY_DISTANCE if any_distance else 0) | (0 if how == "anti" else EMITS)
    if once:
        rules |= ONCE_NEW if of_left else ONCE_KEPT | MARKS
        if any_distance and not of_left:
            rules |= FIRST_OF_KEY
    return rules | (MARKS if marks else 0)


class SpanLoop:
    """One run of the loop; `pairs` yields what it finds, and is read to its end.

    Args:
        visits: in the order in which they are made.
        order: the batch's rows, by slices, int64 (n,).
    """

    def __init__(self, visits: Sequence[Visit], order: Int64s) -> None:
        self._visits = visits
        self._order = order
        self._partners = [table for visit in visits for table in visit.partners]
        self._spans = np.array([visit.span for visit in visits for _ in visit.partners], np.int64)
        self._table = np.empty((len(visits), VISIT_ENTRIES), np.int64)
        self._chosen = np.empty(sum(visit.stop - visit.first for visit in visits), np.int64)

    def pairs(
        self,
        hashes: npt.NDArray[np.uint64],
        times: Int64s,
        nulls: npt.NDArray[np.bool_] | None,
        keys: KeyBytes,
        distance_ns: tuple[int, int] | None,
        rules: int,
    ) -> Iterator[FoundPairs]:
        """Yield the pairs, in pieces; see `span_kernels.join_rows` for the arguments."""
        lower, upper = distance_ns or (0, 0)
        nulls = np.empty(0, np.bool_) if nulls is None else nulls
        tables, partners = self._tables()
        at = np.array([0, WAITS, 0, END, 0], np.int64)
        matched, found = np.empty(len(self._order), np.bool_), np.empty(len(partners), np.int64)
        room = min(max(len(self._order), _PAIRS_MIN), PAIRS_MAX)
        while at[VISIT] < len(self._visits):
            pairs = np.empty((3, room if rules & EMITS else 0), np.int64)
            count = join_rows(
                *(self._table, partners, tables, self._order, hashes, times, nulls),
                *(keys.ends, keys.pool, lower, upper, rules, at, matched),
                *(self._chosen, found, pairs),
            )
            if count:
                yield self._found(pairs[:, :count], found)

    @property
    def kept(self) -> Iterator[tuple[Visit, Int64s]]:
        """The visits of which rows were added to the index of what keeps them, with these rows."""
        stop = 0
        for visit, kept in zip(self._visits, self._table[:, KEPT].tolist(), strict=True):
            first, stop = stop, stop + kept
            if kept:
                yield visit, self._chosen[first:stop]

    def _tables(self) -> tuple[Int64s, Int64s]:
        """Return where all tables are, each once, and those of the partners; fill the visits'."""
        rows: dict[int, int] = {}
        tables = np.empty((len(self._visits) + len(self._partners), TABLE_ENTRIES), np.int64)

        def row_of(table: KeptRows) -> int:
            row = rows.setdefault(id(table), len(rows))
            tables[row] = table.table
            return row

        begin = 0
        for visit, entry in zip(self._visits, self._table, strict=True):
            entry[FIRST], entry[STOP], entry[OWN] = visit.first, visit.stop, row_of(visit.own)
            entry[BEGIN] = begin
            entry[UNTIL] = begin = begin + len(visit.partners)
        partners = np.array([row_of(table) for table in self._partners], np.int64)
        return tables, partners

    def _found(self, pairs: Int64s, found: Int64s) -> FoundPairs:
        new, kept, times = pairs
        used = np.flatnonzero(found)
        counts = found[used]
        tables = [self._partners[partner] for partner in used.tolist()]
        spans = np.repeat(self._spans[used], counts)
        return FoundPairs(new, times, spans, (tables, counts, kept))
