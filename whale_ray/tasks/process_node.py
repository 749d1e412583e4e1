"""A process or co-process as a worker runs it: rows by port, watermarks, deadlines, the end."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ..configs.errors import InputError, UsageError
from ..operators.groupings import Grouping
from ..operators.keyed.keyed_process import Keyed, KeyedProcess
from ..operators.portions import EmitsInPortions
from ..operators.process import CoProcess, InstanceContext, Process, call_method, common_time
from ..operators.snapshots import OperatorSnapshot, StateChunk
from ..plan.logical import MAIN
from ..state.event_time_buffer import EventTimeBuffer, Released
from ..state.watermarks import WATERMARK_END, WATERMARK_NONE
from ..transport.wire.batch import Batch
from ..transport.wire.types import Schema
from .flow import Downstream, FanOut
from .gathered_rows import GatheredRows
from .nodes import Node
from .predecessors import Predecessors
from .process_output import make_output
from .process_state import ProcessState, divided_rows

if TYPE_CHECKING:
    from ..operators.keyed.stored_parts import StoredParts

_LAST = object()


class ProcessNode(Node):
    """A process or co-process at a stage's head: takes rows by port, in event-time order if asked.

    `outputs` is what follows each of its outputs. `buffer` is None where rows are handed over as
    they arrive. `remake` makes another object of the process, `groupings` are those of its inputs,
    by port, and `checkpoints` says whether the job has any.
    """

    def __init__(
        self,
        context: InstanceContext,
        worker: int,
        process: Process | CoProcess,
        outputs: Sequence[Downstream],
        buffer: EventTimeBuffer | None,
        needs_times: bool,
        bounded: bool,
        *,
        remake: Callable[[], Process | CoProcess],
        groupings: Sequence[Grouping],
        checkpoints: bool = False,
    ) -> None:
        super().__init__(context, worker)
        self._process = process
        self._downstream = outputs[MAIN] if len(outputs) == 1 else FanOut(outputs)
        self._buffer = buffer
        self.keeps_views = buffer is not None
        self._groupings = tuple(groupings)
        self._empty: list[Batch | None] = [None] * len(groupings)
        self._passed_on_ns = WATERMARK_NONE
        self._idle = False
        self._portions: Iterator[None] | None = None
        self._time_ns = WATERMARK_NONE  # of the rows of these portions
        self._go_on_behind = self._pass_watermark_on
        self._not_ordered: list[tuple[int, Batch]] = []  # waited before a restore, and need not now
        self._gathered = GatheredRows()
        self._output = make_output(process, outputs, self.metrics, needs_times, bounded=bounded)
        self.limits_waiting = not bounded
        self._output.instances = context.instances
        self._one_by_one = process.one_by_one and buffer is None
        base = Process if isinstance(process, Process) else CoProcess
        self.is_polled = type(process).deadline_ns is not base.deadline_ns
        with self.guard():
            call_method(process.open, context)
            self._state = ProcessState(process, context, remake, checkpoints=checkpoints)

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
            self._output.set_input_schemas(
                [known.schema for known in self._empty if known is not None]
            )
        gathers = self._bytes_gathered_max > 0 or self._gathered.due_ns is not None
        if gathers:
            if not self._gathered.fits(batch):
                self._take_gathered()
            now_ns, kept = self._clock.monotonic_ns(), self._buffer is not None
            self._gathered.add(batch, now_ns, kept=kept)
        if self._buffer is not None:
            self._buffer.add(port, source, batch)
        elif not gathers:
            self._take_now(port, batch)
        elif not self._may_gather:
            self._take_or_put_off()

    def _take_now(self, port: int, batch: Batch) -> None:
        with self._output.during(common_time(batch), batch.origin_ns), self.guard(batch):
            self._call(port, batch)
        self._note_waiting(self._output.waiting_rows)

    @property
    def _bytes_gathered_max(self) -> int:
        """How many bytes of rows are gathered for a pass over the state; 0 if none are."""
        parts = self._stored_parts
        return 0 if parts is None else parts.bytes_gathered_max

    @property
    def _stored_parts(self) -> StoredParts | None:
        return self._process.stored_parts if isinstance(self._process, KeyedProcess) else None

    @property
    def _may_gather(self) -> bool:
        """Whether what has been gathered may wait for more."""
        return self._gathered.waits(self._clock.monotonic_ns(), self._bytes_gathered_max)

    def _take_or_put_off(self) -> None:
        """Hand over what was gathered, or let it wait on the disk if it may wait any longer."""
        parts, is_due = self._stored_parts, self._gathered.is_due(self._clock.monotonic_ns())
        if is_due or parts is None or not self._gathered.put_off(parts.put_off):
            self._take_gathered()

    def _take_gathered(self) -> None:
        """Hand over the rows that were gathered, then the watermark that came with them."""
        if self._gathered.due_ns is None:
            return
        begin_ns = self._clock.monotonic_ns()
        rows, watermark_ns = self._gathered.give_back()
        if rows is not None:
            self._take_now(0, rows)
        if watermark_ns is not None:
            self._advance(watermark_ns)
        self._gathered.note_pass(self._clock.monotonic_ns() - begin_ns)

    def empty_for_marker(self) -> None:
        """See `Node.empty_for_marker`: so what was gathered is not in checkpoints."""
        self._take_gathered()

    def own(self) -> None:
        """See `Node.own`: rows that wait for event time."""
        if self._buffer is not None:
            self._buffer.own()

    def advance(self, watermark_ns: int) -> None:
        """Hand over the rows whose time has come, then the watermark.

        It is not passed on while the output keeps rows back; the next one covers it. It waits while
        rows are gathered.
        """
        if self._gathered.due_ns is None:
            self._advance(watermark_ns)
            return
        self._gathered.hold(watermark_ns)
        if not self._may_gather:
            self._take_gathered()

    def _advance(self, watermark_ns: int) -> None:
        self._release(watermark_ns)
        self.metrics.watermark_ns = watermark_ns
        if isinstance(self._process, EmitsInPortions):
            portions = self._process.portions(watermark_ns, self._output)
            self._begin(portions, watermark_ns, self._pass_watermark_on)
            return
        with self._output.during(watermark_ns, 0), self.guard():
            call_method(self._process.on_watermark, watermark_ns, self._output)
        self._pass_watermark_on()

    def _pass_watermark_on(self) -> None:
        self._note_waiting(self._output.waiting_rows)
        if not self._output.waiting_rows:
            self._passed_on_ns = self.metrics.watermark_ns
            self._downstream.advance(self._passed_on_ns)

    def _begin(self, portions: Iterator[None], time_ns: int, behind: Callable[[], None]) -> None:
        """Emit the first of some portions; `behind` follows the last one."""
        self._portions, self._time_ns, self._go_on_behind = portions, time_ns, behind
        self.has_more = True
        self.go_on()

    def go_on(self) -> None:
        """See `Node.go_on`."""
        assert self._portions is not None
        with self._output.during(self._time_ns, 0), self.guard():
            self.has_more = next(self._portions, _LAST) is not _LAST
        if not self.has_more:
            self._portions = None
            self._go_on_behind()

    def set_idle(self, idle: bool) -> None:
        """Pass on whether its inputs are idle, unless rows are kept back: they come before."""
        self._idle = idle
        self._take_gathered()
        if not self._output.waiting_rows:
            self._downstream.set_idle(idle)

    def pass_on_waiting(self) -> None:
        """See `Node.pass_on_waiting`; the watermark that waited with the rows follows them."""
        self._finish(self.metrics.watermark_ns)
        if self._idle:
            self._downstream.set_idle(True)

    def _finish(self, watermark_ns: int) -> None:
        """Pass on rows that the output keeps back, then the watermark that waited with them."""
        self._output.finish()
        self._note_waiting(0)
        # Of a restored node that had ended before it is the end, which follows.
        if self._passed_on_ns < watermark_ns < WATERMARK_END:
            self._passed_on_ns = watermark_ns
            self._downstream.advance(watermark_ns)

    def end(self) -> None:
        """Hand over all that is left and let the process close.

        What it emits then has the latest event time seen, but after the last watermark.
        """
        self._take_gathered()
        self._release(WATERMARK_END)
        watermark_ns, last_ns = self.metrics.watermark_ns, self._after_watermark()
        self.metrics.watermark_ns = WATERMARK_END
        end = partial(self._end, watermark_ns)
        if isinstance(self._process, EmitsInPortions):
            self._begin(self._process.portions(None, self._output), last_ns, end)
            return
        with self._output.during(last_ns, 0), self.guard():
            call_method(self._process.close, self._output)
        end()

    def _end(self, watermark_ns: int) -> None:
        """Pass on the end, behind all that the process has emitted, and the last watermark."""
        self.ended = True
        self._finish(watermark_ns)
        self._downstream.end()

    def due_ns(self, now_ns: int) -> int | None:
        """Return when the process' deadline is, monotonic ns."""
        if self.ended or not self.is_polled:
            return None
        deadline_ns, gathered_ns = self._deadline_ns(), self._gathered.due_ns
        if deadline_ns is None:
            return gathered_ns
        own_ns = now_ns + deadline_ns - self._clock.wall_ns()
        return own_ns if gathered_ns is None else min(own_ns, gathered_ns)

    def poll(self, now_ns: int) -> bool:
        """Take rows that were gathered long enough; call the process if its deadline has passed.

        Returns: whether it did anything.
        """
        if (gathered_ns := self._gathered.due_ns) is not None and gathered_ns <= now_ns:
            self._take_gathered()
            return True
        deadline_ns = None if self.ended else self._deadline_ns()
        if deadline_ns is None:
            return False
        wall_ns = self._clock.wall_ns()
        if wall_ns < deadline_ns:
            return False
        if self._gathered.are_put_off:  # where they wait depends on what records there are
            self._take_gathered()
        with self._output.during(self._after_watermark(), 0), self.guard():
            call_method(self._process.on_deadline, wall_ns, self._output)
        self._note_waiting(self._output.waiting_rows)
        return True

    def _deadline_ns(self) -> int | None:
        """Return the process' deadline, ns since 1970.

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
                    f" {type(deadline_ns).__name__}: return an integer, ns since 1970, or None"
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
        self.metrics.buffered_rows = self._output.waiting_rows + self._gathered.rows
        self.metrics.spilled_bytes = self.context.state_budget.spilled_by(self.context.operator_id)
        if self._buffer is not None:
            self.metrics.buffered_rows += self._buffer.buffered_rows
            self.metrics.spilled_bytes += self._buffer.spilled_bytes

    def snapshot(self, epoch: int) -> OperatorSnapshot:
        """See `Node.snapshot`: its state, and rows that wait before and after it."""
        kept = super().snapshot(epoch)
        values = {
            **kept.values,
            "passed_on_ns": self._passed_on_ns,
            "ports": [None if known is None else known.schema for known in self._empty],
            "output": self._output.kept(),
        }
        if self.ended:
            return replace(kept, values=values)
        with self.guard():
            chunks, beside, survivor = self._state.kept(epoch)
        waiting = () if self._buffer is None else self._buffer.waiting()
        rows = [StateChunk(batches, waits=(port, source)) for port, source, batches in waiting]
        values |= {"beside": beside, "state_chunks": len(chunks), "by_key": self._state.by_key}
        return replace(kept, chunks=(*chunks, *rows), values=values, survivor=survivor)

    def restore(self, before: Predecessors) -> None:
        """See `Node.restore`."""
        super().restore(before)
        self._passed_on_ns = before.least("passed_on_ns")
        for port, _ in enumerate(self._empty):
            known = (one.values["ports"][port] for one in (*before.dealt, *before.sources))
            schema = next(filter(None, known), None)
            self._empty[port] = None if schema is None else Batch.empty(schema)
        self._output.set_input_schemas([known.schema for known in self._empty if known is not None])
        self._output.restore(
            [one.values["output"] for one in before.dealt],
            [one.values["output"] for one in before.sources],
        )
        self._note_waiting(self._output.waiting_rows)
        if self.ended:
            return
        with self.guard():
            self._state.restore(before)
        for port, source, batch in divided_rows(before, self.context, self._groupings):
            if self._buffer is not None:
                self._buffer.add(port, source, batch)
            else:
                self._not_ordered.append((port, batch))

    def resume(self) -> None:
        """See `Node.resume`."""
        if self.ended:
            self._downstream.end()
        elif self._passed_on_ns > WATERMARK_NONE:
            self._downstream.advance(self._passed_on_ns)
        for port, batch in self._not_ordered:
            self._take_now(port, batch)
        self._not_ordered.clear()

    def close(self) -> None:
        """Free the buffer."""
        if self._buffer is not None:
            self._buffer.close()

    def _release(self, watermark_ns: int) -> None:
        for released in self._due(watermark_ns):
            present = [batch for batch in released.ports if batch is not None]
            known = [batch.origin_ns for batch in present if batch.origin_ns]
            self.metrics.watermark_ns = max(self.metrics.watermark_ns, released.latest_ns)
            time_ns = common_time(present[0]) if len(present) == 1 else None
            with self._output.during(time_ns, min(known, default=0)), self.guard(*present):
                self._hand_over(released)

    def _due(self, watermark_ns: int) -> Iterator[Released]:
        """Yield the rows whose time has come.

        Raises:
            InputError: rows that came before, perhaps before a restore, have columns of other
                types than those after them.
        """
        if self._buffer is None:
            return
        try:
            yield from self._buffer.release(watermark_ns)
        except InputError as error:
            raise self._naming_operator(error) from error

    def _hand_over(self, released: Released) -> None:
        process, ports = self._process, released.ports
        if isinstance(process, Process):
            assert ports[0] is not None
            self._call(0, ports[0])
            return
        if isinstance(process, Keyed):
            for port, batch in enumerate(ports):
                if batch is not None:
                    process.learn_keys(batch, port)
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
        if isinstance(process, Keyed):
            process.learn_keys(batch, port)
        if isinstance(process, KeyedProcess):
            call = process.take_rows
        elif isinstance(process, Process):
            call = process.on_batch
        else:
            call = process.on_right if port else process.on_left
        call_method(call, batch, self._output)


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
