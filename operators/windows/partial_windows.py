"""`PartialWindows`: aggregates rows where they are made, before they are sent by key (late merge).

It stands in the upstream stage, in front of the edge by key, and keeps one group per slice and key
of its own rows. Now and then (Slash's epoch, section 4.6.2.2) all groups leave as deltas, which the
operator behind the edge merges; the table is empty then. That happens at every marker, so
checkpoints need not know of it. Before a watermark is passed on that closes a window, the groups of
this and earlier ones leave, so no row is missing when the window fires (P1 and P2 of section
4.4.1); those of later ones need not, so that most groups leave once.

Rows that may come too late are passed on as they are: whether they do is decided behind the edge,
as without late merge. No other row can be late there, since the watermark of the merging operator
is at most the one that was passed on from here.

The compiled loop of a chain may end here: then the loop keeps groups itself (`LoopGroups`), and
this class decides, as for others, when they leave. Batches that the loop does not take are added
to the other groups; where results depend on the order of rows, one of both is always empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...state.keys import hash_keys
from ...state.watermarks import WATERMARK_NONE
from ...transport.wire.batch import Batch
from .aggregation import Aggregation, evaluated_inputs
from .block_times import NO_BLOCK_TIMES, BlockTimes, block_times
from .deltas import deltas_of, deltas_of_loop, mark_of
from .group_state import GroupState
from .loop_groups import GROUPS_MAX, GROUPS_MIN, LoopGroups
from .partial_aggregation import TABLE_BYTES_MAX
from .reduction import Reduction
from .slices import TimeSlices, WholeInput, slices_of
from .window_results import WindowResults

if TYPE_CHECKING:
    from ...transport.wire.column import Column
    from ...transport.wire.types import Schema
    from ..process import InstanceContext

__all__ = ["INPUT_BYTES_MAX", "PartialWindows"]

INPUT_BYTES_MAX = 64 << 20
"""After so many bytes of rows all groups leave as deltas."""

_CLOSED_HELD_MAX = 2048
"""With more groups than this, those of windows that have ended leave at once."""

_BYTES_PER_INPUT_BYTE = 4
"""What groups and their indexes may grow by at most, for a byte of rows."""


class PartialWindows:
    """The groups of one producer, until they leave as deltas.

    Args:
        aggregation: what is asked for.
        reduction: says when to step aside; None: never.
        keeps_open: see `PartialAggregation`.

    Attributes:
        deltas: how many have left.
        flushes: how often groups have left, by reason.
    """

    def __init__(
        self, aggregation: Aggregation, reduction: Reduction | None, *, keeps_open: bool = False
    ) -> None:
        self._asked = aggregation
        self._slices = slices_of(aggregation)
        self._keeps_open = keeps_open and not aggregation.emits_changes
        self._reduction = reduction
        self._groups: GroupState | None = None
        self._in_loop: LoopGroups | None = None
        self._keeps_order = False  # whether deltas must leave in the order of their rows
        self._watermark_ns = self._passed_on_ns = WATERMARK_NONE
        self._rows = self._bytes = self._origin_ns = self._last_origin_ns = 0
        self._time_ns: int | None = None
        self.deltas = 0
        self.flushes: dict[str, int] = {}

    def open(self, context: InstanceContext, merging: str) -> None:
        """Take the memory for state, and the id of the operator that merges, for messages."""
        self._context, self._merging = context, merging
        self._watermark_ns = self._passed_on_ns = context.watermark_ns
        self._groups = self._in_loop = None

    @property
    def asked(self) -> Aggregation:
        """What is asked for."""
        return self._asked

    @property
    def reduction(self) -> Reduction | None:
        """What says when to step aside; None: never."""
        return self._reduction

    @property
    def is_empty(self) -> bool:
        """Whether it holds no row."""
        return not self._held

    def add(self, batch: Batch) -> list[Batch]:
        """Take rows; return what is to be passed on, in order: rows as they are, and deltas.

        Raises:
            BadRowError: a row's window cannot be told, or a group holds more than it may.
            StateFullError: the worker's memory for state is used up.
        """
        reduction = self._reduction
        if reduction is not None and reduction.is_aside:
            reduction.passed(batch.num_rows)
            return [batch]
        passed: list[Batch] = []
        nbytes = batch.nbytes
        if self._in_loop is not None and len(self._in_loop) and self._keeps_order:
            passed += self.flush("order")
        if not self._has_room(nbytes):
            passed += self.flush("memory")
            if not self._has_room(nbytes):
                return [*passed, batch]
        slices = self._slices.of(batch)
        if self._watermark_ns != WATERMARK_NONE:
            first = self._slices.first_open(self._watermark_ns - self._asked.allowed_lateness_ns)
            if slices.min() < first:
                late = slices < first
                passed.append(batch.filter(late))
                batch, slices = batch.filter(~late), slices[~late]
        if batch.num_rows:
            self._update(batch, slices)
            self._bytes += nbytes
        return [*passed, *self.flush_if_due()]

    def flush_if_due(self) -> list[Batch]:
        """Return all groups as deltas if they stand for many rows, or are many."""
        if self._bytes >= INPUT_BYTES_MAX:
            return self.flush("input")
        if self._groups is not None and len(self._groups) >= self._groups_max:
            return self.flush("table")
        reduction = self._reduction
        if reduction is not None and reduction.foresees_too_little(self._rows, self._held):
            return self.flush("unique")
        return []

    @property
    def _held(self) -> int:
        """How many groups it has."""
        tables = (self._groups, self._in_loop)
        return sum(len(table) for table in tables if table is not None)

    # -- rows that a compiled loop aggregates -------------------------------------------------

    def takes_from_loop(self, batch: Batch) -> BlockTimes | None:
        """Return the times that a loop needs to aggregate what comes of these rows.

        None if it may not: one may be late, or there is no room. A loop neither passes rows on nor
        refuses them.
        """
        is_aside = self._reduction is not None and self._reduction.is_aside
        most_bytes = max(TABLE_BYTES_MAX // _BYTES_PER_INPUT_BYTE, batch.nbytes)
        if is_aside or not self._has_room(most_bytes):
            return None
        slices = self._slices
        if not isinstance(slices, TimeSlices):
            return NO_BLOCK_TIMES if isinstance(slices, WholeInput) else None
        if batch.times is None:
            return None
        times = block_times(batch.times)
        first_ns, last_ns = int(times.earliest.min()), int(times.latest.max())
        if not slices.has_room_for(first_ns, last_ns):
            return None
        open_to_ns = self._watermark_ns - self._asked.allowed_lateness_ns
        if self._watermark_ns != WATERMARK_NONE and first_ns < slices.open_from_ns(open_to_ns):
            return None
        return times

    @property
    def loop_groups(self) -> LoopGroups:
        """The groups of the loop, once `make_room` was called."""
        assert self._in_loop is not None
        return self._in_loop

    def make_room(
        self, before: Schema, record: np.dtype[Any], values: Mapping[int, Column], places: int
    ) -> list[Batch]:
        """Make room for a group at least; return the deltas that had to leave for it.

        Args:
            before: the columns of the rows that the loop aggregates.
            record, values, places: as for `LoopGroups`.

        Raises:
            StateFullError: the worker's memory for state is used up.
        """
        groups = self._in_loop
        deltas = []
        if self._groups is not None and len(self._groups) and self._keeps_order:
            deltas = self.flush("order")
        if groups is not None and groups.is_for(before, record, values, places):
            return deltas if groups.grow() else [*deltas, *self.flush("table")]
        if groups is not None:
            deltas += self.flush("columns")
        if groups is not None:
            groups.close()
        accumulators = self._asked.accumulators(before)
        self._keeps_order = any(one.depends_on_order for one in accumulators)
        self._in_loop = LoopGroups(
            before,
            self._asked.keys,
            accumulators,
            record,
            values,
            self._context,
            TABLE_BYTES_MAX,
            places=places,
            by_time=isinstance(self._slices, TimeSlices),
        )
        return deltas

    def note_aggregated(self, batch: Batch, rows: int) -> None:
        """Learn how many rows a loop has aggregated that came of a batch."""
        self._rows += rows
        self._bytes += batch.nbytes * rows // batch.num_rows
        self._note_origin(batch)

    # -- deltas -------------------------------------------------------------------------------

    def closes(self, watermark_ns: int) -> bool:
        """Whether a watermark closes a window, or the time for late rows of one.

        Behind it the merging operator must decide as this one does which rows are late.
        """
        before_ns, self._watermark_ns = self._passed_on_ns, watermark_ns
        if before_ns == WATERMARK_NONE or not isinstance(self._slices, (TimeSlices, WholeInput)):
            return True
        lateness_ns, slices = self._asked.allowed_lateness_ns, self._slices
        return slices.first_unfired(watermark_ns) > slices.first_unfired(before_ns) or (
            lateness_ns > 0
            and slices.first_open(watermark_ns - lateness_ns)
            > slices.first_open(before_ns - lateness_ns)
        )

    @property
    def may_hold_closed(self) -> bool:
        """Whether groups of windows that a watermark closes may wait for those of later windows.

        They may if there are few groups: many cost as much if they leave together.
        """
        is_timed = self._keeps_open and isinstance(self._slices, TimeSlices)
        return is_timed and 0 < self._held <= _CLOSED_HELD_MAX

    def passed_on(self, watermark_ns: int) -> None:
        """Learn that a watermark has been passed on."""
        self._passed_on_ns = watermark_ns

    def flush(self, reason: str) -> list[Batch]:
        """Return all groups as deltas, if there are any, and forget them."""
        return self._flush(reason, None)

    def flush_closed(self, reason: str) -> list[Batch]:
        """Do so with the groups of windows that the last watermark closes; others may stay."""
        if not self._keeps_open or not isinstance(self._slices, TimeSlices):
            return self.flush(reason)
        return self._flush(reason, self._slices.first_unfired(self._watermark_ns))

    def _flush(self, reason: str, before: int | None) -> list[Batch]:
        """Return the groups of slices before one as deltas, or all groups, and forget them."""
        held = self._held
        if not held:
            return []
        found = [*self._taken_of_groups(before), *self._taken_of_loop(before)]
        deltas = [self._dated(one.with_origin(self._origin_ns)) for one in found]
        count = sum(one.num_rows for one in deltas)
        rows, nbytes = self._rows * count // held, self._bytes * count // held
        self._rows, self._bytes = self._rows - rows, self._bytes - nbytes
        self._origin_ns, self._time_ns = 0, None
        if count < held:
            self._origin_ns, self._time_ns = self._last_origin_ns, self._watermark_ns + 1
        if not count:
            return []
        self.flushes[reason] = self.flushes.get(reason, 0) + 1
        self.deltas += count
        if self._reduction is not None:
            self._reduction.flushed(rows, count)
            if self._reduction.is_aside:  # rows that are passed on now come behind all groups
                deltas += self.flush(reason)
        return deltas

    def _taken_of_groups(self, before: int | None) -> Iterator[Batch]:
        groups = self._groups
        if groups is None:
            return
        leaving = [one for one in groups.slices if before is None or one < before]
        if not leaving:
            return
        parts = [groups.scan(slice_) for slice_ in leaving]
        slices = np.repeat(leaving, [len(found) for found in parts])
        yield deltas_of(groups, np.concatenate(parts), slices, self._mark)
        groups.clear(before)

    def _taken_of_loop(self, before: int | None) -> Iterator[Batch]:
        groups = self._in_loop
        if groups is None or not len(groups):
            return
        leaving = groups.numbers(before)
        if isinstance(leaving, slice) or len(leaving):
            if groups.time_ns is not None:
                self._note_times(groups.time_ns, groups.time_ns)
            yield deltas_of_loop(groups, leaving, mark_of(self._asked, groups.before))
        if before is None:
            groups.clear()
        else:
            groups.keep_from(before, self._watermark_ns + 1)

    def _dated(self, deltas: Batch) -> Batch:
        if self._time_ns is None:
            return deltas
        return deltas.with_times(np.full(deltas.num_rows, self._time_ns))

    def _update(self, batch: Batch, slices: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        groups = self._bound(batch)
        keys = batch.select(self._asked.keys)
        inputs = evaluated_inputs(self._asked.aggregates, batch)
        hashes = hash_keys(batch, self._asked.keys)[0]
        with self._results.naming(lambda: keys):
            groups.add(slices, hashes, keys, inputs, batch.times)
        self._rows += batch.num_rows
        self._note_origin(batch)
        if batch.times is not None:
            self._note_times(int(batch.times.min()), int(batch.times.max()))

    def _note_origin(self, batch: Batch) -> None:
        self._last_origin_ns = batch.origin_ns
        if batch.origin_ns and not (self._origin_ns and self._origin_ns <= batch.origin_ns):
            self._origin_ns = batch.origin_ns

    def _note_times(self, earliest_ns: int, latest_ns: int) -> None:
        """Keep the time for deltas.

        It is the earliest where windows are told by time, so that rows after idleness are found to
        be late, else the latest, which the results then have.
        """
        is_earliest = isinstance(self._slices, TimeSlices)
        time_ns = earliest_ns if is_earliest else latest_ns
        if self._time_ns is None or (time_ns < self._time_ns) == is_earliest:
            self._time_ns = time_ns

    def _bound(self, batch: Batch) -> GroupState:
        """Return the groups, made of the columns of the first rows; raise as `check_types`."""
        if self._groups is None:
            schema, asked = batch.schema, self._asked
            accumulators = asked.accumulators(schema)
            columns = asked.output_schema(schema, accumulators)
            self._results = WindowResults(asked, columns, self._merging)
            self._groups = GroupState(
                schema.select(asked.keys),
                accumulators,
                self._context,
                shares_stores=asked.window is not None,
            )
            self._mark = mark_of(asked, schema)
            self._input = schema
            self._keeps_order = any(one.depends_on_order for one in accumulators)
            fitting = TABLE_BYTES_MAX // max(self._groups.record_bytes, 1)
            self._groups_max = max(GROUPS_MIN, min(GROUPS_MAX, fitting))
        elif batch.schema is not self._input and batch.schema != self._input:
            self._asked.check_types(self._input, batch.schema)
        return self._groups

    def _has_room(self, nbytes: int) -> bool:
        """Whether the memory for state surely suffices for the groups of so many bytes of rows."""
        budget = self._context.state_budget
        needed = (1 << 20) + _BYTES_PER_INPUT_BYTE * nbytes
        return budget.used_bytes + needed <= budget.limit_bytes
