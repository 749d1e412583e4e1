"""`JoinStreams`: joins two streams within windows, or within an interval of event time.

A symmetric hash join (Wilschut and Apers, "Dataflow query execution in a parallel main-memory
environment", 1991): a row that arrives is joined with the kept rows of the other side, then kept
for those that follow. Rows come in any order. They are kept by spans of event time, and a span is
freed once the watermark says that nothing can join with its rows any more; those that have joined
with none are emitted then, if the type of the join has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys, virtual_node_of
from ...state.node_transfer import with_columns
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ..process import InputOrder, InstanceContext, Output
from ..snapshots import StateChunk
from ..windows.specifications import SessionWindow
from .join import Join
from .joined_rows import equal_keys
from .kept_rows import KeptRows
from .kernels import sort_by_number
from .row_log import RowLog
from .row_versions import Ranges, RowVersions, contents, is_contents, parts_of
from .spans import WindowSpans, spans_of
from .stream_join import LEFT, NO_WATERMARK_NS, RIGHT, StreamJoin

__all__ = ["JoinStreams"]

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Pairs: TypeAlias = tuple[Int64s, Int64s]
WindowBounds: TypeAlias = tuple[int, int] | None

_JOINED = ("#left joined", "#right joined")
"""In dumped rows of a side: which have joined. Without a span, a batch tells a side's columns."""
_SPAN = "#span"

_LATEST_NS = (1 << 63) - 1
_EMITTED_ROWS = 8192
"""Results of several spans are emitted together, as so many rows."""


