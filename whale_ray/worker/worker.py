"""A worker: one loop that moves rows from its input rings through its operators to its outputs.

::

    open()            a host's first worker makes its board of doorbells and watermarks
    link(boards)      make the rings it writes; open its sources, operators and sinks, maybe at
                      an epoch that they resume from
    connect(offers)   attach the rings it reads
    run()             until all its inputs have ended and all its output is in the rings
    stage()           finish the files of its sinks
    close()           give everything back

Every step takes what the step before it returned on all workers.

Each turn of the loop takes at most one frame from every ring and one batch from every source, hands
it through the operators, and sends what is due. While a stage waits for the marker of a checkpoint,
sources, and stages that have passed it on, are read only in turns in which no ring had a frame for
it. When a turn moved nothing, the worker sleeps on its doorbell until somebody rings or something
falls due (Slash 4.4.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..configs.errors import AttemptLostError
from ..configs.temporary_folder import check_spill_directory
from ..metrics.counters import MemberCounters
from ..multicast.tree_messages import SendersEnded, SetAddressing
from ..operators.sinks.base import Staged
from ..plan.assignment import Assignment, job_is_bounded
from ..plan.logical import OutputKey
from ..plan.physical import watermark_slots
from ..state.budget import StateBudget
from ..state.epochs.epoch_commands import EpochCommand, RestorePoint
from ..tasks.edge_reader import EdgeReader
from ..tasks.reader_builder import ReaderBuilder
from ..tasks.stage_task import StageTask
from ..tasks.task_builder import TaskBuilder
from ..transport.clock import Clock, SystemClock
from ..transport.closing import close_all
from ..transport.handles import BoardHandle
from ..transport.wire import codec
from ..transport.wire.types import Schema
from .custom_transports import POLL_NS, CustomTransports
from .limit_slices import LimitSlices
from .offers import RingOffer
from .rings import RingSet
from .stage_meter import stage_meter
from .staged_output import StagedOutput
from .transport_operators import ReceiverOperator, SenderOperator
from .worker_checkpoints import WorkerCheckpoints
from .worker_counters import WorkerCounters
from .worker_epochs import WorkerEpochs

Report = Callable[[int, object], None]
"""Sends content to the controller unasked, from any thread: called with the attempt and it."""


class Worker:
    """Worker `index` of a job, for one attempt after the other.

    The steps and `close` are called from one thread; `drain`, `abort`, `report` and
    `counters` from any. `report` sends the controller what it has not asked for; None drops it.
    """

    def __init__(
        self, index: int, assignment: Assignment, clock: Clock, report: Report | None = None
    ) -> None:
        self._report: Report = report or _drop_report
        self._index = index
        self._assignment = assignment
        self._clock = clock
        self._bounded = job_is_bounded(assignment)
        self._attempt = -1
        self._rings: RingSet | None = None
        self._tasks: list[StageTask] = []
        self._readers: list[EdgeReader | ReceiverOperator | SenderOperator] = []
        self._aborted = -1
        self._drained = -1
        self._draining = False
        self._next_part_ns = 0
        runtime = assignment.settings.runtime
        self._state_budget = StateBudget(
            runtime.state_bytes, runtime.spill_bytes_max, runtime.spill_directory
        )
        self._checkpoints = WorkerCheckpoints(
            assignment, index, self._state_budget, self.report, self._wake
        )
        self._epochs: WorkerEpochs | None = None  # of the attempt
        self._addressing: str = assignment.settings.runtime.addressing
        self._meter = stage_meter(measures=runtime.meter_stages or runtime.adapt)
        self._counters = WorkerCounters(index, clock, self._meter, self._wake)

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"worker {self._index}"

    @property
    def attempt(self) -> int:
        """The attempt that it is in; −1 before the first."""
        return self._attempt

    def open(self, attempt: int) -> BoardHandle | None:
        """Begin an attempt; whatever an earlier one left is closed.

        Raises:
            ResourceError: `runtime.spill_directory` takes no files.
        """
        self.close()
        check_spill_directory(self._assignment.settings.runtime.spill_directory)
        self._attempt = attempt
        self._draining = False
        slots = len(watermark_slots(self._assignment.plan))
        self._rings = RingSet(self._assignment, self._index, attempt, slots, self._clock)
        return self._rings.board.make()

    def link(
        self,
        attempt: int,
        boards: tuple[BoardHandle | None, ...],
        restore: RestorePoint | None = None,
    ) -> RingOffer:
        """Make the rings that this worker writes, and open its sources, operators and sinks.

        With `restore` they resume from an epoch. Its manifest is read, and state that this worker
        did not keep itself.

        Raises:
            DamagedCheckpointError: the manifest, or a file that it names, is missing or damaged.
            InputError: the folder of checkpoints cannot be read, or a source cannot continue.
            UsageError: state cannot be divided among the instances that there are.
        """
        rings = self._opened
        codec.warm_up()  # compiled now, or loaded, rather than at the first row
        self._checkpoints.warm_up()
        offer = rings.make_rings(boards)
        self._tasks = TaskBuilder(
            self._assignment,
            self._index,
            attempt,
            self._clock,
            rings.out_rings,
            self._state_budget,
            self._checkpoints.restore(restore),
        ).build()
        self._counters.follow(self._tasks, rings)
        self._apply_addressing()
        return offer

    def connect(self, attempt: int, offers: tuple[RingOffer, ...]) -> None:
        """Attach the rings that the other workers (and this one) write for this worker."""
        rings = self._opened
        rings.attach_rings(offers)
        plan = self._assignment.plan
        self._epochs = self._checkpoints.begin(attempt, self._tasks)
        stages = {} if self._epochs is None else self._epochs.by_stage
        builder = ReaderBuilder(plan, attempt, self._tasks, stages)
        self._readers = [builder.of_ring(ring, channel) for ring, channel in rings.in_channels]
        self._readers += self._transport_operators(rings.transports, builder)
        for task in self._tasks:
            task.begin(rings.board.board)
        rings.board.wake()  # loads the compiled function before the first command needs it

    def _transport_operators(
        self, transports: CustomTransports, builder: ReaderBuilder
    ) -> Iterator[ReceiverOperator | SenderOperator]:
        silence_ns = self._assignment.settings.transport.silence_timeout_ms * 1_000_000
        for group, receiver in transports.receivers:
            readers = {stream.id: builder.of_stream(stream, receiver) for stream in group}
            yield ReceiverOperator(receiver, readers, silence_ns)
        for stream, sender in transports.senders:
            mine = (writer for task in self._tasks for writer in task.writers)
            yield SenderOperator(sender, [one for one in mine if one.edge.id == stream.edge])

    def run(
        self, attempt: int, _connected: tuple[object, ...] = (), budget_ns: int | None = None
    ) -> MemberCounters | None:
        """Work until everything has ended; return the final counters.

        With `budget_ns`, return None when that much time has passed before.
        """
        stop_at_ns = None if budget_ns is None else self._clock.monotonic_ns() + budget_ns
        transports = self._opened.transports
        self._meter.begin()
        try:
            while not (
                all(task.done for task in self._tasks)
                and transports.ended
                and self._checkpoints.are_complete
            ):
                now_ns = self._clock.monotonic_ns()
                if stop_at_ns is not None and now_ns >= stop_at_ns:
                    return None
                self._apply_pending_commands(attempt)
                self._counters.begin_turn(now_ns)
                if not self._turn(now_ns):
                    self._sleep(now_ns, stop_at_ns)
                    self._counters.sleep_from(now_ns)
        finally:
            self._counters.end_turns()
        return self._counters.last(attempt)

    def stage(self, attempt: int, _finals: tuple[object, ...] = ()) -> StagedOutput:
        """Finish the output of its sinks."""
        nodes = [node for task in self._tasks for node in task.nodes]
        cut_short = any(node.cut_short for node in nodes)
        if not self._bounded:
            return StagedOutput({}, cut_short)
        parts: dict[str, list[Staged]] = {}
        columns: dict[OutputKey, Schema] = {}
        for node in nodes:
            part = node.stage()
            if part is not None:
                parts.setdefault(node.context.operator_id, []).append(part)
            for output, schema in node.columns.items():
                columns[node.context.operator_id, output] = schema
        return StagedOutput(parts, cut_short, columns)

    def drain(self, attempt: int) -> None:
        """Let the sources end where they are; everything read so far is still processed."""
        self._drained = attempt
        self._wake()

    def finish(self, attempt: int) -> None:
        """Do nothing: a worker knows by itself when everything has ended."""

    def tell(self, attempt: int, content: object) -> None:
        """Take a message of the controller: of epochs, slices, addressing, what senders sent."""
        if attempt != self._attempt:
            return
        if isinstance(content, SendersEnded):
            for reader in self._readers:
                if isinstance(reader, ReceiverOperator):
                    reader.expect(content.messages)
            return
        if isinstance(content, EpochCommand):
            if self._epochs is not None:
                self._epochs.queue_command(content)
                self._wake()
            return
        if isinstance(content, LimitSlices):
            self._limit_slices(content)
            return
        assert isinstance(content, SetAddressing)
        self.set_addressing(content.addressing)

    def report(self, attempt: int, content: object) -> None:
        """Tell the controller something that it has not asked for, in an attempt."""
        self._report(attempt, content)

    def abort(self, attempt: int) -> None:
        """End the attempt as soon as the loop gets its turn."""
        self._aborted = attempt
        self._wake()

    def set_addressing(self, addressing: str) -> None:
        """Use another addressing from each producer's next slice on, and in later attempts.

        The plan must have the rings for it: the job began with instance-oriented addressing.
        """
        self._addressing = addressing
        self._apply_addressing()

    def _limit_slices(self, content: LimitSlices) -> None:
        for task in self._tasks:
            for writer in task.writers:
                limits = content.by_edge.get(writer.edge.id)
                if limits is not None:
                    writer.limit_slices(limits)

    def _apply_addressing(self) -> None:
        for task in self._tasks:
            for writer in task.writers:
                writer.set_addressing(self._addressing)

    def counters(self) -> MemberCounters:
        """Return the counters of all local operators; see `WorkerCounters`."""
        return self._counters.read(self._attempt)

    def close(self) -> None:
        """Give back rings, files and whatever was not published."""
        closings = [self._checkpoints.close, *(task.close for task in self._tasks)]
        if self._rings is not None:
            closings.append(self._rings.close)
        self._tasks, self._readers, self._rings = [], [], None
        self._counters.follow((), None)
        self._epochs = None
        close_all(closings)

    @property
    def _opened(self) -> RingSet:
        assert self._rings is not None, "open() comes first"
        return self._rings

    def _wake(self) -> None:
        rings = self._rings
        if rings is not None:
            rings.board.wake()

    def _apply_pending_commands(self, attempt: int) -> None:
        """Do what `abort` or `drain`, called from another thread, asked for since the last turn."""
        if self._aborted >= attempt:
            msg = "the attempt was aborted"
            raise AttemptLostError(msg)
        if self._drained >= attempt and not self._draining:
            self._draining = True
            for task in self._tasks:
                task.drain()

    def _turn(self, now_ns: int) -> bool:
        """Give every reader, task and writer one turn; return whether anything moved."""
        self._opened.limit_in_flight(now_ns)
        if self._epochs is not None:
            self._epochs.turn_between_frames(now_ns)
        progress, rings_first = self._read_rings(now_ns)
        if self._epochs is not None:
            progress |= self._epochs.turn(now_ns)
        for task in self._tasks:
            moved = not (rings_first and task.reads) and task.poll(now_ns)
            for writer in task.writers:
                moved |= writer.pump(now_ns)
            if moved:
                self._meter.charge(task.stage.id)
                progress = True
        if not self._bounded:
            self._publish_parts(now_ns)
        return progress

    def _read_rings(self, now_ns: int) -> tuple[bool, bool]:
        """Take a frame from every ring; return whether any was there, and any that comes first.

        A marker waits behind what is in its ring, so that goes first. Stages that have passed
        theirs on read only if there was none: their rows would keep markers elsewhere waiting.
        """
        epochs = self._epochs
        progress = rings_first = False
        behind = list[EdgeReader]()
        for reader in self._readers:
            if (
                epochs is not None
                and epochs.has_passed_on(reader.stage)
                and isinstance(reader, EdgeReader)  # others also send, or keep what comes
            ):
                behind.append(reader)
            elif self._poll(reader, now_ns):
                progress = True
                rings_first |= epochs is not None and epochs.comes_first(reader.stage)
        if not rings_first:
            for reader in behind:
                progress |= self._poll(reader, now_ns)
        return progress, rings_first

    def _poll(self, reader: EdgeReader | ReceiverOperator | SenderOperator, now_ns: int) -> bool:
        if not reader.poll(now_ns):
            return False
        self._meter.charge(reader.stage)
        if self._epochs is not None:
            self._epochs.turn_between_frames(now_ns)
        return True

    def _publish_parts(self, now_ns: int) -> None:
        if now_ns < self._next_part_ns:
            return
        interval_ns = self._assignment.settings.runtime.commit_interval_ms * 1_000_000
        if self._next_part_ns:
            for task in self._tasks:
                for node in task.nodes:
                    node.publish_part()
        self._next_part_ns = now_ns + interval_ns

    def _sleep(self, now_ns: int, stop_at_ns: int | None) -> None:
        """Sleep until the doorbell rings or something falls due."""
        timeout_ns = self._timeout_ns(now_ns, stop_at_ns)
        if timeout_ns <= 0:
            return
        for reader in self._readers:
            reader.check_alive()
        if isinstance(self._clock, SystemClock):
            self._opened.board.sleep(timeout_ns, self._has_work)
        elif self._checkpoints.is_writing:
            self._checkpoints.wait()
        else:
            self._clock.sleep_ns(timeout_ns)

    def _timeout_ns(self, now_ns: int, stop_at_ns: int | None) -> int:
        """Return how long to sleep: until the first thing falls due that nobody rings for."""
        transport = self._assignment.settings.transport
        due = [now_ns + int(transport.doorbell_timeout_ms * 1e6)]
        if stop_at_ns is not None:
            due.append(stop_at_ns)
        if self._opened.transports.needs_polling:
            due.append(now_ns + POLL_NS)
        for task in self._tasks:
            due.extend(task.deadlines_ns(now_ns))
        return max(min(due) - now_ns, 0)

    def _has_work(self) -> bool:
        """Whether a command or a frame has come since the last turn."""
        if max(self._aborted, -1 if self._draining else self._drained) >= self._attempt:
            return True
        if self._counters.is_asked:
            return True
        if self._epochs is not None and self._epochs.has_commands:
            return True
        return any(reader.available() for reader in self._readers)


def _drop_report(_attempt: int, _content: object) -> None:
    """Do nothing with a report: this worker has no controller."""
