"""The operators of one stage as a worker runs them: each a node that takes batches and watermarks.

A node calls the user's code behind a guard: whatever it raises becomes an error that names the
operator, the instance and the row, with the user's own traceback first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import ClassVar, NoReturn, Protocol

from ..configs.errors import BadRowError, Interrupted, UsageError, UserFunctionError, WhaleError
from ..metrics.counters import InstanceMetrics, LatencyHistogram
from ..operators.learnt_schema import WAITING_NS_MAX
from ..operators.process import InstanceContext
from ..operators.sinks.base import SinkWriter, Staged
from ..operators.sinks.cut_rows import CutRows
from ..operators.snapshots import OperatorSnapshot
from ..operators.transforms import RowFailure, Transform
from ..plan.explanation import number_ranges
from ..plan.logical import MAIN
from ..state.watermarks import WATERMARK_END, WATERMARK_NONE
from ..transport.clock import Clock
from ..transport.wire.batch import Batch
from ..transport.wire.types import Schema
from .capture import enter, leave, running
from .flow import Downstream, WatermarkBoard
from .predecessors import Predecessors, counts_of, restore_counts


class Node:
    """One operator of a stage: what all kinds have in common, and defaults.

    A stage task calls every method on every node. The defaults are those of an operator that takes
    rows from upstream and holds nothing. Sources override how they are read, sinks how their output
    is published, processes how rows reach them by port.

    Attributes:
        named: the id by which errors name it.
        place: the operator and its instances, as lines that it prints name them.
        takes_input: whether rows reach it from upstream; a source's do not.
        is_polled: whether it acts by itself: it reads, or has deadlines.
        ended: whether no more rows come out of it.
        cut_short: whether it ended before it had read everything, since it was drained.
        keeps_views: whether it may keep rows in received memory until `own`.
        limits_waiting: whether rows wait for the types of their columns for a limited time only.
        has_more: whether it has more to emit before anything else may reach it, see `go_on`.
        waiting_until_ns: when rows that wait are due, monotonic ns; None if none wait.
    """

    takes_input: ClassVar[bool] = True
    is_polled = False
    ended = False
    cut_short = False
    keeps_views = False
    limits_waiting = False
    has_more = False
    waiting_until_ns: int | None = None

    def __init__(self, context: InstanceContext, worker: int) -> None:
        self.context = context
        self.metrics = InstanceMetrics(context.operator_id, context.instance, worker)
        self._clock: Clock = context.clock
        self._columns: Schema | None = None
        self.place = place_of(context)
        self.named = context.operator_id

    @property
    def columns(self) -> Mapping[int, Schema]:
        """The columns of what it passed on, or would have, on each of its outputs."""
        return {} if self._columns is None else {MAIN: self._columns}

    def emit(self, batch: Batch) -> None:
        """Take rows from the operator that it is fused behind."""
        self._refuse_input()

    def count_passing(self, rows_in: int, rows_out: int, columns: Schema) -> None:
        """Count rows that a compiled loop has taken through this operator."""
        self.metrics.rows_in += rows_in
        self.metrics.rows_out += rows_out
        if rows_out:
            self._columns = columns

    def advance(self, watermark_ns: int) -> None:
        """Take the watermark of all its inputs together."""
        self._refuse_input()

    def go_on(self) -> None:
        """Emit the next portion, if it has more."""

    def set_idle(self, idle: bool) -> None:
        """Learn whether its inputs are idle, all together."""

    def end(self) -> None:
        """Learn that no row follows."""
        self._refuse_input()

    def own(self) -> None:
        """Copy the rows that it keeps in received memory, which is released after the call."""

    def accept(self, port: int, source: int, batch: Batch) -> None:
        """Take rows of producer `source` at a stage's head, by input port."""
        self.emit(batch)

    def accept_for(self, instance: int, port: int, source: int, batch: Batch) -> None:
        """Take rows that one of its instances got in a message of its own.

        Every instance gets the same rows, in ascending order; they are taken once, with the last.
        """
        if instance == self.context.instances[-1]:
            self.accept(port, source, batch)

    def join(self, board: WatermarkBoard) -> None:
        """Take the board on which sources see each other's watermarks."""

    def drain(self) -> None:
        """Read no more from outside the job."""

    def suspend(self) -> None:
        """Read no more from outside the job, and do not end."""

    def hurry(self, hurries: bool) -> None:
        """Read little at a time from outside the job, or as much as ever."""

    def poll(self, now_ns: int) -> bool:
        """Read one batch from outside the job, or do what is due; return whether it did."""
        return False

    def due_ns(self, now_ns: int) -> int | None:
        """Return when to poll it again, monotonic ns; None if only rows from upstream matter."""
        return None

    def pass_on_waiting(self) -> None:
        """Pass on rows that have waited for the types of their columns long enough."""

    def empty_for_marker(self) -> None:
        """Pass on what it must not hold at the marker of an epoch, before its snapshot."""

    def publish_part(self) -> None:
        """Make the rows visible that an unbounded job has written since the last part."""

    def stage(self) -> Staged | None:
        """Finish what a bounded job has written, to be published; None if it writes nothing."""
        return None

    def update_metrics(self) -> None:
        """Bring gauges up to date before a snapshot."""

    def snapshot(self, epoch: int) -> OperatorSnapshot:
        """Return what it keeps at an epoch's marker; nothing that happens later changes it."""
        self.update_metrics()
        context = self.context
        values = {
            "cut_short": self.cut_short,
            "columns": self._columns,
            "counts": counts_of(self.metrics),
        }
        return OperatorSnapshot(
            context.operator_id,
            context.instances,
            context.parallelism,
            self.metrics.watermark_ns,
            values=values,
        )

    def restore(self, before: Predecessors) -> None:
        """Take over what objects of the operator kept; called once, before any row.

        Raises:
            UsageError: something of it cannot be divided among the instances that there are now.
        """
        self.ended = before.ended
        self.metrics.watermark_ns = before.watermark_ns
        self._columns = before.known("columns")
        for one in before.dealt:
            self.cut_short |= one.values["cut_short"]
            restore_counts(self.metrics, one.values["counts"])

    def resume(self) -> None:
        """Tell what follows how far it had come; called of a restored head when all is linked."""

    def close(self) -> None:
        """Give back what it holds; what was not published is dropped."""

    def guard(self, *batches: Batch) -> Guard:
        """Time the user's code and name the place of whatever it raises or prints."""
        return Guard(self, batches)

    def raise_named(self, error: BaseException, batches: tuple[Batch, ...]) -> None:
        """Raise what the user's code raised as an error that names its place.

        Returns if the error does so already.
        """
        if isinstance(error, UsageError | BadRowError):
            raise self._naming_operator(error) from error
        if isinstance(error, WhaleError | Interrupted):
            return
        if isinstance(error, RowFailure):
            cause = error.__cause__
            if isinstance(cause, UsageError):
                msg = f"{self._naming_operator(cause)}; input: {error.preview}"
                raise type(cause)(msg) from error
            raise self._user_error(error.__cause__ or error, error.preview) from error
        raise self._user_error(error, _preview(batches)) from error

    def _note_waiting(self, rows: int) -> None:
        """Set when rows are due that wait for the types of their columns."""
        if not rows or not self.limits_waiting:
            self.waiting_until_ns = None
        elif self.waiting_until_ns is None:
            self.waiting_until_ns = self._clock.monotonic_ns() + WAITING_NS_MAX

    def _naming_operator(self, error: UsageError | BadRowError) -> WhaleError:
        """Say where it happened, unless the message says so already."""
        name, text = repr(self.named), str(error)
        is_named = f"operator {name}" in text or f"source {name}" in text
        return error if is_named else type(error)(f"operator {name}: {text}")

    def _user_error(self, error: BaseException, preview: str) -> UserFunctionError:
        return UserFunctionError.of(error, self.named, self.context.instance, preview)

    def _refuse_input(self) -> NoReturn:
        msg = f"{self.place} takes no rows this way"
        raise AssertionError(msg)


