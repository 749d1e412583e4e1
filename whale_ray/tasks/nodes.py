"""The operators of one stage as a worker runs them: each a node that takes batches and watermarks.

A node calls the user's code behind a guard: whatever it raises becomes an error that names the
operator, the instance and the row, with the user's own traceback first.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar, NoReturn

from ..configs.errors import Interrupted, UsageError, UserFunctionError, WhaleError
from ..metrics.counters import InstanceMetrics, LatencyHistogram
from ..operators.learnt_schema import WAITING_NS_MAX
from ..operators.process import CoProcess, InstanceContext, Process, call_method, common_time
from ..operators.sinks.base import SinkWriter, Staged
from ..operators.transforms import RowFailure, Transform
from ..plan.explanation import number_ranges
from ..plan.logical import MAIN
from ..state.event_time_buffer import EventTimeBuffer, Released
from ..state.watermarks import WATERMARK_END, WATERMARK_NONE
from ..transport.clock import Clock
from ..transport.wire.batch import Batch
from ..transport.wire.types import Schema
from .capture import enter, leave, running
from .flow import Downstream, FanOut, WatermarkBoard
from .process_output import make_output


class Node:
    """One operator of a stage: what all kinds have in common, and defaults.

    A stage task calls every method on every node. The defaults are those of an operator that takes
    rows from upstream and holds nothing. Sources override how they are read, sinks how their output
    is published, processes how rows reach them by port.

    Attributes:
        takes_input: whether rows reach it from upstream; a source's do not.
        is_polled: whether it acts by itself: it reads, or has deadlines.
        ended: whether no more rows come out of it.
        cut_short: whether it ended before it had read everything, since it was drained.
        limits_waiting: whether rows wait for the types of their columns for a limited time only.
        waiting_until_ns: when rows that wait are due, monotonic ns; None if none wait.
    """

    takes_input: ClassVar[bool] = True
    is_polled = False
    ended = False
    cut_short = False
    limits_waiting = False
    waiting_until_ns: int | None = None

    def __init__(self, context: InstanceContext, worker: int) -> None:
        self.context = context
        self.metrics = InstanceMetrics(context.operator_id, context.instance, worker)
        self._clock: Clock = context.clock
        self._columns: Schema | None = None
        self._place = place_of(context)

    @property
    def columns(self) -> Mapping[int, Schema]:
        """The columns of what it passed on, or would have, on each of its outputs."""
        return {} if self._columns is None else {MAIN: self._columns}

    def emit(self, batch: Batch) -> None:
        """Take rows from the operator that it is fused behind."""
        self._refuse_input()

    def advance(self, watermark_ns: int) -> None:
        """Take the watermark of all its inputs together."""
        self._refuse_input()

    def end(self) -> None:
        """Learn that no row follows."""
        self._refuse_input()

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

    def poll(self, now_ns: int) -> bool:
        """Read one batch from outside the job, or do what is due; return whether it did."""
        return False

    def due_ns(self, now_ns: int) -> int | None:
        """Return when to poll it again, monotonic ns; None if only rows from upstream matter."""
        return None

    def pass_on_waiting(self) -> None:
        """Pass on rows that have waited for the types of their columns long enough."""

    def publish_part(self) -> None:
        """Make the rows visible that an unbounded job has written since the last part."""

    def stage(self) -> Staged | None:
        """Finish what a bounded job has written, to be published; None if it writes nothing."""
        return None

    def update_metrics(self) -> None:
        """Bring gauges up to date before a snapshot."""

    def close(self) -> None:
        """Give back what it holds; what was not published is dropped."""

    @contextmanager
    def guard(self, *batches: Batch) -> Iterator[None]:
        """Time the user's code and name the place of whatever it raises or prints."""
        begin_ns = self._clock.monotonic_ns()
        before = enter(self._place)
        try:
            yield
        except UsageError as error:
            raise self._naming_operator(error) from error
        except (WhaleError, Interrupted):
            raise
        except RowFailure as failure:
            cause = failure.__cause__ or failure
            raise self._user_error(cause, failure.preview) from failure
        except BaseException as error:
            raise self._user_error(error, _preview(batches)) from error
        finally:
            leave(before)
            self.metrics.busy_ns += self._clock.monotonic_ns() - begin_ns

    def _note_waiting(self, rows: int) -> None:
        """Set when rows are due that wait for the types of their columns."""
        if not rows or not self.limits_waiting:
            self.waiting_until_ns = None
        elif self.waiting_until_ns is None:
            self.waiting_until_ns = self._clock.monotonic_ns() + WAITING_NS_MAX

    def _naming_operator(self, error: UsageError) -> UsageError:
        """Say where it happened, unless the message says so already."""
        place = f"operator {self.context.operator_id!r}"
        return error if place in str(error) else type(error)(f"{place}: {error}")

    def _user_error(self, error: BaseException, preview: str) -> UserFunctionError:
        context = self.context
        return UserFunctionError.of(error, context.operator_id, context.instance, preview)

    def _refuse_input(self) -> NoReturn:
        msg = f"{self._place} takes no rows this way"
        raise AssertionError(msg)


