"""Carries out what a controller decides: calls workers, publishes outputs, keeps the counters."""

from __future__ import annotations

import logging
import traceback
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ..configs.errors import (
    Interrupted,
    JobError,
    OutputError,
    UsageError,
    UserFunctionError,
    WhaleError,
)
from ..metrics.edge_metrics import edge_metrics
from ..metrics.job_metrics import JobMetrics, WorkerSnapshot, summarize
from ..multicast.tree_messages import SendersEnded, SetAddressing
from ..multicast.tree_state import (
    Goal,
    ReconfigurationRequest,
)
from ..operators.sinks.base import Sink, SinkResult, Staged
from ..plan.assignment import Assignment, attempt_token, job_is_bounded
from ..plan.logical import OperatorKind
from ..tasks.capture import running
from ..transport.clock import Clock
from ..worker.staged_output import (
    StagedOutput,
)
from . import controller as c
from . import controller_events as e
from .fleet import (
    Fleet,
    MemberMessage,
    SnapshotTaken,
)
from .journal import Entry, Journal, NoJournal
from .outputs import staged_of, tell_if_bare
from .progress import ControllerProgress
from .tree_session import TreeSession

_COMMANDS_MAX = 2
_WISHES_MAX = 64

_STATES = {
    c.JobPhase.STARTING: "starting",
    c.JobPhase.RUNNING: "running",
    c.JobPhase.STAGING: "finishing",
    c.JobPhase.PUBLISHING: "finishing",
    c.JobPhase.RESTARTING: "restarting",
    c.JobPhase.FAILING: "failing",
    c.JobPhase.ENDED: "finishing",
}
QUEUED = "queued"
"""It waits for room on Ray."""
ALIVE = frozenset({*_STATES.values(), "draining", QUEUED})
"""The states of a job that has not ended."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobOutcome:
    """How a job ended.

    Attributes:
        state: finished, drained, cancelled or failed.
        results: what each sink published, by operator id.
        metrics: the last counters.
        seconds: time from the first tuple to the last, without start-up.
        restarts: how often the job began anew.
        workers: how many processes ran it.
        error: why it failed, or None.
        bounded: whether all its sources end by themselves; else it published parts as it ran.
    """

    state: str
    results: Mapping[str, SinkResult]
    metrics: JobMetrics
    seconds: float
    restarts: int
    workers: int
    error: WhaleError | None = None
    bounded: bool = True


@dataclass
class _Counters:
    """The newest and the previous snapshot of every worker."""

    newest: dict[int, WorkerSnapshot] = field(default_factory=dict)
    previous: dict[int, WorkerSnapshot] = field(default_factory=dict)

    def take(self, snapshot: WorkerSnapshot) -> None:
        before = self.newest.get(snapshot.worker)
        if before is not None and snapshot.at_ns < before.at_ns:
            return  # overtaken, maybe by the worker's last one
        if before is not None and snapshot.at_ns > before.at_ns:
            self.previous[snapshot.worker] = before
        self.newest[snapshot.worker] = snapshot

    def clear(self) -> None:
        self.newest.clear()
        self.previous.clear()


class Supervisor:
    """Runs one job on a fleet. `run` blocks; `stop`, `metrics` and `state` serve other threads."""

    def __init__(
        self,
        assignment: Assignment,
        fleet: Fleet,
        clock: Clock,
        journal: Journal | None = None,
    ) -> None:
        self._assignment = assignment
        self._fleet = fleet
        self._clock = clock
        self._journal = journal or NoJournal()
        self._term = 1
        self._written: ControllerProgress | None = None
        plan = assignment.plan
        names = tuple(plan.member_name(member) for member in range(plan.members))
        self._controller = c.JobController(plan.workers, _limits(assignment), plan.relays, names)
        # Filled by signal handlers, maybe in the reading thread: a lock could not be had there.
        self._commands: deque[e.Event] = deque(maxlen=_COMMANDS_MAX)
        self._wishes: deque[ReconfigurationRequest] = deque(maxlen=_WISHES_MAX)
        multicast = assignment.settings.multicast
        self._addressing: SetAddressing | None = None
        self._addressed = -1  # the attempt whose workers were told
        self._trees = TreeSession(plan.streams, multicast, fleet.call, self._write_down)
        self._counters = _Counters()
        self._results: dict[str, SinkResult] = {}
        self._outcome: JobOutcome | None = None
        self._running_since_ns: int | None = None
        self._ran_ns = 0
        self._next_snapshot_ns = 0
        self._ended_streams: set[int] = set()
        self._asked: dict[int, int] = {}  # worker: in which attempt it was asked for a snapshot

    @property
    def state(self) -> str:
        """What the job does, one of `ALIVE`, or how it ended."""
        if self._outcome is not None:
            return self._outcome.state
        if self._controller.phase is c.JobPhase.RUNNING and self._controller.draining:
            return "draining"
        return _STATES[self._controller.phase]

    def metrics(self) -> JobMetrics:
        """Return the newest counters of all operators; at the end, averages over the whole run."""
        order = [node.id for node in self._assignment.plan.logical.nodes]
        counters = self._counters
        newest, previous = list(counters.newest.values()), list(counters.previous.values())
        since_ns = self._running_since_ns if self._ran_ns else None
        metrics = summarize(order, newest, previous, self._controller.attempt, since_ns)
        return replace(
            metrics,
            switches=self._trees.switches,
            throttled=dict(self._trees.throttled),
            edges=edge_metrics(self._assignment.plan, self._trees.trees, metrics.relays),
        )

    def stop(self, drain: bool) -> None:
        """Ask for the end; with `drain` after everything that was read has come out."""
        command = e.StopAsked(drain)
        if command not in self._commands:  # asking twice asks no more, and none is dropped
            self._commands.append(command)

    def wish(self, wish: ReconfigurationRequest) -> None:
        """Ask for other trees, or another addressing, of all-grouped streams while the job runs.

        Raises UsageError for an addressing that the job was not planned for, and if too many wishes
        wait.
        """
        begun = self._assignment.settings.runtime.addressing
        if isinstance(wish, SetAddressing) and begun == "worker-oriented" != wish.addressing:
            msg = (
                "the job has no rings for single instances: begin it with "
                "runtime.addressing=instance-oriented, then it can change between both"
            )
            raise UsageError(msg)
        if len(self._wishes) == _WISHES_MAX:
            msg = f"{_WISHES_MAX} changes wait to be made already"
            raise UsageError(msg)
        self._wishes.append(wish)

    def run(self) -> JobOutcome:
        """Run the job to its end; return how it ended, whatever happens, and leave nothing behind.

        Raises only what is no `Exception`: the KeyboardInterrupt of an impatient user.
        """
        runtime = self._assignment.settings.runtime
        in_order = False
        try:
            self._lead(self._begin(), runtime.poll_interval_ms * 1_000_000)
            in_order = True
        except Exception as error:  # noqa: BLE001  # whoever waits must learn of the end
            self._finish(e.End("failed", _as_whale_error(error)))
        except BaseException:
            self._finish(e.End("cancelled"))
            raise
        finally:
            with _logged("end the workers"):
                self._fleet.shutdown(runtime.kill_grace_ms * 1_000_000)
            if not in_order:
                self._discard(self._controller.attempt)
            with _logged("erase the journal"):
                self._journal.erase()
        assert self._outcome is not None
        return self._outcome

    def _begin(self) -> list[e.Action]:
        """Start the job, or take over from a controller that died."""
        before = self._journal.read()
        if before is not None:
            self._term = before.term + 1
            self._trees.inherit(self._term, before.trees)
            self._results = dict(before.results)
        else:
            for name, sink in self._sinks().items():
                with _told_as_of(name, "none yet"):
                    sink.prepare(self._assignment.job_id, bounded=self._bounded)
        self._fleet.term = self._term
        self._fleet.start(self._assignment)
        now_ns = self._clock.monotonic_ns()
        if before is None:
            return self._controller.start(now_ns)
        actions = self._controller.resume(before.progress, now_ns)
        self._keep_trees()  # relays may be lost, or back, in the first actions already
        return actions

    def _write_down(self) -> None:
        progress = self._controller.progress
        self._written = progress
        # Collected rows may be many; a successor collects them again from what was staged.
        kept = {name: result for name, result in self._results.items() if result.table is None}
        self._journal.write(Entry(self._term, progress, kept, self._trees.states))

    def _lead(self, actions: list[e.Action], interval_ns: int) -> None:
        while self._outcome is None:
            if self._controller.progress != self._written:
                self._write_down()  # before the calls: a successor asks for them again
            for action in actions:
                self._perform(action)
            actions = []
            self._ask_for_snapshots(interval_ns)
            event = self._next_event(interval_ns)
            if isinstance(event, SnapshotTaken):
                self._take_snapshot(event)
                event = e.Tick()
            elif isinstance(event, MemberMessage):
                event = self._take_news(event)
            if isinstance(event, e.Returned) and event.method == "run":
                self._keep_final(event)
            actions = self._controller.handle(event, self._clock.monotonic_ns())
            self._keep_time()
            self._keep_trees()

    def _next_event(self, interval_ns: int) -> e.Event | SnapshotTaken | MemberMessage:
        # Not in an except block: a user's error must not be told as raised "during" ours.
        if self._commands:
            return self._commands.popleft()
        due_ns = self._trees.next_due_ns
        if due_ns is not None:
            interval_ns = max(0, min(interval_ns, due_ns - self._clock.monotonic_ns()))
        return self._fleet.next_event(interval_ns) or e.Tick()

    def _keep_trees(self) -> None:
        """Lead the multicast trees while the job runs, and carry out what the user wants of it."""
        now_ns = self._clock.monotonic_ns()
        attempt = self._controller.attempt
        if self._controller.phase is not c.JobPhase.RUNNING:
            self._trees.end()
            return
        self._trees.run(attempt, now_ns)
        while self._wishes:
            wish = self._wishes.popleft()
            if isinstance(wish, Goal):
                self._trees.set_goal(wish, now_ns)
            else:
                self._addressing, self._addressed = wish, -1
        if self._addressing is not None and self._addressed != attempt:
            self._addressed = attempt
            for worker in range(self._assignment.plan.workers):
                self._fleet.call(worker, attempt, "tell", (self._addressing,))
        self._trees.turn(now_ns)

    def _ask_for_snapshots(self, interval_ns: int) -> None:
        now_ns = self._clock.monotonic_ns()
        if self._controller.phase is c.JobPhase.RUNNING and now_ns >= self._next_snapshot_ns:
            self._next_snapshot_ns = now_ns + interval_ns
            for worker in range(self._assignment.plan.members):
                if worker not in self._asked:  # a slow one is not asked again and again
                    self._asked[worker] = self._controller.attempt
                    self._fleet.call(worker, self._controller.attempt, "snapshot", ())

    def _take_news(self, told: MemberMessage) -> e.Event:
        """Take what a relay tells of the trees; the event is the loss of the attempt, if so."""
        self._trees.take(told, self._clock.monotonic_ns())
        if not self._trees.failure:
            return e.Tick()
        return e.AttemptLost(told.attempt, self._trees.failure)

    def _take_snapshot(self, event: SnapshotTaken) -> None:
        attempt = self._asked.pop(event.worker, None)
        if event.snapshot is not None and attempt == self._controller.attempt:
            self._counters.take(event.snapshot)
            self._tell_receivers(event.snapshot)

    def _keep_final(self, event: e.Returned) -> None:
        if isinstance(event.result, WorkerSnapshot) and event.attempt == self._controller.attempt:
            self._counters.take(event.result)
            self._tell_receivers(event.result)

    def _tell_receivers(self, snapshot: WorkerSnapshot) -> None:
        """Tell the receivers of users' transports how much was sent to them, once it has ended."""
        sent: dict[int, dict[int, int]] = {}
        for operator in snapshot.transports:
            stream = operator.stream
            if stream is not None and operator.ended and stream not in self._ended_streams:
                self._ended_streams.add(stream)
                sent.setdefault(operator.receiver, {})[stream] = operator.messages
        for worker, messages in sent.items():
            self._fleet.call(worker, self._controller.attempt, "tell", (SendersEnded(messages),))

    def _keep_time(self) -> None:
        now_ns = self._clock.monotonic_ns()
        if self._controller.phase is c.JobPhase.RUNNING:
            if self._running_since_ns is None:
                self._running_since_ns = now_ns
        elif self._running_since_ns is not None and not self._ran_ns:
            self._ran_ns = now_ns - self._running_since_ns

    def _perform(self, action: e.Action) -> None:
        match action:
            case e.Call(worker, attempt, c.REJOIN, arguments):
                self._fleet.call(worker, attempt, c.REJOIN, (*arguments, self._trees.states))
            case e.Call(worker, attempt, method, arguments):
                self._fleet.call(worker, attempt, method, arguments)
            case e.RelayLost(relay):
                self._trees.lost(relay, self._clock.monotonic_ns())
            case e.RelayBack():
                self._trees.back(action, self._clock.monotonic_ns())
            case e.Respawn(worker):
                self._asked.pop(worker, None)
                self._fleet.respawn(worker)
            case e.Publish(attempt, staged):
                event = self._publish(attempt, staged)
                for follow_up in self._controller.handle(event, self._clock.monotonic_ns()):
                    self._perform(follow_up)
            case e.Discard(attempt):
                self._running_since_ns, self._ran_ns = None, 0
                self._ended_streams.clear()
                self._discard(attempt)
                if self._controller.phase is not c.JobPhase.ENDED:
                    self._counters.clear()  # the next attempt counts from zero
            case e.End():
                self._finish(action)

    def _publish(self, attempt: int, staged: tuple[object, ...]) -> e.Published:
        outputs = [one for one in staged if isinstance(one, StagedOutput)]  # relays have none
        cut_short = any(one.cut_short for one in outputs)
        try:
            if self._bounded:
                for name, sink in self._sinks().items():
                    if name in self._results:
                        continue  # a controller before this one did it
                    with _told_as_of(name, "what its instances staged"):
                        parts = staged_of(name, outputs, self._assignment.plan.logical)
                        result = self._publish_through(sink, attempt, parts, cut_short)
                    self._results[name] = result
                    tell_if_bare(name, result)
                    self._write_down()
        except Exception as error:  # noqa: BLE001  # the job ends in order all the same
            return e.Published(_as_whale_error(error))
        return e.Published(cut_short=cut_short)

    def _publish_through(
        self, sink: Sink, attempt: int, staged: list[Staged], cut_short: bool
    ) -> SinkResult:
        token = self._token(attempt)
        if not cut_short:
            return sink.publish(token, staged)
        replaces = self._assignment.settings.runtime.partial_output == "replace"
        publish = sink.publish if replaces else sink.publish_partial
        return replace(publish(token, staged), partial=True)

    def _discard(self, attempt: int) -> None:
        for name, sink in self._sinks().items():
            with _logged(f"discard what sink {name!r} has not published"):
                sink.discard(self._token(attempt))

    def _finish(self, end: e.End) -> None:
        self._outcome = JobOutcome(
            end.state,
            dict(self._results),
            self.metrics(),
            self._ran_ns / 1e9,
            self._controller.attempt,
            self._assignment.plan.workers,
            end.error,
            self._bounded,
        )

    def _token(self, attempt: int) -> str:
        return attempt_token(self._assignment.job_id, attempt)

    @property
    def _bounded(self) -> bool:
        return job_is_bounded(self._assignment)

    def _sinks(self) -> dict[str, Sink]:
        return {
            node.id: node.payload
            for node in self._assignment.plan.logical.of_kind(OperatorKind.SINK)
            if isinstance(node.payload, Sink)
        }


