"""A partial aggregate as a worker runs it, at the end of a chain, in front of an edge by key.

It passes a watermark on after the groups of the windows that it closes, never before them. One that
closes no window may wait with the groups: then few rows leave instead of many. Where rows come by
the thousand at a time, one that closes a window of few groups waits for some more rows, too: what a
window costs behind the edge is mostly calls, and each producer causes them at each worker.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..operators.process import InstanceContext
from ..operators.windows.partial_aggregation import PartialAggregation
from ..state.watermarks import WATERMARK_END, WATERMARK_NONE
from ..transport.wire.batch import Batch
from .flow import Downstream
from .nodes import Node, RowsThroughLoop

if TYPE_CHECKING:
    from ..operators.windows.partial_windows import PartialWindows
    from ..transport.wire.types import Schema

__all__ = ["PartialNode"]

_ROWS_OF_MANY = 4096
"""Rows of so large batches come faster than anybody waits for one of them."""
_BATCHES_MAX = 8
_CLOSED_HELD_NS_MAX = 50_000_000
"""For how many such batches, and how long, groups of windows that have ended may wait."""


class PartialNode(Node):
    """Aggregates its rows, and passes the groups on when it is time.

    Attributes:
        limits_waiting: true: groups are held for a limited time only.
        compiled: takes its rows first, if no compiled loop leads to it and they can be compiled.
    """

    limits_waiting = True
    compiled: RowsThroughLoop | None = None

    def __init__(
        self,
        context: InstanceContext,
        worker: int,
        payload: PartialAggregation,
        output: Downstream,
    ) -> None:
        super().__init__(context, worker)
        self.named = payload.merging
        self._output = output
        self._held_ns_max = payload.held_ns_max
        self._partial = payload()
        # Its memory is its own: the operator that merges may survive what ends this one.
        context.state_budget.name(context.operator_id, payload.merging)
        self._partial.open(context, payload.merging)
        self.metrics.flushes = self._partial.flushes
        self._passed_on_ns = WATERMARK_NONE
        self._rows_added = 0  # since the last watermark
        self._batches_waited = 0  # since a watermark that waits has closed a window

    @property
    def partial(self) -> PartialWindows:
        """The groups; a compiled loop may aggregate into them."""
        return self._partial

    def emit(self, batch: Batch) -> None:
        """Aggregate rows; pass on those that may be late, and all groups if the table is full."""
        if self.compiled is not None and self.compiled.take(batch):
            return
        if self._batches_waited:  # late rows are passed on behind the watermark that they missed
            self._pass_closed_on()
        self._columns = batch.schema
        self.metrics.rows_in += batch.num_rows
        with self.guard(batch):
            passed = self._partial.add(batch)
        self._added(passed)

    def count_aggregated(self, rows: int, columns: Schema, deltas: Iterable[Batch]) -> None:
        """Count rows that a compiled loop has aggregated, and pass on the groups that must leave.

        Args:
            rows: how many.
            columns: theirs.
            deltas: the groups.
        """
        self._columns = columns
        self.metrics.rows_in += rows
        self._rows_added += rows
        self._added(deltas)

    def _added(self, passed: Iterable[Batch]) -> None:
        self._pass_on(passed)
        if self._partial.is_empty:
            self._pass_watermark_on()
        elif self.waiting_until_ns is None:
            self.waiting_until_ns = self._clock.monotonic_ns() + self._held_ns_max

    def advance(self, watermark_ns: int) -> None:
        """Pass on groups, then the watermark, if it closes their windows; else it may wait."""
        self.metrics.watermark_ns = watermark_ns
        rows, self._rows_added = self._rows_added, 0
        if self._partial.closes(watermark_ns):
            if not self._waits_for_more(rows):
                self._pass_closed_on()
        elif self._partial.is_empty:
            self._pass_watermark_on()

    def _waits_for_more(self, rows: int) -> bool:
        """Whether a watermark that closes a window waits for more rows, so many having come."""
        if rows < _ROWS_OF_MANY or self._batches_waited >= _BATCHES_MAX:
            return False
        if not self._partial.may_hold_closed:
            return False
        if not self._batches_waited:
            due_ns = self._clock.monotonic_ns() + min(_CLOSED_HELD_NS_MAX, self._held_ns_max)
            self.waiting_until_ns = min(due_ns, self.waiting_until_ns or due_ns)
        self._batches_waited += 1
        return True

    def _pass_closed_on(self) -> None:
        """Pass on the groups of windows that the watermark closes, then the watermark."""
        with self.guard():
            deltas = self._partial.flush_closed("window")
        self._pass_on(deltas)
        self._pass_watermark_on()

    def set_idle(self, idle: bool) -> None:
        """Pass on the groups and the watermark before it becomes idle."""
        if idle:
            self._flush("idle")
            self._pass_watermark_on()
        self._output.set_idle(idle)

    def end(self) -> None:
        """Pass on the groups, the watermark that waited with them, and the end."""
        self._flush("end")
        self._pass_watermark_on()
        self.ended = True
        self.metrics.watermark_ns = WATERMARK_END
        self._output.end()

    def pass_on_waiting(self) -> None:
        """See `Node.pass_on_waiting`: the watermark that waits with the groups follows them."""
        if self._batches_waited:
            self._pass_closed_on()
            return
        self._flush("watermark")
        self._pass_watermark_on()

    def empty_for_marker(self) -> None:
        """See `Node.empty_for_marker`: so it has no state in checkpoints."""
        if not self.ended:
            self._flush("marker")
            self._pass_watermark_on()

    def _flush(self, reason: str) -> None:
        with self.guard():
            deltas = self._partial.flush(reason)
        self._pass_on(deltas)
        self.waiting_until_ns = None

    def _pass_on(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            self.metrics.rows_out += batch.num_rows
            self._output.emit(batch)
        self.metrics.deltas_out = self._partial.deltas
        if (reduction := self._partial.reduction) is not None:
            self.metrics.reduction = reduction.measured
            self.metrics.is_aside = reduction.is_aside

    def _pass_watermark_on(self) -> None:
        """Pass the watermark on; the time of groups that stay begins anew."""
        self.waiting_until_ns, self._batches_waited = None, 0
        if not self._partial.is_empty:
            self.waiting_until_ns = self._clock.monotonic_ns() + self._held_ns_max
        # Of a restored node that had ended before it is the end, which follows.
        if self._passed_on_ns < self.metrics.watermark_ns < WATERMARK_END:
            self._passed_on_ns = self.metrics.watermark_ns
            self._partial.passed_on(self._passed_on_ns)
            self._output.advance(self._passed_on_ns)
