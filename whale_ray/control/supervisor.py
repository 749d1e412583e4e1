"""Carries out what a controller decides: calls members, publishes outputs, collects counters."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace

from ..configs.errors import UsageError
from ..metrics.checkpoint_metrics import CheckpointMetrics
from ..metrics.counters import MemberCounters
from ..metrics.edge_metrics import edge_metrics
from ..metrics.export.exports import begin_exports
from ..metrics.export.metric import JobStatus
from ..metrics.export.reader import JobReader
from ..metrics.job_metrics import JobMetrics, summarize
from ..multicast.tree_messages import SendersEnded, SetAddressing
from ..multicast.tree_state import Goal, ReconfigurationRequest
from ..plan.assignment import Assignment, has_checkpoints
from ..records.recorder import NoRecorder
from ..records.sampling import JobView
from ..state.epochs.checkpoint_store import CheckpointStore
from ..state.epochs.epoch_commands import RestorePoint
from ..transport.clock import Clock
from . import controller_events as e
from .adaptation import Adaptation
from .attempt_steps import REJOIN
from .controller import JobController, JobPhase
from .controller_progress import ControllerProgress
from .counter_history import CounterHistory
from .epoch_session import EpochSession
from .epoch_writer import EpochWriter
from .failures import as_whale_error, logged
from .fleet import CountersTaken, Fleet, MemberMessage
from .job_states import ALIVE, OF_PHASE
from .journal import Entry, Journal, NoJournal
from .outcome import JobOutcome
from .restart_policy import Limits
from .savepoints import Savepoints
from .sink_publisher import SinkPublisher
from .tree_session import TreeSession

_COMMANDS_MAX = 3  # to drain, to cancel, to stop with a savepoint: each once
_REQUESTS_MAX = 64


class Supervisor:
    """Runs one job on a fleet. `run` blocks; the other methods may be called from any thread.

    `reader` reads the job's figures for whom they are exported to.
    """

    def __init__(
        self,
        assignment: Assignment,
        fleet: Fleet,
        clock: Clock,
        journal: Journal | None = None,
        recorder: NoRecorder | None = None,
    ) -> None:
        self._assignment = assignment
        self._fleet = fleet
        self._clock = clock
        self._journal = journal or NoJournal()
        self._recorder = recorder or NoRecorder()
        self._term = 1
        self._written: ControllerProgress | None = None
        plan, settings = assignment.plan, assignment.settings
        names = tuple(plan.member_name(member) for member in range(plan.members))
        self._controller = JobController(plan.workers, Limits.of(assignment), plan.relays, names)
        # Signal handlers append, maybe in the thread that reads, so no lock can protect it.
        self._commands: deque[e.Event] = deque(maxlen=_COMMANDS_MAX)
        self._requests: deque[ReconfigurationRequest] = deque(maxlen=_REQUESTS_MAX)
        self._addressing: SetAddressing | None = None
        self._addressed_attempt = -1
        self._trees = TreeSession(plan.streams, settings.multicast, fleet.call, self._write_down)
        self._publisher = SinkPublisher(assignment, self._write_down)
        self._epochs: EpochSession | None = None
        if has_checkpoints(assignment):
            self._epochs = self._new_epochs(CheckpointStore.at(settings.checkpoints.url))
        self._counters = CounterHistory()
        self._adaptation = Adaptation(assignment, self._send_to_workers, clock)
        self._exports = ExitStack()
        self.reader = JobReader(
            assignment.job_id,
            plan.name,
            lambda: JobStatus(self.state, ALIVE, self.metrics()),
            per_instance=settings.metrics.per_instance,
        )
        self._outcome: JobOutcome | None = None
        self._running_since_ns: int | None = None
        self._ran_ns = 0
        self._next_counters_ns = 0
        self._ended_streams: set[int] = set()
        self._awaited_since_ns: int | None = None
        self._asked: dict[int, int] = {}  # member → attempt in which it was asked for counters

    def _new_epochs(self, store: CheckpointStore) -> EpochSession:
        fleet, commit, first = self._fleet, self._publisher.commit, self._clock.wall_ns()
        writer = EpochWriter(self._assignment, store, commit, self._clock, fleet.wake)
        return EpochSession(self._assignment, writer, fleet.call, self._write_down, first)

    @property
    def state(self) -> str:
        """What the job does, one of `ALIVE`, or how it ended."""
        if self._outcome is not None:
            return self._outcome.state
        if self._controller.phase is JobPhase.RUNNING and self._controller.draining:
            return "draining"
        if self._controller.phase is JobPhase.RUNNING and self._controller.stopping:
            return "stopping"
        return OF_PHASE[self._controller.phase]

    def metrics(self) -> JobMetrics:
        """Return the newest counters of all operators; at the end, averages over the whole run."""
        return self._metrics(self._counters.previous)

    def _metrics(self, previous: Mapping[int, MemberCounters]) -> JobMetrics:
        order = [node.id for node in self._assignment.plan.logical.nodes]
        newest = list(self._counters.newest.values())
        since_ns = self._running_since_ns if self._ran_ns else None
        before, attempt = list(previous.values()), self._controller.attempt
        metrics = summarize(order, newest, before, attempt, since_ns)
        return replace(
            metrics,
            switches=self._trees.switches,
            throttled=dict(self._trees.throttled),
            edges=edge_metrics(self._assignment.plan, self._trees.trees, metrics.relays),
            checkpoints=self._checkpoint_metrics(),
            decisions=self._adaptation.decisions.log,
            lost=self._controller.lost[1],
        )

    def _checkpoint_metrics(self) -> CheckpointMetrics | None:
        return None if self._epochs is None else self._epochs.metrics(self._clock.monotonic_ns())

    def stop(self, drain: bool) -> None:
        """Ask for the end of the job; with `drain`, after all rows read have come out."""
        self._request_end(e.StopRequested(drain))

    def stop_with_savepoint(self) -> None:
        """Ask for the end of the job after a savepoint; UsageError for one without checkpoints."""
        self._savepoints.stop()
        self._request_end(e.StopRequested(drain=False, savepoint=True))

    def request_savepoint(self) -> int:
        """Ask for a savepoint, return its number; UsageError for a job without checkpoints."""
        return self._savepoints.ask()

    def savepoint_of(self, number: int) -> str | None:
        """Return where the savepoint of a number is, None as long as there is none, or UNKNOWN."""
        return self._savepoints.place_of(number)

    @property
    def _savepoints(self) -> Savepoints:
        if self._epochs is None:
            msg = "the job takes no checkpoints, and so no savepoints: submit it with checkpoints="
            raise UsageError(msg)
        return self._epochs.savepoints

    def _request_end(self, command: e.StopRequested) -> None:
        if command not in self._commands:  # repetitions change nothing, and none is dropped
            self._commands.append(command)

    def reconfigure(self, request: ReconfigurationRequest) -> None:
        """Ask for other trees, or another addressing, of broadcast streams while the job runs.

        Raises UsageError for an addressing that the job was not planned for, and if too many
        requests wait.
        """
        begun = self._assignment.settings.runtime.addressing
        if isinstance(request, SetAddressing) and begun == "worker-oriented" != request.addressing:
            msg = (
                "the job has no rings for single instances: begin it with "
                "runtime.addressing=instance-oriented, then it can change between both"
            )
            raise UsageError(msg)
        if len(self._requests) == _REQUESTS_MAX:
            msg = f"{_REQUESTS_MAX} changes wait to be made already"
            raise UsageError(msg)
        self._requests.append(request)

    def run(self) -> JobOutcome:
        """Run the job to its end, clean up, and return the outcome, which includes errors.

        Raises only what is no `Exception`, such as the user's KeyboardInterrupt.
        """
        runtime = self._assignment.settings.runtime
        in_order = False
        self._recorder.begin()
        try:
            self._lead(self._begin(), runtime.poll_interval_ms * 1_000_000)
            in_order = True
        except Exception as error:  # noqa: BLE001  # callers wait for an outcome
            self._finish(e.End("failed", as_whale_error(error)))
        except BaseException:
            self._finish(e.End("cancelled"))
            raise
        finally:
            self._clean_up(in_order=in_order)
        assert self._outcome is not None
        return self._outcome

    def _clean_up(self, *, in_order: bool) -> None:
        """End the workers, release what the job holds, and record how it ended."""
        with logged("end the workers"):
            self._fleet.shutdown(self._assignment.settings.runtime.kill_grace_ms * 1_000_000)
        if not in_order:
            self._drop_output(self._controller.attempt)
        with logged("end the export of metrics"):
            self._exports.close()
        with logged("give the folder of checkpoints back"):
            if self._epochs is not None:
                self._epochs.writer.close()
        with logged("erase the journal"):
            self._journal.erase()
        if self._outcome is not None:
            self._recorder.end(self._view(self._outcome.metrics), self._outcome)

    def _begin(self) -> list[e.Action]:
        """Start the job, or resume it for a controller that failed."""
        if self._epochs is not None:
            self._epochs.writer.claim()
        before = self._journal.read()
        self._exports = begin_exports(
            self._assignment, self.reader, self._clock, before is not None
        )
        if before is not None:
            self._term = before.term + 1
            self._trees.inherit(self._term, before.trees)
            if self._epochs is not None and before.epochs is not None:
                self._epochs.inherit(before.epochs, before.progress.attempt)
            published_as = "" if self._epochs is None else self._epochs.writer.publisher
            self._publisher.inherit(before.results, published_as)
        elif self._epochs is not None and self._assignment.restore is not None:
            self._recover(self._epochs)
        else:
            self._publisher.prepare()
        self._fleet.term = self._term
        self._fleet.start(self._assignment)
        now_ns = self._clock.monotonic_ns()
        if before is None:
            return self._controller.start(now_ns)
        actions = self._controller.resume(before.progress, now_ns)
        self._turn_trees()  # the first actions may already be RelayLost and RelayBack
        return [*actions, *self._turn_epochs()]

    def _write_down(self) -> None:
        """Write to the journal what a successor needs."""
        progress = self._written = self._controller.progress
        results = self._publisher.durable_results
        epochs = None if self._epochs is None else self._epochs.progress
        self._journal.write(Entry(self._term, progress, results, self._trees.states, epochs))

    def _lead(self, actions: list[e.Action], interval_ns: int) -> None:
        while True:
            if self._controller.progress != self._written:
                self._write_down()  # before the calls, which a successor repeats
            for action in actions:
                self._perform(action)
            if self._outcome is not None:
                return  # and wait for no further event: none would come
            self._request_counters(interval_ns)
            event = self._next_event(interval_ns)
            if isinstance(event, CountersTaken):
                self._take_counters(event)
                event = e.Tick()
            elif isinstance(event, MemberMessage):
                event = self._take_message(event)
            if isinstance(event, e.Returned) and event.method == "run":
                self._keep_final(event)
            actions = self._controller.handle(event, self._clock.monotonic_ns())
            self._measure_time()
            self._turn_trees()
            actions += self._turn_epochs()
            if self._controller.phase is JobPhase.RUNNING:
                switches = self._trees.switches
                self._adaptation.turn(self._controller.attempt, self._counters.newest, switches)
            self._turn_record()

    def _next_event(self, interval_ns: int) -> e.Event | CountersTaken | MemberMessage:
        # Without an except block: a user's error would be shown as raised "during" ours.
        if self._commands:
            return self._commands.popleft()
        epochs_ns = None if self._epochs is None else self._epochs.next_due_ns
        for due_ns in (self._trees.next_due_ns, epochs_ns):
            if due_ns is not None:
                interval_ns = max(0, min(interval_ns, due_ns - self._clock.monotonic_ns()))
        return self._fleet.next_event(interval_ns) or e.Tick()

    def _turn_record(self) -> None:
        """Keep a sample if one is due, and do what another process asks for."""
        due_ns = self._recorder.next_due_ns
        if due_ns is None or self._clock.monotonic_ns() < due_ns:
            return
        asked = self._recorder.record(self._view(self._metrics(self._recorder.seen)))
        if asked == "savepoint" and self._epochs is not None:
            self.stop_with_savepoint()
        elif asked in ("drain", "cancel"):
            self.stop(drain=asked == "drain")

    def _view(self, metrics: JobMetrics) -> JobView:
        newest, seen = dict(self._counters.newest), self._recorder.seen
        return JobView(self.state, metrics, newest, seen, self._trees.trees, self._trees.loads)

    def _turn_trees(self) -> None:
        """Adjust the multicast trees while the job runs, and carry out the user's requests."""
        now_ns = self._clock.monotonic_ns()
        if self._controller.phase is not JobPhase.RUNNING:
            self._trees.end()
            return
        self._trees.run(self._controller.attempt, now_ns)
        while self._requests:
            request = self._requests.popleft()
            if isinstance(request, Goal):
                self._trees.set_goal(request, now_ns)
            else:
                self._addressing, self._addressed_attempt = request, -1
        self._send_addressing()
        self._trees.turn(now_ns)

    def _turn_epochs(self) -> list[e.Action]:
        """Begin the epochs that are due, and continue with the one under way."""
        if self._epochs is None:
            return []
        now_ns = self._clock.monotonic_ns()
        if self._controller.phase is not JobPhase.RUNNING:
            self._epochs.end()
            return []
        self._epochs.run(self._controller.attempt, now_ns)
        actions: list[e.Action] = []
        told: list[e.Event] = [*self._epochs.turn(now_ns), *self._lost_ends(self._epochs, now_ns)]
        for event in told:
            actions += self._controller.handle(event, now_ns)
        return actions

    def _lost_ends(self, epochs: EpochSession, now_ns: int) -> list[e.Event]:
        """Give the attempt up if workers died after their ends, before they could tell them."""
        if not self._controller.awaits_last_epoch or not epochs.awaited:
            self._awaited_since_ns = None
            return []
        since_ns = self._awaited_since_ns = self._awaited_since_ns or now_ns
        limit_ms = self._assignment.settings.runtime.drain_timeout_ms
        if now_ns - since_ns < limit_ms * 1_000_000:
            return []
        lost = f"{epochs.awaited} stages on workers ended without a last snapshot"
        return [e.AttemptLost(self._controller.attempt, lost)]

    def _send_addressing(self) -> None:
        """Send the addressing that the user asked for to all workers, once in each attempt."""
        attempt = self._controller.attempt
        if self._addressing is not None and self._addressed_attempt != attempt:
            self._addressed_attempt = attempt
            self._send_to_workers(self._addressing)

    def _send_to_workers(self, content: object) -> None:
        """Send a message to all workers of the attempt."""
        for worker in range(self._assignment.plan.workers):
            self._fleet.call(worker, self._controller.attempt, "tell", (content,))

    def _request_counters(self, interval_ns: int) -> None:
        now_ns = self._clock.monotonic_ns()
        if self._controller.phase is JobPhase.RUNNING and now_ns >= self._next_counters_ns:
            self._next_counters_ns = now_ns + interval_ns
            for member in range(self._assignment.plan.members):
                if member not in self._asked:  # at most one unanswered request per member
                    self._asked[member] = self._controller.attempt
                    self._fleet.call(member, self._controller.attempt, "counters", ())

    def _take_message(self, message: MemberMessage) -> e.Event:
        """Handle a worker's or relay's message; return AttemptLost if relays cannot continue."""
        if message.member < self._assignment.plan.workers:
            if self._epochs is not None:
                self._epochs.take(message, self._clock.monotonic_ns())
            return e.Tick()
        return self._trees.take(message, self._clock.monotonic_ns()) or e.Tick()

    def _take_counters(self, event: CountersTaken) -> None:
        attempt = self._asked.pop(event.member, None)
        if event.counters is not None and attempt == self._controller.attempt:
            self._keep_counters(event.counters)

    def _keep_final(self, event: e.Returned) -> None:
        """Keep the last counters of a member, which `run` returns."""
        if isinstance(event.result, MemberCounters) and event.attempt == self._controller.attempt:
            self._keep_counters(event.result)

    def _keep_counters(self, counters: MemberCounters) -> None:
        self._counters.take(counters)
        self._notify_receivers(counters)

    def _notify_receivers(self, counters: MemberCounters) -> None:
        """Send the receivers of custom transports the number of messages, once a sender ended."""
        sent: dict[int, dict[int, int]] = {}
        for operator in counters.transports:
            stream = operator.stream
            if stream is not None and operator.ended and stream not in self._ended_streams:
                self._ended_streams.add(stream)
                sent.setdefault(operator.receiver, {})[stream] = operator.messages
        for worker, messages in sent.items():
            self._fleet.call(worker, self._controller.attempt, "tell", (SendersEnded(messages),))

    def _measure_time(self) -> None:
        """Measure how long the attempt has run."""
        now_ns = self._clock.monotonic_ns()
        if self._controller.phase is JobPhase.RUNNING:
            if self._running_since_ns is None:
                self._running_since_ns = now_ns
        elif self._running_since_ns is not None and not self._ran_ns:
            self._ran_ns = now_ns - self._running_since_ns

    def _perform(self, action: e.Action) -> None:
        match action:
            case e.CallMember(member, attempt, method, arguments):
                if method == REJOIN:
                    arguments = (*arguments, self._trees.states)
                elif method == "link" and member < self._assignment.plan.workers:
                    arguments = (*arguments, *self._restore_points)
                self._fleet.call(member, attempt, method, arguments)
            case e.RelayLost(relay):
                self._trees.lost(relay, self._clock.monotonic_ns())
            case e.RelayBack():
                self._trees.back(action, self._clock.monotonic_ns())
            case e.Respawn(member):
                self._asked.pop(member, None)
                self._fleet.respawn(member)
            case e.Publish(attempt, staged):
                before = {} if self._epochs is None else self._epochs.writer.staged()
                event = self._publisher.publish(attempt, staged, before)
                for follow_up in self._controller.handle(event, self._clock.monotonic_ns()):
                    self._perform(follow_up)
            case e.Discard(attempt):
                self._discard(attempt)
            case e.End():
                self._finish(action)

    def _discard(self, attempt: int) -> None:
        """Forget an attempt; the next one counts from zero."""
        self._running_since_ns, self._ran_ns = None, 0
        self._ended_streams.clear()
        if self._controller.phase is JobPhase.ENDED:
            self._drop_output(attempt)
            return
        self._counters.clear()
        if self._epochs is None:
            self._publisher.discard(attempt)
        else:
            self._recover(self._epochs)

    @property
    def _restore_points(self) -> tuple[RestorePoint, ...]:
        """What `Worker.link` takes beside the boards."""
        point = None if self._epochs is None else self._epochs.writer.restore_point
        return () if point is None else (point,)

    def _recover(self, epochs: EpochSession) -> None:
        """Let an attempt resume from the newest epoch that counts, or from the start."""
        writer = epochs.writer
        writer.recover()
        known = () if writer.manifest is None else writer.manifest.operators
        self._publisher.recover(writer.staged(), writer.epoch, known, writer.publisher)

    def _drop_output(self, attempt: int) -> None:
        """Remove what a job that has ended staged, but for what a checkpoint of it names."""
        if self._epochs is None:
            self._publisher.discard(attempt)
            return
        with logged("remove what no checkpoint names"):
            writer = self._epochs.writer
            writer.settle()
            staged = None if writer.manifest is None else writer.staged()
            self._publisher.drop(attempt, staged, self._clock)

    def _finish(self, end: e.End) -> None:
        checkpoint = ""
        if self._epochs is not None:
            checkpoint = self._epochs.writer.place
            if end.state in ("finished", "drained"):
                with logged("mark the newest checkpoint as that of a job that has ended"):
                    self._epochs.writer.finish(drained=end.state == "drained")
        self._outcome = JobOutcome(
            end.state,
            dict(self._publisher.results),
            self.metrics(),
            self._ran_ns / 1e9,
            self._controller.attempt,
            self._assignment.plan.workers,
            end.error,
            self._publisher.is_bounded,
            checkpoint,
        )