@contextmanager
def _told_as_of(operator_id: str, preview: str) -> Iterator[None]:
    """Tell what a sink raises, or prints, in the block as its own, whatever it is."""
    try:
        with running(operator_id):
            yield
    except (WhaleError, Interrupted):
        raise
    except OSError as error:
        msg = f"the output of {operator_id!r} cannot be published: {error}"
        raise OutputError(msg) from error
    except BaseException as error:
        raise UserFunctionError.of(error, operator_id, 0, preview) from error


@contextmanager
def _logged(what: str) -> Iterator[None]:
    """Go on after whatever the block raises: the job's own end matters more."""
    try:
        yield
    except Interrupted:
        raise
    except BaseException:  # noqa: BLE001  # whatever a user's sink or a dead Ray raises
        _log.exception("cannot %s", what)


def _as_whale_error(error: Exception) -> WhaleError:
    """Wrap an error that is not ours, with its traceback, in one that can travel."""
    if isinstance(error, WhaleError):
        return error
    text = "".join(traceback.format_exception(error)).rstrip()
    return JobError(f"{text}\nwhile the job was led")


def _limits(assignment: Assignment) -> c.Limits:
    runtime = assignment.settings.runtime
    return c.Limits(
        max_restarts=runtime.max_restarts,
        start_timeout_ns=runtime.start_timeout_ms * 1_000_000,
        drain_timeout_ns=runtime.drain_timeout_ms * 1_000_000,
        kill_grace_ns=runtime.kill_grace_ms * 1_000_000,
        restart_refused=_restart_refused(assignment),
        repairs_max=assignment.settings.multicast.repairs_max,
    )


def _restart_refused(assignment: Assignment) -> str | None:
    sources = assignment.plan.logical.of_kind(OperatorKind.SOURCE)
    for node in sources:
        if not getattr(node.payload, "replayable", True):
            return f"source {node.id!r} cannot be read again from its start"
    if not job_is_bounded(assignment) and assignment.settings.runtime.on_loss == "fail":
        return (
            "it is unbounded and has published parts already; set "
            "runtime.on_loss=restart-at-least-once to accept rows twice"
        )
    return None
