"""The operators of one stage as a worker runs them: each a node that takes batches and watermarks.

A node calls the user's code behind a guard: whatever it raises becomes an error that names the
operator, the instance and the row, with the user's own traceback first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from ..configs.errors import TopologyError, UsageError, UserFunctionError, WhaleError
from ..operators.process import CoProcess, InstanceContext, Output, Process, common_time
from ..operators.sinks.base import SinkWriter, Staged
from ..operators.transforms import RowFailure, Transform
from ..state.event_time_buffer import EventTimeBuffer, Released
from ..state.watermarks import WATERMARK_END, WATERMARK_NONE
from ..transport.clock import Clock
from ..transport.wire.batch import Batch
from ..transport.wire.types import Schema
from .flow import Downstream
from .metrics import InstanceMetrics, LatencyHistogram
from .row_gatherer import RowGatherer


class Node:
    """What all nodes share: identity, counters and the guard around user code."""

    def __init__(self, context: InstanceContext, worker: int) -> None:
        self.context = context
        self.metrics = InstanceMetrics(context.operator_id, context.instance, worker)
        self._clock: Clock = context.clock

    @contextmanager
    def guard(self, *batches: Batch) -> Iterator[None]:
        """Time the user's code and name the place of whatever it raises."""
        begin_ns = self._clock.monotonic_ns()
        try:
            yield
        except UsageError as error:
            raise self._naming_operator(error) from error
        except WhaleError:
            raise
        except RowFailure as failure:
            cause = failure.__cause__ or failure
            raise self._user_error(cause, failure.preview) from failure
        except Exception as error:
            raise self._user_error(error, _preview(batches)) from error
        finally:
            self.metrics.busy_ns += self._clock.monotonic_ns() - begin_ns

    def _naming_operator(self, error: UsageError) -> UsageError:
        """Say where it happened, unless the message says so already."""
        place = f"operator {self.context.operator_id!r}"
        return error if place in str(error) else type(error)(f"{place}: {error}")

    def _user_error(self, error: BaseException, preview: str) -> UserFunctionError:
        context = self.context
        return UserFunctionError.of(error, context.operator_id, context.instance, preview)


class TransformNode(Node):
    """A stateless operator; a `Downstream`."""

    def __init__(
        self, context: InstanceContext, worker: int, transform: Transform, output: Downstream
    ) -> None:
        super().__init__(context, worker)
        self._transform = transform
        self._output = output

    def emit(self, batch: Batch) -> None:
        """Transform the batch and pass on what comes out of it."""
        with self.guard(batch):
            result = self._transform.apply(batch)
        self.metrics.rows_in += batch.num_rows
        if result is not None and result.num_rows:
            self.metrics.rows_out += result.num_rows
            self._output.emit(result)

    def advance(self, watermark_ns: int) -> None:
        """Pass a watermark on."""
        self.metrics.watermark_ns = watermark_ns
        self._output.advance(watermark_ns)

    def end(self) -> None:
        """Pass the end on."""
        self.metrics.watermark_ns = WATERMARK_END
        self._output.end()


class SinkNode(Node):
    """A sink's writer; a `Downstream` that nothing follows."""

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
        self.metrics.watermark_ns = WATERMARK_END
        if not self._bounded:
            self.publish_part()

    def publish_part(self) -> None:
        """Make the rows since the last part visible."""
        with self.guard():
            self._writer.publish_part()

    def stage(self) -> Staged:
        """Finish the output for the coordinator."""
        with self.guard():
            return self._writer.stage()

    def close(self) -> None:
        """Drop what was not published."""
        self._writer.abort()


