"""`JoinStreams`: joins two streams within windows, or within an interval of event time.

A symmetric hash join (Wilschut and Apers, "Dataflow query execution in a parallel main-memory
environment", 1991): a row that arrives is joined with the kept rows of the other side, then kept
for those that follow. Rows come in any order. They are kept by spans of event time, and a span is
freed once the watermark says that nothing can join with its rows any more; those that have joined
with none are emitted then, if the type of the join has them.

One compiled loop serves a batch, in all of its spans (`span_loop`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys
from ...state.watermarks import LATEST_NS, WATERMARK_NONE
from ...transport.wire.batch import Batch
from ..process import InputOrder, InstanceContext, Output
from .join import Join
from .joined_rows import Bounds
from .kept_rows import KeptRows
from .kept_spans import SpanJoin, taken_by
from .kernels import sort_by_number
from .key_bytes import key_bytes
from .span_loop import FoundPairs, SpanLoop, Visit, rules_of
from .spans import WindowSpans
from .stream_join import LEFT, RIGHT

__all__ = ["JoinStreams"]

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
WindowBounds: TypeAlias = tuple[int, int] | None

_EMITTED_ROWS = 8192
"""Results of several spans are emitted together, as so many rows."""


class JoinStreams(SpanJoin):
    """Joins the rows of two streams, as a `Join` asks."""

    input_order: ClassVar[InputOrder | None] = "arrival"

    def __init__(self, join: Join) -> None:
        super().__init__(join)
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

    def portions(self, watermark_ns: int | None, out: Output) -> Iterator[None]:
        """Free the spans that have passed; emit their rows that have joined with none."""
        if watermark_ns is None:
            yield from self._release(LATEST_NS, out)
            return
        yield from self._release(watermark_ns - self._join.allowed_lateness_ns, out)
        self._watermark_ns = watermark_ns

    # -- taking rows --------------------------------------------------------------------------

    @property
    def _patient_ns(self) -> int:
        """The watermark less the allowed lateness."""
        if self._watermark_ns == WATERMARK_NONE:
            return WATERMARK_NONE
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
        order, parts = _by_slice(slices)
        self._take_in_loop(side, batch, order, parts, hashes, nulls, out)
        self._emit_made(out)

    def _open_spans(self, side: int, slice_: int) -> Iterator[int]:
        """Yield the spans of a slice that are not freed yet."""
        for span in self._spans.of_slice(slice_):
            if self._spans.release_ns(side, span) > self._patient_ns:
                yield span

    def _without_late(
        self, side: int, batch: Batch, slices: Int64s, out: Output
    ) -> tuple[Batch, Int64s]:
        """Return the rows without those that come too late; these are emitted."""
        if self._watermark_ns == WATERMARK_NONE:
            return batch, slices
        late = self._spans.late(batch, slices, self._patient_ns)
        if not late.any():
            return batch, slices
        self._emit_late(side, batch.filter(late), out)
        return batch.filter(~late), slices[~late]

    # -- build and probe ----------------------------------------------------------------------

    def _take_in_loop(
        self,
        side: int,
        batch: Batch,
        order: Int64s | None,
        parts: list[tuple[int, int, int]],
        hashes: npt.NDArray[np.uint64],
        nulls: Bools | None,
        out: Output,
    ) -> None:
        """Join rows, and keep them: all spans in one call of a kernel."""
        assert batch.times is not None  # checked while the topology was built
        visits = list(self._visits(side, parts))
        touched = {visit.span: visit.own for visit in visits}
        keys = key_bytes(batch, self._keys[side])
        rooms = list(_rooms(visits, keys.before(order)))
        self._spill(sum(table.growth(*room) for table, room in rooms))
        before = taken_by(touched.values())
        for table, room in rooms:
            table.make_room(*room)
        distance_ns = self._spans.distance_ns(side)
        loop = SpanLoop(visits, np.arange(batch.num_rows) if order is None else order)
        rules = rules_of(
            self._join.how,
            of_left=side == LEFT,
            any_distance=distance_ns is None,
            marks=self._unmatched[1 - side],
        )
        for found in loop.pairs(hashes, batch.times, nulls, keys, distance_ns, rules):
            self._emit_found(side, batch, found, out)
        self._keep_visited(side, batch, order, loop)
        for span, table in touched.items():
            if not len(table):
                del self._kept[side][span]
        self._account(*(taken_by(touched.values()) - before).tolist())

    def _visits(self, side: int, parts: list[tuple[int, int, int]]) -> Iterator[Visit]:
        others = self._kept[1 - side]
        for slice_, first, stop in parts:
            for span in self._open_spans(side, slice_):
                found = self._spans.partners(side, span, others)
                partners = [others[partner] for partner in found if partner in others]
                yield Visit(span, first, stop, self._table_of(side, span), partners)

    def _table_of(self, side: int, span: int) -> KeptRows:
        """Return what keeps the rows of a span, even if there is none yet."""
        kept = self._kept[side].get(span)
        if kept is None:
            kept = self._kept[side][span] = KeptRows()
        return kept

    def _keep_visited(self, side: int, batch: Batch, order: Int64s | None, loop: SpanLoop) -> None:
        """Keep the columns of the rows that the loop has kept."""
        columns = batch.with_times(None)
        if self._join.only_left_columns and side == RIGHT:
            columns = columns.select(self._keys[RIGHT])
        part, at = columns, None
        for visit, rows in loop.kept:
            whole = (visit.first, visit.stop)
            if len(rows) < visit.stop - visit.first:
                part, at = columns.take(rows), None
            elif whole != at:  # the spans of a slice share its rows
                at = whole
                if order is not None:
                    part = columns.take(rows)
                else:
                    part = columns if columns.owned else columns.copy()
            visit.own.grow(part)
            self._rows_kept += part.num_rows

    def _emit_found(self, side: int, batch: Batch, found: FoundPairs, out: Output) -> None:
        """Emit the results of pairs; of a semi join, the columns of their left rows."""
        left = batch.take(found.new) if side == LEFT else found.kept()
        right = None
        if not self._join.only_left_columns:
            right = found.kept() if side == LEFT else batch.take(found.new)
        bounds_ns: Bounds | None = None
        if isinstance(self._spans, WindowSpans):
            bounds_ns = self._spans.bounds_of(found.spans)
        self._emit(self._results().of(left, right, bounds_ns), found.times, out)

    # -- spans that have passed ---------------------------------------------------------------

    def _release(self, watermark_ns: int, out: Output) -> Iterator[None]:
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
                for rows in kept.unmatched(_EMITTED_ROWS):
                    self._emit_unmatched(side, span, release_ns, kept.take(rows), out)
                    if not self._made_rows:
                        yield
            self._give_back(kept)
        self._emit_made(out)

    def _emit_unmatched(
        self, side: int, span: int, release_ns: int, rows: Batch, out: Output
    ) -> None:
        left, right = (None, rows) if side else (rows, None)
        times = np.full(rows.num_rows, release_ns, np.int64)
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


def _rooms(
    visits: Sequence[Visit], bytes_before: Int64s | None
) -> Iterator[tuple[KeptRows, tuple[int, int | None]]]:
    """Yield what keeps the rows of visits, and how many rows and bytes of keys come to it.

    `bytes_before`: see `KeyBytes.before`.
    """
    tables = {visit.span: visit.own for visit in visits}
    rows_of: Counter[int] = Counter()
    bytes_of: Counter[int] = Counter()
    for visit in visits:
        rows_of[visit.span] += visit.stop - visit.first
        if bytes_before is not None:
            bytes_of[visit.span] += int(bytes_before[visit.stop] - bytes_before[visit.first])
    for span, table in tables.items():
        yield table, (rows_of[span], None if bytes_before is None else bytes_of[span])


def _by_slice(slices: Int64s) -> tuple[Int64s | None, list[tuple[int, int, int]]]:
    """Sort rows by their slices.

    Returns:
        the rows in their order, int64 (n,); None if they are in one slice.
        slices, each with the place of its first row in that order, and the one behind its last.
    """
    lowest, highest = int(slices.min()), int(slices.max())
    if lowest == highest:
        return None, [(lowest, 0, len(slices))]
    if highest - lowest < len(slices):
        order, ends = np.empty(len(slices), np.int64), np.empty(highest - lowest + 1, np.int64)
        sort_by_number(slices, lowest, ends, order)
        numbers = np.arange(lowest, highest + 1)
    else:
        order = np.argsort(slices, kind="stable")
        ends = np.append(np.flatnonzero(np.diff(slices[order])) + 1, len(order))
        numbers = slices[order[ends - 1]]
    begins = np.append(0, ends[:-1])
    parts = zip(numbers.tolist(), begins.tolist(), ends.tolist(), strict=True)
    return order, [part for part in parts if part[2] > part[1]]