class Guard:
    """What stands around a call of the user's code, see `Node.guard`.

    Every batch passes several: an object costs a fraction of a generator with `contextmanager`.
    """

    __slots__ = ("_batches", "_before", "_begin_ns", "_clock", "_node")

    def __init__(self, node: Node, batches: tuple[Batch, ...]) -> None:
        self._node = node
        self._batches = batches

    def __enter__(self) -> None:
        node = self._node
        self._clock = node.context.clock
        self._begin_ns = self._clock.monotonic_ns()
        self._before = enter(node.place)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        leave(self._before)
        node = self._node
        node.metrics.busy_ns += self._clock.monotonic_ns() - self._begin_ns
        if error is not None:
            node.raise_named(error, self._batches)


class RowsThroughLoop(Protocol):
    """Takes rows through an operator, and some of those after it, by a compiled loop."""

    def take(self, batch: Batch) -> bool:
        """Take rows; return False if the operators themselves must."""


class TransformNode(Node):
    """A stateless operator.

    Attributes:
        transform: what it does.
        output: what follows it.
        compiled: takes its rows first, if they can be compiled.
    """

    compiled: RowsThroughLoop | None = None

    def __init__(
        self,
        context: InstanceContext,
        worker: int,
        transform: Transform,
        output: Downstream,
        bounded: bool,
    ) -> None:
        super().__init__(context, worker)
        self.transform = transform.instance(bounded=bounded)
        self.output = output
        self.limits_waiting = not bounded
        self._idle = False
        self._passed_on_ns = WATERMARK_NONE

    def emit(self, batch: Batch) -> None:
        """Transform the batch and pass on what comes out of it."""
        if self.compiled is not None and self.compiled.take(batch):
            return
        with self.guard(batch):
            result = self.transform.apply(batch)
        self.metrics.rows_in += batch.num_rows
        self._pass_on(result)

    def advance(self, watermark_ns: int) -> None:
        """Pass a watermark on, unless rows are kept back; the next one covers it."""
        self.metrics.watermark_ns = watermark_ns
        if not self.transform.waiting_rows:
            self._passed_on_ns = watermark_ns
            self.output.advance(watermark_ns)

    def set_idle(self, idle: bool) -> None:
        """Pass on whether its input is idle, unless rows are kept back: they come before."""
        self._idle = idle
        if not self.transform.waiting_rows:
            self.output.set_idle(idle)

    def end(self) -> None:
        """Pass on what was kept back, the watermark that waited with it, and the end."""
        self._finish()
        self.ended = True
        self.metrics.watermark_ns = WATERMARK_END
        self.output.end()

    def snapshot(self, epoch: int) -> OperatorSnapshot:
        """See `Node.snapshot`: what it has learnt from its rows, and those that are kept back."""
        kept = super().snapshot(epoch)
        return replace(kept, values={**kept.values, "learnt": self.transform.learnt()})

    def restore(self, before: Predecessors) -> None:
        """See `Node.restore`."""
        super().restore(before)
        self.transform.restore_learnt(
            [one.values["learnt"] for one in before.dealt],
            [one.values["learnt"] for one in before.sources],
        )
        self.metrics.buffered_rows = waiting = self.transform.waiting_rows
        self._note_waiting(waiting)

    def resume(self) -> None:
        """See `Node.resume`."""
        if self.ended:
            self.output.end()
        elif self.metrics.watermark_ns > WATERMARK_NONE:
            self.advance(self.metrics.watermark_ns)

    def pass_on_waiting(self) -> None:
        """See `Node.pass_on_waiting`; the watermark that waited with the rows follows them."""
        self._finish()
        if self._idle:
            self.output.set_idle(True)

    def _finish(self) -> None:
        with self.guard():
            result = self.transform.finish()
        self._pass_on(result)
        # Of a restored node that had ended before it is the end, which follows.
        if self._passed_on_ns < self.metrics.watermark_ns < WATERMARK_END:
            self._passed_on_ns = self.metrics.watermark_ns
            self.output.advance(self._passed_on_ns)

    def _pass_on(self, result: Batch | None) -> None:
        self.metrics.buffered_rows = waiting = self.transform.waiting_rows
        self._note_waiting(waiting)
        if result is None:
            return
        self._columns = result.schema
        if result.num_rows:
            self.metrics.rows_out += result.num_rows
            self.output.emit(result)


