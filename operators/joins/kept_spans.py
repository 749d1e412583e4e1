"""`SpanJoin`: what a join within windows or an interval keeps, by spans of event time.

Rows are saved by the snapshots between which they came, and loaded into their spans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys, virtual_node_of
from ...state.node_transfer import with_columns
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ..snapshots import StateChunk
from ..windows.specifications import SessionWindow
from .join import Join
from .kept_rows import KeptRows
from .key_bytes import key_bytes
from .row_versions import Ranges, RowVersions, contents, is_contents, parts_of
from .spans import spans_of
from .stream_join import LEFT, RIGHT, Spillable, StreamJoin

__all__ = ["SpanJoin", "taken_by"]

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_JOINED = ("#left joined", "#right joined")
"""In dumped rows of a side: which have joined. Without a span, a batch tells a side's columns."""
_SPAN = "#span"


class SpanJoin(StreamJoin):
    """Keeps the rows of two streams by spans, as a `Join` asks."""

    _join: Join

    def __init__(self, join: Join) -> None:
        super().__init__(join)
        assert not isinstance(join.within, SessionWindow)  # see JoinSessions
        self._unmatched = (join.keeps_unmatched(LEFT), join.keeps_unmatched(RIGHT))
        self._spans = spans_of(join.within)
        self._kept: tuple[dict[int, KeptRows], dict[int, KeptRows]] = ({}, {})
        self._rows_kept = 0
        self._versions: tuple[RowVersions, RowVersions] | None = None

    @property
    def _kept_rows(self) -> int:
        return self._rows_kept

    def dump(self, nodes: Int64s) -> Iterator[Batch]:
        """Return the kept rows of each side, after an empty batch with the columns of its input."""
        virtual_nodes = self._context.virtual_nodes

        def wanted(hashes: npt.NDArray[np.uint64]) -> Bools:
            return np.isin(virtual_node_of(hashes, virtual_nodes), nodes)

        for side in (LEFT, RIGHT):
            if not self._seen[side]:
                continue
            yield self._columns_of(side)
            for span, kept in self._kept[side].items():
                for rows in kept.dump(wanted, _JOINED[side]):
                    spans = Column.of(np.full(rows.num_rows, span))
                    yield with_columns(rows, {_SPAN: spans}).with_times(rows.times)

    def load(self, batch: Batch) -> None:
        """See `CoProcess.load`; the memory for state may be used up: StateFullError."""
        side = LEFT if _JOINED[LEFT] in batch.schema else RIGHT
        joined, rows = batch.column(_JOINED[side]).data, batch.drop((_JOINED[side],))
        if _SPAN not in rows.schema:
            self._learn(side, rows.schema)
            return
        spans, rows = rows.column(_SPAN).data, rows.drop((_SPAN,))
        keys = hash_keys(rows, self._keys[side])
        for span in np.unique(spans).tolist():
            mine = np.flatnonzero(spans == span)
            self._keep(side, span, rows.take(mine), *_taken(keys, mine), joined[mine])

    def chunks(self, epoch: int) -> Sequence[StateChunk]:
        """See `Sealing.chunks`: contents, then rows by the snapshots between which they came."""
        marked = tuple(unmatched or self._join.only_left_columns for unmatched in self._unmatched)
        sides = [side for side in (LEFT, RIGHT) if self._seen[side]]
        parts = [
            (side, span, len(kept), kept.matched if marked[side] else None)
            for side in sides
            for span, kept in self._kept[side].items()
        ]
        found = [StateChunk(self._columns_of(side)) for side in sides]
        found.append(StateChunk(contents(parts)))
        for side in sides:
            counts = {span: len(kept) for span, kept in self._kept[side].items()}
            rows_of = partial(self._rows_of, side)
            found += self._versions_of(side).chunks(epoch, counts, rows_of)
        return found

    def take(self, chunks: Sequence[StateChunk], *, whole: bool) -> None:
        """See `Sealing.take`."""
        marks: dict[tuple[int, int], Bools] | None = None
        taken: dict[tuple[int, int], int] = {}
        for chunk in chunks:
            rows = chunk.rows
            if is_contents(rows):
                marks = parts_of(rows)
            elif marks is None or _SPAN not in rows.schema:
                self.load(rows)
            else:
                self._take_version(rows, marks, taken, chunk.identity if whole else None)

    def _take_version(
        self,
        batch: Batch,
        marks: Mapping[tuple[int, int], Bools],
        taken: dict[tuple[int, int], int],
        identity: str | None,
    ) -> None:
        """Take the rows of a version whose spans were still kept."""
        side = LEFT if _JOINED[LEFT] in batch.schema else RIGHT
        spans = batch.column(_SPAN).data
        rows = batch.drop((_JOINED[side], _SPAN))
        keys = hash_keys(rows, self._keys[side])
        ranges: Ranges = {}
        ends = np.append(np.flatnonzero(np.diff(spans)) + 1, len(spans)).tolist()
        for begin, end in zip([0, *ends[:-1]], ends, strict=True):
            span = int(spans[begin]) if end > begin else None
            if span is None or (side, span) not in marks:
                continue
            first = taken.get((side, span), 0)
            stop = taken[side, span] = first + end - begin
            mine, matched = np.arange(begin, end), marks[side, span][first:stop]
            self._keep(side, span, rows.take(mine), *_taken(keys, mine), matched)
            ranges[span] = (first, stop)
        if identity is not None:
            self._versions_of(side).restore(identity, ranges, batch.num_rows)

    def _versions_of(self, side: int) -> RowVersions:
        if self._versions is None:
            attempt = self._context.attempt
            self._versions = (RowVersions(f"left-{attempt}"), RowVersions(f"right-{attempt}"))
        return self._versions[side]

    def _rows_of(self, side: int, ranges: Ranges) -> Callable[[], Batch]:
        """Return what makes a batch of some rows, whatever happens to them meanwhile."""
        pieces = [
            (span, batch)
            for span, (first, stop) in ranges.items()
            for batch in self._kept[side][span].between(first, stop)
        ]
        return partial(_with_spans, pieces, _JOINED[side])

    def _columns_of(self, side: int) -> Batch:
        """Return an empty batch with the columns of a side's input."""
        schema = self._schemas[side]
        assert schema is not None
        return with_columns(Batch.empty(schema), {_JOINED[side]: Column.of([], "bool")})

    def _forget(self) -> None:
        self._versions = None
        for side in self._kept:
            for kept in side.values():
                self._give_back(kept)
            side.clear()

    def _give_back(self, kept: KeptRows) -> None:
        """Give the memory of rows that were dropped back, and their room on the disk."""
        self._rows_kept -= len(kept)
        self._account(-kept.nbytes, -kept.spilled_bytes)

    def _spillable(self) -> Iterator[Spillable]:
        """Return all rows, the oldest first; then their keys, then what finds them."""
        spans = sorted((span, side) for side in (LEFT, RIGHT) for span in self._kept[side])
        kept = [self._kept[side][span] for span, side in spans]
        yield from (one.log for one in kept)
        yield from (one.keys for one in kept)
        yield from (one.index for one in kept)

    def _keep(
        self,
        side: int,
        span: int,
        rows: Batch,
        hashes: npt.NDArray[np.uint64],
        nulls: Bools | None,
        matched: Bools,
    ) -> None:
        """Keep rows of one span that were saved."""
        kept = self._kept[side].get(span)
        if kept is None:
            kept = self._kept[side][span] = KeptRows()
        assert rows.times is not None  # they were saved with them
        keys = key_bytes(rows, self._keys[side])
        key_sizes = keys.before(None)
        self._spill(kept.growth(rows.num_rows, None if key_sizes is None else int(key_sizes[-1])))
        before = taken_by([kept])
        kept.add(rows.with_times(None), hashes, rows.times, nulls, keys, matched)
        self._rows_kept += len(matched)
        self._account(*(taken_by([kept]) - before).tolist())


def taken_by(tables: Iterable[KeptRows]) -> Int64s:
    """Return the bytes in memory and on the disk that are charged for tables, int64 (2,)."""
    taken = [(table.nbytes, table.spilled_bytes) for table in tables if len(table)]
    return np.array(taken, np.int64).reshape(-1, 2).sum(axis=0)


def _taken(
    keys: tuple[npt.NDArray[np.uint64], Bools | None], rows: Int64s
) -> tuple[npt.NDArray[np.uint64], Bools | None]:
    """Return hashes of some rows, and which of these have null keys."""
    hashes, nulls = keys
    return hashes[rows], None if nulls is None else nulls[rows]


def _with_spans(pieces: Sequence[tuple[int, Batch]], marker: str) -> Batch:
    """Return kept rows as one batch, each with its span; which were joined, contents tell."""
    spans, batches = zip(*pieces, strict=True)
    rows = Batch.concat(batches)
    columns = {
        marker: Column.of(np.zeros(rows.num_rows, np.bool_)),
        _SPAN: Column.of(np.repeat(np.array(spans, np.int64), [len(one) for one in batches])),
    }
    return with_columns(rows, columns).with_times(rows.times)