class ProcessNode(Node):
    """A process or co-process at a stage's head: takes rows by port, in event-time order if asked.

    `buffer` is None where rows are handed over as they arrive.
    """

    def __init__(
        self,
        context: InstanceContext,
        worker: int,
        process: Process | CoProcess,
        output: Downstream,
        buffer: EventTimeBuffer | None,
        ports: int,
        needs_times: bool,
    ) -> None:
        super().__init__(context, worker)
        self._process = process
        self._downstream = output
        self._buffer = buffer
        self._empty: list[Batch | None] = [None] * ports
        self._output = ProcessOutput(output, self.metrics, needs_times, process.schema)
        with self.guard():
            process.open(context)

    def accept(self, port: int, source: int, batch: Batch) -> None:
        """Take rows of producer `source`; a port's first rows tell its schema."""
        self.metrics.rows_in += batch.num_rows
        if self._empty[port] is None:
            self._empty[port] = Batch.empty(batch.schema)
        if self._buffer is not None:
            self._buffer.add(port, source, batch)
            return
        with self._output.during(common_time(batch), batch.origin_ns), self.guard(batch):
            self._call(port, batch)

    def advance(self, watermark_ns: int) -> None:
        """Hand over the rows whose time has come, then the watermark."""
        self._release(watermark_ns)
        self.metrics.watermark_ns = watermark_ns
        with self._output.during(watermark_ns, 0), self.guard():
            self._process.on_watermark(watermark_ns, self._output)
        self._downstream.advance(watermark_ns)

    def end(self) -> None:
        """Hand over all that is left and let the process close."""
        self._release(WATERMARK_END)
        last_ns = self.metrics.watermark_ns
        self.metrics.watermark_ns = WATERMARK_END
        with self._output.during(last_ns, 0), self.guard():
            self._process.close(self._output)
        self._output.finish()
        self._downstream.end()

    def update_metrics(self) -> None:
        """Bring the gauges of the buffer up to date."""
        if self._buffer is not None:
            self.metrics.buffered_rows = self._buffer.buffered_rows
            self.metrics.spilled_bytes = self._buffer.spilled_bytes

    def close(self) -> None:
        """Free the buffer."""
        if self._buffer is not None:
            self._buffer.close()

    def _release(self, watermark_ns: int) -> None:
        released = self._buffer.release(watermark_ns) if self._buffer is not None else None
        if released is None:
            return
        present = [batch for batch in released.ports if batch is not None]
        origin_ns = max(batch.origin_ns for batch in present)
        self.metrics.watermark_ns = max(self.metrics.watermark_ns, released.latest_ns)
        time_ns = common_time(present[0]) if len(present) == 1 else None
        with self._output.during(time_ns, origin_ns), self.guard(*present):
            self._hand_over(released)

    def _hand_over(self, released: Released) -> None:
        process, ports = self._process, released.ports
        if isinstance(process, Process):
            assert ports[0] is not None
            process.on_batch(ports[0], self._output)
            return
        left, right = (
            known if batch is None else batch
            for batch, known in zip(ports, self._empty, strict=True)
        )
        if left is not None and right is not None:
            process.on_merged(left, right, released.order, self._output)
        elif left is not None:  # the other port's schema is not known yet
            process.on_left(left, self._output)
        elif right is not None:
            process.on_right(right, self._output)

    def _call(self, port: int, batch: Batch) -> None:
        process = self._process
        if isinstance(process, Process):
            process.on_batch(batch, self._output)
        elif port == 0:
            process.on_left(batch, self._output)
        else:
            process.on_right(batch, self._output)


class ProcessOutput(Output):
    """Stamps what a process emits with a time and an origin, and passes it on.

    Rows that are emitted one by one are gathered and passed on together when the call returns.
    `needs_times` says whether anything downstream uses event times.
    """

    def __init__(
        self,
        downstream: Downstream,
        metrics: InstanceMetrics,
        needs_times: bool,
        schema: Schema | None,
    ) -> None:
        self._downstream = downstream
        self._metrics = metrics
        self._needs_times = needs_times
        self._rows = RowGatherer(metrics.operator_id, schema)
        self._origin_ns = 0

    @contextmanager
    def during(self, time_ns: int | None, origin_ns: int) -> Iterator[None]:
        """Set what emitted rows get; pass on what was gathered when the block ends in order."""
        self.time_ns = None if time_ns in (WATERMARK_NONE, WATERMARK_END) else time_ns
        self._origin_ns = origin_ns
        yield
        self._flush()

    def emit(
        self, batch: Batch | Mapping[str, Any], times: npt.NDArray[np.int64] | None = None
    ) -> None:
        """See `Output.emit`."""
        self._flush()
        rows = batch if isinstance(batch, Batch) else Batch.from_pydict(dict(batch))
        if rows.num_rows == 0:
            return
        if times is None and not rows.has_times:
            time_ns = self._time()
            if time_ns is not None:
                times = np.full(rows.num_rows, time_ns, dtype=np.int64)
        self._pass_on(rows if times is None else rows.with_times(times))

    def emit_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """See `Output.emit_rows`."""
        if not rows:
            return
        time_ns = self._time()
        if self._rows.add(rows, time_ns):
            self._flush()

    def finish(self) -> None:
        """Pass on what was held back until its columns' types were known."""
        self._flush(final=True)

    def _flush(self, final: bool = False) -> None:
        batch = self._rows.take(final)
        if batch is not None:
            self._pass_on(batch)

    def _pass_on(self, rows: Batch) -> None:
        if not rows.origin_ns and self._origin_ns:
            rows = rows.with_origin(self._origin_ns)
        self._metrics.rows_out += rows.num_rows
        self._downstream.emit(rows)

    def _time(self) -> int | None:
        if self.time_ns is None and self._needs_times:
            msg = (
                f"operator {self._metrics.operator_id!r} emitted rows without event times while "
                "its input has several: pass times=, set out.time_ns, or define the row method "
                "(on_row, on_left_row, on_right_row), whose output takes the row's own time"
            )
            raise TopologyError(msg)
        return self.time_ns


@contextmanager
def naming_user_errors(context: InstanceContext) -> Iterator[None]:
    """Turn what a user's source, factory or sink raises while opening into a named error."""
    try:
        yield
    except WhaleError:
        raise
    except Exception as error:
        raise UserFunctionError.of(
            error, context.operator_id, context.instance, "none yet"
        ) from error


def make_process(factory: Callable[[], object]) -> Process | CoProcess:
    """Call what the user gave to `process`; raises TypeError if it makes something else."""
    process = factory()
    if not isinstance(process, Process | CoProcess):
        msg = f"process() was given something that makes {type(process).__name__}, not a Process"
        raise TypeError(msg)
    return process


def _preview(batches: tuple[Batch, ...]) -> str:
    for batch in batches:
        if batch.num_rows:
            more = f" (first of {batch.num_rows} rows)" if batch.num_rows > 1 else ""
            return batch.preview(0) + more
    return "no rows"