class SinkNode(Node):
    """A sink's writer; nothing follows it.

    `publishes_parts` says whether it makes rows visible by itself: in unbounded jobs without
    checkpoints.
    """

    def __init__(
        self, context: InstanceContext, worker: int, writer: SinkWriter, publishes_parts: bool
    ) -> None:
        super().__init__(context, worker)
        self.metrics.latency = LatencyHistogram()
        self._writer = writer
        self._publishes_parts = publishes_parts

    def emit(self, batch: Batch) -> None:
        """Write the rows and count how long they took from their source."""
        with self.guard(batch):
            self._writer.write(batch)
        self.metrics.rows_in += batch.num_rows
        self.metrics.rows_out += batch.num_rows
        if batch.origin_ns and self.metrics.latency is not None:
            self.metrics.latency.add(self._clock.monotonic_ns() - batch.origin_ns, batch.num_rows)

    def advance(self, watermark_ns: int) -> None:
        """Note how far event time has come."""
        self.metrics.watermark_ns = watermark_ns

    def end(self) -> None:
        """Publish the last part, if it publishes parts; else it waits for `stage`."""
        self.ended = True
        self.metrics.watermark_ns = WATERMARK_END
        self.publish_part()

    def publish_part(self) -> None:
        """See `Node.publish_part`."""
        if self._publishes_parts:
            with self.guard():
                self._writer.publish_part()

    def snapshot(self, epoch: int) -> OperatorSnapshot:
        """See `Node.snapshot`: the rows since the marker before, to be staged."""
        with self.guard():
            stage = self._writer.cut_epoch(epoch)
        cut = None if stage is None else CutRows(epoch, stage)
        return replace(super().snapshot(epoch), staged=cut)

    def stage(self) -> Staged:
        """See `Node.stage`."""
        with self.guard():
            return self._writer.stage()

    def close(self) -> None:
        """Drop what was not published."""
        with self.guard():
            self._writer.abort()


@contextmanager
def naming_user_errors(context: InstanceContext) -> Iterator[None]:
    """Turn what a user's source, factory or sink raises while opening into a named error."""
    try:
        with running(place_of(context)):
            yield
    except (WhaleError, Interrupted):
        raise
    except BaseException as error:
        raise UserFunctionError.of(
            error, context.operator_id, context.instance, "none yet"
        ) from error


def place_of(context: InstanceContext) -> str:
    """Return the operator and its instance, or instances, as lines that it prints name them."""
    return f"{context.operator_id}#{number_ranges(context.instances)}"


def _preview(batches: tuple[Batch, ...]) -> str:
    for batch in batches:
        if batch.num_rows:
            more = f" (first of {batch.num_rows} rows)" if batch.num_rows > 1 else ""
            return batch.preview(0) + more
    return "no rows"
