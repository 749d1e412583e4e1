"""Joins the coordinator of epochs to a job's supervisor: tells workers, and hears them.

Each attempt that runs has a coordinator of its own. It goes on from the newest epoch that counts,
whose commit it repeats. `turn` carries out what is due, and returns what the job's controller must
know.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from ..configs.errors import OutputError
from ..configs.settings import CheckpointSettings
from ..configs.units import NS_PER_MS
from ..metrics.checkpoint_metrics import CheckpointMetrics, CheckpointUnderWay
from ..metrics.counters import LatencyHistogram
from ..plan.assignment import Assignment, job_is_bounded
from ..state.epochs import coordinator_events as events
from ..state.epochs.coordinator import EpochCoordinator, EpochPhase
from ..state.epochs.epoch_commands import EpochCommand, EpochDurable, EpochForgotten, InjectMarker
from ..state.epochs.rules import EpochRules
from .controller_events import EpochCounted, EpochsFailed, EpochsOver
from .epoch_progress import EpochProgress, UnlistedOutput
from .epoch_writer import EpochWriter
from .fleet import MemberMessage
from .savepoints import Savepoints

FleetCall = Callable[[int, int, str, tuple[object, ...]], None]

_NEWS = (events.Aligned, events.SnapshotWritten, events.SnapshotFailed, events.ParticipantEnded)
_UNDER_WAY = (EpochPhase.BEGUN, EpochPhase.WRITING)
_NAMES = re.compile(r"\S*[\d/]\S*")
"""What differs between failures of one kind: numbers, and names of files and folders."""

_log = logging.getLogger(__name__)


def epoch_rules(settings: CheckpointSettings) -> EpochRules:
    """Return when epochs begin, and how long they may take."""
    return EpochRules(
        interval_ms=settings.interval_ms,
        min_pause_ms=settings.min_pause_ms,
        timeout_ms=settings.timeout_ms,
        retry_ms=settings.retry_ms,
        tries_max=settings.tries_max,
    )


class FailureLog:
    """Logs checkpoints that fail; of many in a row for one reason only the 1st, 2nd, 4th, 8th."""

    def __init__(self) -> None:
        self._kind = ""
        self._in_a_row = 0
        self._since_counted = 0

    def failed(self, epoch: int, reason: str) -> None:
        """Note that an epoch was forgotten."""
        kind = _NAMES.sub("", reason)
        self._in_a_row = self._in_a_row + 1 if kind == self._kind else 1
        self._kind = kind
        self._since_counted += 1
        many = self._in_a_row
        if many & (many - 1):
            return
        again = f" ({many} times in a row)" if many > 2 else ""
        _log.warning(
            "checkpoint %d failed%s: %s; the job runs on, and the next one follows",
            epoch,
            again,
            reason,
        )

    def counted(self, epoch: int) -> None:
        """Note that an epoch counts."""
        if self._since_counted > 1:
            failed = self._since_counted
            _log.warning("checkpoint %d is complete, after %d that failed", epoch, failed)
        self._kind, self._in_a_row, self._since_counted = "", 0, 0


class EpochSession:
    """The epochs of a job over all its attempts.

    `metrics` may be called from any thread.

    Args:
        assignment: the job.
        writer: writes and commits.
        call: `Fleet.call`.
        write_down: writes what a successor needs to the journal; called before a marker is sent.
        first_request: the number of the first request for a savepoint, see `Savepoints`.
    """

    def __init__(
        self,
        assignment: Assignment,
        writer: EpochWriter,
        call: FleetCall,
        write_down: Callable[[], None],
        first_request: int = 1,
    ) -> None:
        plan = assignment.plan
        self._workers = plan.workers
        self._participants = {
            (stage.id, worker): f"{stage.head!r} on worker {worker}"
            for stage in plan.stages
            for worker in stage.workers
        }
        """What each is called: after the operator that reads from its rings, or its source."""
        self._rules = epoch_rules(assignment.settings.checkpoints)
        self._bounded = job_is_bounded(assignment)
        self._call = call
        self._write_down = write_down
        self._attempt = -1
        self._coordinator: EpochCoordinator | None = None
        self._last = 0
        self._ended: dict[events.Participant, events.ParticipantEnded] = {}
        self._is_inherited = False
        self._unlisted: UnlistedOutput | None = None
        self._begun_ns: int | None = None
        self._is_stop = False
        self._told: list[EpochCounted | EpochsOver | EpochsFailed] = []
        self._metrics = CheckpointMetrics()
        self._counted_begun_ns: int | None = None
        self._under_way: tuple[int, int, int] | None = None
        """Number, snapshots written, and beginning (ns) of the epoch that does not count yet."""
        self._failures = FailureLog()
        self._aligned = LatencyHistogram()
        self._is_aligned = False
        self.writer = writer
        self.savepoints = Savepoints(first_request)

    @property
    def progress(self) -> EpochProgress:
        """What a successor needs."""
        point = self.writer.restore_point
        ended, stops = dict(self._ended), self.savepoints.stops
        return EpochProgress(self._last, point, ended, stops, self._unlisted)

    def metrics(self, now_ns: int) -> CheckpointMetrics:
        """Return how many there were, what the last one was like, and how far the next one is."""
        begun_ns = self._counted_begun_ns
        age_ms = None if begun_ns is None else (now_ns - begun_ns) // NS_PER_MS
        aligned_p99_ms = self._aligned.quantile_ms(0.99)
        metrics = replace(self._metrics, age_ms=age_ms, aligned_p99_ms=aligned_p99_ms)
        if (under_way := self._under_way) is None:
            return metrics
        epoch, snapshots, since_ns = under_way
        waited_ms = (now_ns - since_ns) // NS_PER_MS
        participants = len(self._participants)
        told = CheckpointUnderWay(epoch, snapshots, participants, waited_ms)
        return replace(metrics, under_way=told)

    # --- attempts ---------------------------------------------------------------------------------

    def inherit(self, progress: EpochProgress, attempt: int) -> None:
        """Continue for a controller that failed, in the attempt that it led."""
        self._is_inherited, self._last = True, progress.last
        self._ended = dict(progress.ended)
        if progress.stops:
            self.savepoints.stop()
        if progress.restore is not None:
            epoch = progress.restore.epoch
            ended = (one.part for one in progress.ended.values() if one.behind < epoch)
            self.writer.inherit(progress.restore.manifest, ended)
        unlisted = progress.unlisted
        if unlisted is not None and unlisted.attempt == attempt:
            self._publish_unlisted(unlisted)

    def run(self, attempt: int, now_ns: int) -> None:
        """Begin with an attempt that runs; a second call does nothing."""
        if attempt == self._attempt:
            return
        self._attempt = attempt
        is_inherited, self._is_inherited = self._is_inherited, False
        if not is_inherited:
            self._ended.clear()
        self._told.clear()
        point = self.writer.restore_point
        restored = 0 if point is None else point.epoch
        self._last = max(self._last, restored)
        self._metrics = replace(self._metrics, restored=restored)
        coordinator = EpochCoordinator(
            self._rules,
            self._participants,
            last=self._last,
            now_ms=now_ns // NS_PER_MS,
            name=self._name,
        )
        self._coordinator = coordinator
        if is_inherited and self._last > restored:
            self._tell(EpochForgotten(self._last))  # its snapshots went to the former controller
        if restored:
            self._perform(coordinator.resume(restored), now_ns)
        self.savepoints.request_again()
        for ended in tuple(self._ended.values()):
            self._handle(ended, now_ns)

    def end(self) -> None:
        """Record that no attempt runs; nothing that is under way matters any more.

        Nor has anything ended in the next one, for a successor that begins before it runs.
        """
        self._ended.clear()
        self._is_inherited = False
        self._attempt, self._coordinator, self._under_way = -1, None, None
        self.writer.forget()

    def take(self, message: MemberMessage, now_ns: int) -> None:
        """Take what a worker tells."""
        if message.attempt != self._attempt:
            return
        assert isinstance(message.content, _NEWS)
        self._handle(message.content, now_ns)

    @property
    def awaited(self) -> int:
        """How many participants have not said that they have ended."""
        return len(self._participants) - len(self._ended)

    # --- turns ------------------------------------------------------------------------------------

    @property
    def next_due_ns(self) -> int | None:
        """The latest time for the next `turn`; None while nothing is awaited."""
        coordinator = self._coordinator
        deadline_ms = None if coordinator is None else coordinator.deadline_ms
        due = [self.writer.next_due_ns, None if deadline_ms is None else deadline_ms * NS_PER_MS]
        return min((one for one in due if one is not None), default=None)

    def turn(self, now_ns: int) -> list[EpochCounted | EpochsOver | EpochsFailed]:
        """Do what is due; return what the job's controller must know."""
        if self._coordinator is not None:
            for result in self.writer.poll():
                self._handle(result, now_ns)
            asked = self.savepoints.next_request()
            self._handle(events.TimePassed() if asked is None else asked, now_ns)
        if self.writer.lost is not None:
            self._told = [EpochsFailed(self._attempt, self.writer.lost)]
        told, self._told = self._told, []
        return told

    def _handle(self, event: events.Event, now_ns: int) -> None:
        """Let the coordinator take an event, and do what it wants to be done."""
        coordinator = self._coordinator
        if coordinator is None:
            return
        if isinstance(event, events.ParticipantEnded):
            self._ended[event.participant] = event
            self._write_down()
        was_over = coordinator.over
        actions = coordinator.handle(event, now_ns // NS_PER_MS)
        if isinstance(event, events.ManifestWritten):
            self._count(event.epoch, now_ns)
        elif isinstance(event, events.Aligned) and event.epoch == self._last:
            self._note_aligned(coordinator, now_ns)
        self._perform(actions, now_ns)
        self._note_under_way(coordinator)
        if coordinator.over and not was_over:
            self._told.append(EpochsOver(self._attempt, stopped=self._is_stop))

    def _name(self, participant: events.Participant) -> str:
        assert isinstance(participant, tuple)
        return self._participants[participant]

    def _note_aligned(self, coordinator: EpochCoordinator, now_ns: int) -> None:
        """Measure how long the markers took, once they have come to all participants."""
        late, _ = coordinator.missing
        if not late and not self._is_aligned and self._begun_ns is not None:
            self._is_aligned = True
            self._aligned.add(now_ns - self._begun_ns, 1)

    def _note_under_way(self, coordinator: EpochCoordinator) -> None:
        """Record how far the present epoch is, for `metrics`, which other threads call."""
        self._under_way = None
        if self._begun_ns is not None and coordinator.phase in _UNDER_WAY:
            _, unwritten = coordinator.missing
            snapshots = len(self._participants) - len(unwritten)
            self._under_way = coordinator.epoch, snapshots, self._begun_ns

    def _perform(self, actions: Iterable[events.Action], now_ns: int) -> None:
        for action in actions:
            match action:
                case events.BeginEpoch(epoch, stop):
                    self._begin(epoch, stop, now_ns)
                case events.ForgetEpoch(epoch, reason):
                    self._forget(epoch, reason)
                case events.WriteManifest(epoch):
                    is_asked = self.savepoints.are_served_by(epoch)
                    self.writer.write(action, savepoint=is_asked, stopped=self._is_stop)
                case events.CommitEpoch(epoch):
                    self.writer.commit(epoch)
                case events.ReleaseEpoch():
                    self.writer.release()
                case events.GiveUp(reason):
                    self._give_up(reason)

    def _begin(self, epoch: int, stop: bool, now_ns: int) -> None:
        assert self._coordinator is not None
        self._last, self._begun_ns, self._is_stop = epoch, now_ns, stop
        self._is_aligned = False
        self.savepoints.begun(epoch, self._coordinator.serves)
        self._write_down()  # its number is used, even if this controller fails now
        self._tell(InjectMarker(epoch, stop))

    def _forget(self, epoch: int, reason: str) -> None:
        if self.writer.lost is None:  # else the job fails, and says so itself
            self._failures.failed(epoch, reason)
        self._is_stop = False
        self._metrics = replace(
            self._metrics, failures=self._metrics.failures + 1, failure=reason or "unknown"
        )
        self._tell(EpochForgotten(epoch))

    def _count(self, epoch: int, now_ns: int) -> None:
        """Record that an epoch counts."""
        self._failures.counted(epoch)
        self._counted_begun_ns = self._begun_ns
        begun_ns = now_ns if self._begun_ns is None else self._begun_ns
        self._metrics = replace(
            self._metrics,
            count=self._metrics.count + 1,
            epoch=epoch,
            nbytes=self.writer.size.nbytes,
            new_nbytes=self.writer.size.new_nbytes,
            duration_ms=(now_ns - begun_ns) // NS_PER_MS,
            failure="",
        )
        self._write_down()
        self._told.append(EpochCounted(self._attempt))
        self.savepoints.written(epoch, self.writer.place)
        self._tell(EpochDurable(epoch))

    def _give_up(self, reason: str) -> None:
        """Fail the job, unless it is bounded and has ended: its output needs no manifest then."""
        if self._bounded and not self._is_stop:
            parts = tuple(one.part for one in self._ended.values())
            self._publish_unlisted(UnlistedOutput(self._attempt, parts))
            _log.warning("%s; the job publishes its output without it", reason)
            self._told.append(EpochsOver(self._attempt, stopped=False))
            return
        kept = f"; mend that, and resume from {self.writer.place}" if self.writer.place else ""
        self._told.append(EpochsFailed(self._attempt, OutputError(f"{reason}{kept}")))

    def _publish_unlisted(self, unlisted: UnlistedOutput) -> None:
        self._unlisted = unlisted
        self.writer.keep(unlisted.parts)

    def _tell(self, command: EpochCommand) -> None:
        for worker in range(self._workers):
            self._call(worker, self._attempt, "tell", (command,))