class TransformNode(Node):
    """A stateless operator."""

    def __init__(
        self,
        context: InstanceContext,
        worker: int,
        transform: Transform,
        output: Downstream,
        bounded: bool,
    ) -> None:
        super().__init__(context, worker)
        self._transform = transform.instance(bounded=bounded)
        self._output = output
        self.limits_waiting = not bounded
        self._passed_on_ns = WATERMARK_NONE

    def emit(self, batch: Batch) -> None:
        """Transform the batch and pass on what comes out of it."""
        with self.guard(batch):
            result = self._transform.apply(batch)
        self.metrics.rows_in += batch.num_rows
        self._pass_on(result)

    def advance(self, watermark_ns: int) -> None:
        """Pass a watermark on, unless rows are kept back; the next one covers it."""
        self.metrics.watermark_ns = watermark_ns
        if not self._transform.waiting_rows:
            self._passed_on_ns = watermark_ns
            self._output.advance(watermark_ns)

    def end(self) -> None:
        """Pass on what was kept back, and the end."""
        with self.guard():
            result = self._transform.finish()
        self._pass_on(result)
        self.ended = True
        self.metrics.watermark_ns = WATERMARK_END
        self._output.end()

    def pass_on_waiting(self) -> None:
        """See `Node.pass_on_waiting`; the watermark that waited with the rows follows them."""
        with self.guard():
            result = self._transform.finish()
        self._pass_on(result)
        if self.metrics.watermark_ns > self._passed_on_ns:
            self._passed_on_ns = self.metrics.watermark_ns
            self._output.advance(self._passed_on_ns)

    def _pass_on(self, result: Batch | None) -> None:
        self.metrics.buffered_rows = waiting = self._transform.waiting_rows
        self._note_waiting(waiting)
        if result is None:
            return
        self._columns = result.schema
        if result.num_rows:
            self.metrics.rows_out += result.num_rows
            self._output.emit(result)


class SinkNode(Node):
    """A sink's writer; nothing follows it."""

    def __init__(
        self, context: InstanceContext, worker: int, writer: SinkWriter, bounded: bool
    ) -> None:
        super().__init__(context, worker)
        self.metrics.latency = LatencyHistogram()
        self._writer = writer
        self._bounded = bounded

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
        """Publish the last part of an unbounded job; a bounded one waits for `stage`."""
        self.ended = True
        self.metrics.watermark_ns = WATERMARK_END
        if not self._bounded:
            self.publish_part()

    def publish_part(self) -> None:
        """See `Node.publish_part`."""
        with self.guard():
            self._writer.publish_part()

    def stage(self) -> Staged:
        """See `Node.stage`."""
        with self.guard():
            return self._writer.stage()

    def close(self) -> None:
        """Drop what was not published."""
        with self.guard():
            self._writer.abort()