class JoinStreams(StreamJoin):
    """Joins the rows of two streams, as a `Join` asks."""

    input_order: ClassVar[InputOrder | None] = "arrival"

    _join: Join

    def __init__(self, join: Join) -> None:
        super().__init__(join)
        assert not isinstance(join.within, SessionWindow)  # see JoinSessions
        self._unmatched = (join.keeps_unmatched(LEFT), join.keeps_unmatched(RIGHT))
        self._spans = spans_of(join.within)
        self._kept: tuple[dict[int, KeptRows], dict[int, KeptRows]] = ({}, {})
        self._rows_kept = 0
        self._versions: tuple[RowVersions, RowVersions] | None = None
        self._made_rows: list[tuple[Batch, Int64s]] = []  # results that are not emitted yet
        self._made_count = 0

    def open(self, context: InstanceContext) -> None:
        """See `StreamJoin.open`; advise what makes the memory suffice."""
        super().open(context)
        context.state_budget.advise(context.operator_id, "join within a shorter time")

    def on_left(self, batch: Batch, out: Output) -> None:
        """Join left rows with the right rows so far, and keep them."""
        self._take(LEFT, batch, out)

    def on_right(self, batch: Batch, out: Output) -> None:
        """Join right rows with the left rows so far, and keep them."""
        self._take(RIGHT, batch, out)

    def on_watermark(self, watermark_ns: int, out: Output) -> None:
        """Free the spans that have passed; emit their rows that have joined with none."""
        self._release(watermark_ns - self._join.allowed_lateness_ns, out)
        self._watermark_ns = watermark_ns

    def close(self, out: Output) -> None:
        """Emit all that is left: no row follows."""
        self._release(_LATEST_NS, out)

    @property
    def state_bytes(self) -> int:
        """Bytes that the kept rows take."""
        return self._taken_bytes + self._spilled_bytes

    # -- saving and moving --------------------------------------------------------------------

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
        for span in np.unique(spans).tolist():
            mine = spans == span
            part = NewRows.of(side, rows, *hash_keys(rows, self._keys[side]), np.flatnonzero(mine))
            self._keep(span, part, part.batch, joined[mine])

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
        hashes, nulls = hash_keys(rows, self._keys[side])
        ranges: Ranges = {}
        ends = np.append(np.flatnonzero(np.diff(spans)) + 1, len(spans)).tolist()
        for begin, end in zip([0, *ends[:-1]], ends, strict=True):
            span = int(spans[begin]) if end > begin else None
            if span is None or (side, span) not in marks:
                continue
            first = taken.get((side, span), 0)
            stop = taken[side, span] = first + end - begin
            part = NewRows.of(side, rows, hashes, nulls, np.arange(begin, end))
            self._keep(span, part, part.batch, marks[side, span][first:stop])
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
        self._free_spilled(kept.log.spilled_bytes)
        self._account(-kept.nbytes)

    def _logs(self) -> Iterable[RowLog]:
        spans = sorted((span, side) for side in (LEFT, RIGHT) for span in self._kept[side])
        return (self._kept[side][span].log for span, side in spans)

    # -- taking rows --------------------------------------------------------------------------

    @property
    def _patient_ns(self) -> int:
        """The watermark less the allowed lateness."""
        if self._watermark_ns == NO_WATERMARK_NS:
            return NO_WATERMARK_NS
        return self._watermark_ns - self._join.allowed_lateness_ns

    def _take(self, side: int, batch: Batch, out: Output) -> None:
        self._learn(side, batch.schema)
        slices = self._spans.slices(batch)
        batch, slices = self._without_late(side, batch, slices, out)
        if not batch.num_rows:
            return
        hashes, nulls = hash_keys(batch, self._keys[side])
        if nulls is not None and not self._unmatched[side]:
            batch, slices, hashes = batch.filter(~nulls), slices[~nulls], hashes[~nulls]
            nulls = None
            if not batch.num_rows:
                return
        for slice_, chosen in _by_slice(slices):
            rows = NewRows.of(side, batch, hashes, nulls, chosen)
            for span in self._spans.of_slice(slice_):
                if self._spans.release_ns(side, span) > self._patient_ns:
                    self._take_span(span, rows, out)
        self._emit_made(out)

    @property
    def _exact(self) -> bool:
        """Whether equal hashes are equal keys: XXH64 of one 64-bit word is a bijection."""
        left = self._schemas[LEFT]
        if left is None or len(self._join.keys) != 1:
            return False
        kind = left.field(self._keys[LEFT][0]).type
        return kind.storage.kind in "biuf" and kind.kind == "fixed"

    @property
    def _kept_rows(self) -> int:
        return self._rows_kept

    def _without_late(
        self, side: int, batch: Batch, slices: Int64s, out: Output
    ) -> tuple[Batch, Int64s]:
        """Return the rows without those that come too late; these are emitted."""
        if self._watermark_ns == NO_WATERMARK_NS:
            return batch, slices
        late = self._spans.late(batch, slices, self._patient_ns)
        if not late.any():
            return batch, slices
        self._emit_late(side, batch.filter(late), out)
        return batch.filter(~late), slices[~late]

    def _take_span(self, span: int, rows: NewRows, out: Output) -> None:
        """Join rows of one span, and keep them."""
        matched = np.zeros(len(rows.times), np.bool_)
        others = self._kept[1 - rows.side]
        for partner in self._spans.partners(rows.side, span, others):
            if partner in others:
                self._join_with(others[partner], rows, matched, self._bounds(span), out)
        if self._join.only_left_columns and rows.side == LEFT and matched.all():
            return
        columns = rows.batch
        if self._join.only_left_columns and rows.side == RIGHT:
            columns = columns.select(self._keys[RIGHT]).copy()
        self._keep(span, rows, columns, matched)

    def _keep(self, span: int, rows: NewRows, columns: Batch, matched: Bools) -> None:
        """Keep columns of rows of one span."""
        kept = self._kept[rows.side].get(span)
        if kept is None:
            kept = self._kept[rows.side][span] = KeptRows()
        before = kept.nbytes if len(kept) else 0
        kept.add(columns.with_times(None), rows.hashes, rows.times, rows.nulls, matched)
        self._rows_kept += len(matched)
        self._account(kept.nbytes - before)

    def _join_with(
        self, others: KeptRows, rows: NewRows, matched: Bools, bounds_ns: WindowBounds, out: Output
    ) -> None:
        """Emit what comes of new rows and kept rows of the other side; note who has matched."""
        once = self._join.only_left_columns
        wanted = ~matched if once and rows.side == LEFT else np.ones(len(matched), np.bool_)
        if rows.nulls is not None:
            wanted &= ~rows.nulls
        for pairs in others.pairs(
            np.flatnonzero(wanted),
            rows.hashes,
            rows.times,
            self._spans.distance_ns(rows.side),
            only_unmatched=once and rows.side == RIGHT,
            only_first=once and rows.side == LEFT and self._exact,
            marks=once and rows.side == RIGHT and self._exact,
        ):
            equal = pairs if self._exact else self._equal(rows, pairs, others)
            if not once:
                matched[equal[0]] = True
                self._emit_pairs(others, rows, equal, bounds_ns, out)
            elif rows.side == LEFT:
                self._match_new(others, rows, equal, matched, bounds_ns, out)
            else:
                self._match_kept(others, rows, equal, bounds_ns, out)

    def _equal(self, rows: NewRows, pairs: Pairs, others: KeptRows) -> Pairs:
        """Return the pairs with equal keys: different ones may have the same hash."""
        new, kept = pairs
        mine = rows.batch.select(self._keys[rows.side])
        there = others.take(kept).select(self._keys[1 - rows.side])
        equal = equal_keys(mine.take(new), there)
        return new[equal], kept[equal]

    def _emit_pairs(
        self, others: KeptRows, rows: NewRows, pairs: Pairs, bounds_ns: WindowBounds, out: Output
    ) -> None:
        """Emit the columns of both rows of each pair."""
        new, kept = pairs
        if self._unmatched[1 - rows.side]:
            others.mark_matched(kept)
        if not len(new):
            return
        mine, theirs = rows.batch.take(new), others.take(kept)
        left, right = (theirs, mine) if rows.side else (mine, theirs)
        later = np.maximum(rows.times[new], others.times(kept))
        self._emit(self._results().of(left, right, bounds_ns), later, out)

    def _match_new(
        self,
        others: KeptRows,
        rows: NewRows,
        pairs: Pairs,
        matched: Bools,
        bounds_ns: WindowBounds,
        out: Output,
    ) -> None:
        """Note which new left rows have matched; emit them if the join is a semi join."""
        new, partners = pairs
        if not self._exact:  # several kept rows may have the hash of a new one
            new, firsts = np.unique(new, return_index=True)
            fresh = ~matched[new]
            new, partners = new[fresh], partners[firsts[fresh]]
        matched[new] = True
        if self._join.how == "semi" and len(new):
            later = np.maximum(rows.times[new], others.times(partners))
            self._emit(self._results().of(rows.batch.take(new), None, bounds_ns), later, out)

    def _match_kept(
        self, others: KeptRows, rows: NewRows, pairs: Pairs, bounds_ns: WindowBounds, out: Output
    ) -> None:
        """Note which kept left rows have matched; emit them if the join is a semi join."""
        partners, kept = pairs
        if not self._exact:  # several new rows may have the hash of a kept one
            kept, firsts = np.unique(kept, return_index=True)
            partners = partners[firsts]
            others.mark_matched(kept)
        if self._join.how == "semi" and len(kept):
            later = np.maximum(rows.times[partners], others.times(kept))
            self._emit(self._results().of(others.take(kept), None, bounds_ns), later, out)

    # -- spans that have passed ---------------------------------------------------------------

    def _release(self, watermark_ns: int, out: Output) -> None:
        """Free the spans that have passed, in the order of their release."""
        passed = sorted(
            (release_ns, side, span)
            for side in (LEFT, RIGHT)
            for span in self._kept[side]
            if (release_ns := self._spans.release_ns(side, span)) <= watermark_ns
        )
        for release_ns, side, span in passed:
            kept = self._kept[side].pop(span)
            if self._unmatched[side]:
                self._emit_unmatched(side, span, release_ns, kept, out)
            self._give_back(kept)
        self._emit_made(out)

    def _emit_unmatched(
        self, side: int, span: int, release_ns: int, kept: KeptRows, out: Output
    ) -> None:
        rows = kept.unmatched()
        if not len(rows):
            return
        for some in np.array_split(rows, -(-len(rows) // _EMITTED_ROWS)):
            batch = kept.take(some)
            left, right = (None, batch) if side else (batch, None)
            times = np.full(batch.num_rows, release_ns, np.int64)
            self._emit(self._results().of(left, right, self._bounds(span)), times, out)

    def _emit(self, rows: Batch, times: Int64s, out: Output) -> None:
        """Emit results once there are enough of them, at the end of the call at the latest."""
        # The watermark of what was passed on already must not be contradicted.
        self._made_rows.append((rows, np.maximum(times, self._watermark_ns + 1)))
        self._made_count += len(times)
        if self._made_count >= _EMITTED_ROWS:
            self._emit_made(out)

    def _emit_made(self, out: Output) -> None:
        made, self._made_rows, self._made_count = self._made_rows, [], 0
        if made:
            rows = Batch.concat([batch for batch, _ in made])
            out.emit(rows, np.concatenate([times for _, times in made]))

    def _bounds(self, span: int) -> WindowBounds:
        return self._spans.bounds_ns(span) if isinstance(self._spans, WindowSpans) else None


@dataclass(frozen=True)
class NewRows:
    """New rows of one slice.

    Attributes:
        side: LEFT or RIGHT.
        batch: their columns, owned.
        hashes: of their keys, uint64 (n,).
        times: their event times, int64 (n,).
        nulls: which keys are null, bool (n,); None if none is.
    """

    side: int
    batch: Batch
    hashes: npt.NDArray[np.uint64]
    times: Int64s
    nulls: Bools | None

    @classmethod
    def of(
        cls,
        side: int,
        batch: Batch,
        hashes: npt.NDArray[np.uint64],
        nulls: Bools | None,
        chosen: Int64s | None,
    ) -> NewRows:
        """Return the chosen rows of a batch; all for None."""
        if chosen is None:
            part = batch if batch.owned else batch.copy()
        else:
            part, hashes = batch.take(chosen), hashes[chosen]
            nulls = None if nulls is None else nulls[chosen]
        assert part.times is not None  # checked while the topology was built
        return cls(side, part, hashes, part.times, nulls)


def _by_slice(slices: Int64s) -> Iterator[tuple[int, Int64s | None]]:
    """Yield each slice and its rows; None for all."""
    lowest, highest = int(slices.min()), int(slices.max())
    if lowest == highest:
        yield lowest, None
        return
    if highest - lowest < len(slices):
        order, ends = np.empty(len(slices), np.int64), np.empty(highest - lowest + 1, np.int64)
        sort_by_number(slices, lowest, ends, order)
        numbers = np.arange(lowest, highest + 1)
    else:
        order = np.argsort(slices, kind="stable")
        ends = np.append(np.flatnonzero(np.diff(slices[order])) + 1, len(order))
        numbers = slices[order[ends - 1]]
    first = 0
    for slice_, end in zip(numbers.tolist(), ends.tolist(), strict=True):
        if end > first:
            yield slice_, order[first:end]
        first = end


def _with_spans(pieces: Sequence[tuple[int, Batch]], marker: str) -> Batch:
    """Return kept rows as one batch, each with its span; which were joined, contents tell."""
    batches = []
    for span, rows in pieces:
        columns = {
            marker: Column.of(np.zeros(rows.num_rows, np.bool_)),
            _SPAN: Column.of(np.full(rows.num_rows, span)),
        }
        batches.append(with_columns(rows, columns).with_times(rows.times))
    return Batch.concat(batches)