class ProcessNode(Node):
    """A process or co-process at a stage's head: takes rows by port, in event-time order if asked.

    `outputs` is what follows each of its outputs. `buffer` is None where rows are handed over as
    they arrive.
    """

    def __init__(
        self,
        context: InstanceContext,
        worker: int,
        process: Process | CoProcess,
        outputs: Sequence[Downstream],
        buffer: EventTimeBuffer | None,
        ports: int,
        needs_times: bool,
        bounded: bool,
    ) -> None:
        super().__init__(context, worker)
        self._process = process
        self._downstream = outputs[MAIN] if len(outputs) == 1 else FanOut(outputs)
        self._buffer = buffer
        self._empty: list[Batch | None] = [None] * ports
        self._passed_on_ns = WATERMARK_NONE
        self._output = make_output(process, outputs, self.metrics, needs_times, bounded=bounded)
        self.limits_waiting = not bounded
        self._output.instances = context.instances
        self._one_by_one = process.one_by_one and buffer is None
        base = Process if isinstance(process, Process) else CoProcess
        self.is_polled = type(process).deadline_ns is not base.deadline_ns
        with self.guard():
            call_method(process.open, context)

    @property
    def columns(self) -> Mapping[int, Schema]:
        """The columns of what it emitted, or those that it declares."""
        return self._output.columns_of_each

    def accept(self, port: int, source: int, batch: Batch) -> None:
        """Take rows of producer `source` for all instances."""
        self._output.instances = self.context.instances
        self.metrics.rows_in += batch.num_rows
        self._take(port, source, batch)

    def accept_for(self, instance: int, port: int, source: int, batch: Batch) -> None:
        """Call a process with `one_by_one` for each instance; the rows are counted once."""
        if not self._one_by_one:
            super().accept_for(instance, port, source, batch)
            return
        self._output.instances = (instance,)
        if instance == self.context.instances[-1]:
            self.metrics.rows_in += batch.num_rows
        self._take(port, source, batch)

    def _take(self, port: int, source: int, batch: Batch) -> None:
        """Call the process, or let the rows wait for event time."""
        if self._empty[port] is None:
            self._empty[port] = Batch.empty(batch.schema)  # the first rows tell a port's columns
            self._output.know_inputs([known.schema for known in self._empty if known is not None])
        if self._buffer is not None:
            self._buffer.add(port, source, batch)
            return
        with self._output.during(common_time(batch), batch.origin_ns), self.guard(batch):
            self._call(port, batch)
        self._note_waiting(self._output.waiting_rows)

    def advance(self, watermark_ns: int) -> None:
        """Hand over the rows whose time has come, then the watermark.

        It is not passed on while the output keeps rows back; the next one covers it.
        """
        self._release(watermark_ns)
        self.metrics.watermark_ns = watermark_ns
        with self._output.during(watermark_ns, 0), self.guard():
            call_method(self._process.on_watermark, watermark_ns, self._output)
        self._note_waiting(self._output.waiting_rows)
        if not self._output.waiting_rows:
            self._passed_on_ns = watermark_ns
            self._downstream.advance(watermark_ns)

    def pass_on_waiting(self) -> None:
        """See `Node.pass_on_waiting`; the watermark that waited with the rows follows them."""
        self._output.finish()
        self._note_waiting(0)
        if self.metrics.watermark_ns > self._passed_on_ns:
            self._passed_on_ns = self.metrics.watermark_ns
            self._downstream.advance(self._passed_on_ns)

    def end(self) -> None:
        """Hand over all that is left and let the process close.

        What it emits then has the latest event time seen, but after the last watermark.
        """
        self._release(WATERMARK_END)
        self.ended = True
        last_ns = self._after_watermark()
        self.metrics.watermark_ns = WATERMARK_END
        with self._output.during(last_ns, 0), self.guard():
            call_method(self._process.close, self._output)
        self._output.finish()
        self._note_waiting(0)
        self._downstream.end()

    def due_ns(self, now_ns: int) -> int | None:
        """Return when the process' deadline is, monotonic ns."""
        if self.ended or not self.is_polled:
            return None
        deadline_ns = self._deadline_ns()
        return None if deadline_ns is None else now_ns + deadline_ns - self._clock.wall_ns()

    def poll(self, now_ns: int) -> bool:
        """Call the process if its deadline has passed; return whether it had."""
        deadline_ns = None if self.ended else self._deadline_ns()
        if deadline_ns is None:
            return False
        wall_ns = self._clock.wall_ns()
        if wall_ns < deadline_ns:
            return False
        with self._output.during(self._after_watermark(), 0), self.guard():
            call_method(self._process.on_deadline, wall_ns, self._output)
        self._note_waiting(self._output.waiting_rows)
        return True

    def _deadline_ns(self) -> int | None:
        """Return the process' deadline, ns since the epoch.

        Raises:
            UsageError: it is neither an integer nor None.
        """
        with self.guard():
            deadline_ns = self._process.deadline_ns()
            if deadline_ns is None:
                return None
            try:
                return operator.index(deadline_ns)
            except TypeError:
                msg = (
                    f"{type(self._process).__name__}.deadline_ns returned a"
                    f" {type(deadline_ns).__name__}: return an integer, ns since the epoch, or None"
                )
                raise UsageError(msg) from None

    def _after_watermark(self) -> int:
        """Return the latest event time seen, or a later one that no watermark has passed."""
        last_ns = self.metrics.watermark_ns
        if last_ns == WATERMARK_NONE:
            return last_ns
        return max(last_ns, self._passed_on_ns + 1)

    def update_metrics(self) -> None:
        """Count the rows that wait, and read the gauges of the buffer."""
        self.metrics.buffered_rows = self._output.waiting_rows
        if self._buffer is not None:
            self.metrics.buffered_rows += self._buffer.buffered_rows
            self.metrics.spilled_bytes = self._buffer.spilled_bytes

    def close(self) -> None:
        """Free the buffer."""
        if self._buffer is not None:
            self._buffer.close()

    def _release(self, watermark_ns: int) -> None:
        if self._buffer is None:
            return
        for released in self._buffer.release(watermark_ns):
            present = [batch for batch in released.ports if batch is not None]
            known = [batch.origin_ns for batch in present if batch.origin_ns]
            self.metrics.watermark_ns = max(self.metrics.watermark_ns, released.latest_ns)
            time_ns = common_time(present[0]) if len(present) == 1 else None
            with self._output.during(time_ns, min(known, default=0)), self.guard(*present):
                self._hand_over(released)

    def _hand_over(self, released: Released) -> None:
        process, ports = self._process, released.ports
        if isinstance(process, Process):
            assert ports[0] is not None
            self._call(0, ports[0])
            return
        left, right = (
            known if batch is None else batch
            for batch, known in zip(ports, self._empty, strict=True)
        )
        both = left is not None and right is not None
        if both or not process.takes_sides():
            # Of a port that has had no row yet the columns are not known.
            left, right = (
                Batch.empty(Schema(())) if batch is None else batch for batch in (left, right)
            )
            call_method(process.on_merged, left, right, released.order, self._output)
        elif left is not None:
            self._call(0, left)
        elif right is not None:
            self._call(1, right)

    def _call(self, port: int, batch: Batch) -> None:
        process = self._process
        if isinstance(process, Process):
            call = process.on_batch
        else:
            call = process.on_right if port else process.on_left
        call_method(call, batch, self._output)


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


def make_process(factory: Callable[[], object], outputs: tuple[str, ...]) -> Process | CoProcess:
    """Call what the user gave to `process`.

    Raises:
        TypeError: it makes something else now than while the topology was built, where its outputs
            had these names.
    """
    process = factory()
    if not isinstance(process, Process | CoProcess):
        msg = f"process() was given something that makes {type(process).__name__}, not a Process"
        raise TypeError(msg)
    if tuple(process.outputs) != outputs:
        msg = (
            f"{type(process).__name__} has the outputs {', '.join(process.outputs)} here, and had"
            f" {', '.join(outputs)} while the topology was built: make the same in both places"
        )
        raise TypeError(msg)
    return process


def _preview(batches: tuple[Batch, ...]) -> str:
    for batch in batches:
        if batch.num_rows:
            more = f" (first of {batch.num_rows} rows)" if batch.num_rows > 1 else ""
            return batch.preview(0) + more
    return "no rows"
