"""The controller: leads a job's members through an attempt, and through another if it is lost.

The members are the workers and, where a job spans hosts, after them the hosts' relays.

A pure state machine: `handle` takes an event and returns the actions to carry out; time comes in
with `Tick`. The supervisor does the I/O and writes `progress` down. A controller that replaces a
failed one resumes from there, while the members continue.

::

    STARTING ──────► RUNNING ──► STAGING ──► PUBLISHING ──► ended (finished or drained)
    open, link,         │           │            │
    connect             │           │            │
       ▲                ▼           ▼            ▼
       └── RESTARTING ◄── a worker died       ENDING ──► ended (failed, cancelled or stopped)

An attempt is all or nothing. All members take its steps together: they open, link and connect their
rings (each given what the step before returned on all of them), run until their inputs end, and
stage the output of their sinks. Relays know nothing of rows: they run until all workers have
returned, and are then told to finish. The output is published once, at the end. If a worker dies
before that, the other members are aborted, the worker is replaced, staged output is discarded, and
the next attempt reads the sources from the start. A relay that dies while the job runs is replaced
within the attempt: the new one rejoins, and runs. Once all workers have returned from `run`,
failures of relays are ignored.

With checkpoints, the next attempt resumes from the newest one, and the job stays RUNNING until the
last one counts, in which all has ended. A savepoint behind which the job is to stop ends it there.

A drain ends the sources where they are. A job that starts drains as soon as its workers run, with
what they have read by then. A draining job without checkpoints that loses its attempt fails:
another attempt would begin at the start of the sources, and end there. So one that is asked to
drain while it begins anew is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum, auto
from typing import NamedTuple

from ..configs.errors import (
    AttemptLostError,
    NotInAttemptError,
    ResourceError,
    WhaleError,
    WorkerDiedError,
)
from .attempt import Attempt
from .attempt_steps import REJOIN, STEPS
from .controller_events import (
    Action,
    AttemptLost,
    Died,
    Discard,
    End,
    EpochCounted,
    EpochsFailed,
    EpochsOver,
    Event,
    Publish,
    Published,
    Raised,
    RelayBack,
    RelayLost,
    Respawn,
    Respawned,
    Returned,
    StopRequested,
    Tick,
)
from .controller_progress import ControllerProgress
from .member_names import MemberNames
from .restart_policy import Limits


class JobPhase(Enum):
    """Where the job is."""

    STARTING = auto()
    RUNNING = auto()
    STAGING = auto()
    PUBLISHING = auto()
    RESTARTING = auto()
    ENDING = auto()
    ENDED = auto()


class _Deadline(NamedTuple):
    """When the members are late, and what follows: it is given the time, and returns actions."""

    at_ns: int
    missed: Callable[[int], list[Action]]


class JobController:
    """Leads workers 0 … n − 1, followed by the relays; see the module's diagram.

    `names` are the members' names in messages; without it, all are workers.
    """

    def __init__(
        self, workers: int, limits: Limits, relays: int = 0, names: tuple[str, ...] = ()
    ) -> None:
        self.phase = JobPhase.STARTING
        self.lost = (-1, "")
        """The last attempt that was lost, and why."""
        self._names = MemberNames(workers, relays, names)
        self._limits = limits
        self._attempt = Attempt(workers, relays, limits.repairs_max)
        self._steps = self._attempt.steps
        self._repairs = self._attempt.repairs
        self._deadline: _Deadline | None = None
        self._stop: StopRequested | None = None
        self._unpublished_end: End | None = None
        self._counted_attempt = 0
        self._awaits_epochs = limits.has_checkpoints

    @property
    def attempt(self) -> int:
        """The number of the present attempt, from 0."""
        return self._attempt.number

    @property
    def draining(self) -> bool:
        """Whether the user asked for an orderly end."""
        return self._stop is not None and self._stop.drain

    @property
    def stopping(self) -> bool:
        """Whether the user asked for the end after a savepoint."""
        return self._stop is not None and self._stop.savepoint

    # --- begin and resume -----------------------------------------------------------------------

    def start(self, now_ns: int) -> list[Action]:
        """Open the first attempt."""
        return self._open(now_ns)

    @property
    def progress(self) -> ControllerProgress:
        """What a successor needs, as `resume` takes it."""
        staged = self.phase in (JobPhase.PUBLISHING, JobPhase.ENDED)
        return ControllerProgress(
            attempt=self.attempt,
            step=len(STEPS) if staged else self._steps.index,
            arguments=self._steps.arguments,
            draining=self.draining,
            exchanged=self._steps.exchanged,
            repairing=frozenset(self._repairs.pending),
            repaired=frozenset(self._repairs.finished),
            unpublished_end=self._unpublished_end,
            stopping=self.stopping,
            counted_attempt=self._counted_attempt,
            lost=self.lost,
        )

    def resume(self, progress: ControllerProgress, now_ns: int) -> list[Action]:
        """Continue for a controller that failed: call the step again that it was waiting for.

        A member carries out a step once and returns its result as often as it is called. A member
        that has lost the attempt raises, and the job begins anew. Replacements of relays are begun
        again, since it is unknown how far they came.
        """
        self._attempt.number = progress.attempt
        if progress.draining or progress.stopping:
            self._stop = StopRequested(progress.draining, progress.stopping)
        self._steps.exchanged = progress.exchanged
        self._counted_attempt = progress.counted_attempt
        self.lost = progress.lost
        if progress.unpublished_end is not None:
            self._attempt.busy = set(self._attempt.members)
            return self._end(progress.unpublished_end, now_ns)
        self._awaits_epochs &= progress.step <= STEPS.index("run")
        late_ns = now_ns + self._limits.start_timeout_ns
        self._repairs.restore(progress.repairing, progress.repaired, now_ns, late_ns)
        back: list[Action] = [
            RelayBack(relay, progress.exchanged[1][relay]) for relay in sorted(progress.repaired)
        ]
        self._steps.begin(min(progress.step, len(STEPS) - 1), progress.arguments)
        calls = self._attempt.call_members()
        self._await_start(now_ns)
        actions = [*back, *calls, *self._enter_phase(now_ns)]
        for relay in sorted(progress.repairing):
            actions += [RelayLost(relay), *self._attempt.call_rejoin(relay)]
        return actions

    # --- events ---------------------------------------------------------------------------------

    def handle(self, event: Event, now_ns: int) -> list[Action]:
        """Take one event; return what to do, in order."""
        if self.phase is JobPhase.ENDED:
            return []
        match event:
            case Returned() | Raised() if event.attempt != self.attempt:
                return []
            case Returned() if not self._is_expected(event):
                return []
            case Returned():
                self._attempt.busy.discard(event.member)
                return self._returned(event, now_ns)
            case Raised():
                self._attempt.busy.discard(event.member)
                return self._raised(event, now_ns)
            case Died():
                self._attempt.busy.discard(event.member)
                return self._died(event, now_ns)
            case Respawned():
                return self._respawned(event.member, now_ns)
            case AttemptLost():
                return self._attempt_lost(event, now_ns)
            case StopRequested():
                return self._stop_requested(event, now_ns)
            case Published():
                return self._published(event)
            case EpochCounted() | EpochsOver() | EpochsFailed() if event.attempt != self.attempt:
                return []
            case EpochCounted():
                self._counted_attempt = event.attempt
                return []
            case EpochsOver():
                return self._epochs_over(event, now_ns)
            case EpochsFailed():
                is_running = self.phase is JobPhase.RUNNING
                return self._fail(event.error, now_ns) if is_running else []
            case Tick():
                return self._tick(now_ns)

    def _is_expected(self, event: Returned) -> bool:
        """Whether a result is awaited; others are repeated, or of a relay that is not needed."""
        if self._is_given_up:
            return True
        if event.method == REJOIN:
            return event.member in self._repairs.pending
        return event.method == self._steps.method

    def _returned(self, event: Returned, now_ns: int) -> list[Action]:
        if self._is_given_up:
            return self._go_on_if_quiet(now_ns)
        if event.method == REJOIN:
            return [*self._attempt.rejoined(event.member, event.result, now_ns)]
        self._steps.take(event.member, event.result)
        is_last = not self._attempt.is_relay(event.member) and self._have_workers_ended
        if is_last and self.phase is JobPhase.RUNNING:
            return self._finish_relays(now_ns)
        return self._advance_if_complete(now_ns)

    def _raised(self, event: Raised, now_ns: int) -> list[Action]:
        member, error = event.member, event.error
        if self._is_given_up:
            return self._go_on_if_quiet(now_ns)
        is_lost = isinstance(error, AttemptLostError)
        if is_lost and self._attempt.is_relay(member) and self._have_workers_ended:
            return self._do_without([member], now_ns)
        if isinstance(error, NotInAttemptError) and self._can_replace(member):
            # A new relay: the former controller failed after respawning it, before it rejoined.
            self._begin_repair(member, now_ns)
            return [RelayLost(member), *self._attempt.call_rejoin(member)]
        if is_lost:
            lost = f"{self._names.of(member)} lost attempt {event.attempt}: {error}"
            return self._restart_attempt(lost, set(), now_ns)
        return self._fail(error, now_ns)

    def _died(self, event: Died, now_ns: int) -> list[Action]:
        member = event.member
        if self.phase is JobPhase.ENDING:
            return self._end_if_quiet()
        if self.phase is JobPhase.PUBLISHING:
            return []  # its output is staged already
        if self.phase is JobPhase.RESTARTING:
            self._attempt.unspawned.add(member)  # maybe again: it died before it was ready
            return [Respawn(member)]
        if self._attempt.is_relay(member) and self._have_workers_ended:
            return self._do_without([member], now_ns)
        if self._can_replace(member):
            self._begin_repair(member, now_ns)
            return [RelayLost(member), Respawn(member)]
        died = f"{self._names.of(member)} died ({event.detail})"
        if self._attempt.is_relay(member) and self.phase is JobPhase.RUNNING:
            count = self._repairs.count
            died = f"{died}, after {count} relays were replaced (multicast.repairs_max)"
        return self._restart_attempt(died, {member}, now_ns)

    def _respawned(self, member: int, now_ns: int) -> list[Action]:
        self._attempt.unspawned.discard(member)
        if member in self._repairs.pending and member not in self._attempt.busy:
            return [*self._attempt.call_rejoin(member)]
        return self._reopen_if_ready(now_ns)

    def _attempt_lost(self, event: AttemptLost, now_ns: int) -> list[Action]:
        is_running = event.attempt == self.attempt and self.phase is JobPhase.RUNNING
        needs_relays = not self._have_workers_ended
        needs_all = needs_relays or (self._awaits_epochs and event.unreachable is None)
        patience_ns = self._limits.unreachable_after_ns
        explained = self._repairs.explains(event.unreachable, now_ns, patience_ns)
        if not is_running or not needs_all or explained:
            return []
        return self._restart_attempt(event.reason, set(), now_ns)

    def _epochs_over(self, event: EpochsOver, now_ns: int) -> list[Action]:
        """Continue to the end: nothing of this attempt can be lost any more."""
        if self.phase is not JobPhase.RUNNING:
            return []
        if event.stopped:
            return self._end(End("stopped"), now_ns)
        self._awaits_epochs = False
        return self._advance_if_complete(now_ns)

    def _published(self, event: Published) -> list[Action]:
        self.phase = JobPhase.ENDED
        if event.error is not None:
            return [Discard(self.attempt), End("failed", event.error)]
        return [End("drained" if event.cut_short else "finished")]

    # --- the steps of an attempt ----------------------------------------------------------------

    def _open(self, now_ns: int) -> list[Action]:
        """Begin an attempt."""
        self.phase = JobPhase.STARTING
        self._await_start(now_ns)
        self._awaits_epochs = self._limits.has_checkpoints
        return [*self._attempt.open()]

    def _advance_if_complete(self, now_ns: int) -> list[Action]:
        """Call the next step once all members have returned; after the last one, publish."""
        if not self._steps.is_complete or (self._steps.method == "run" and self._awaits_epochs):
            return []
        if self._steps.method == "stage":
            self.phase = JobPhase.PUBLISHING
            return [Publish(self.attempt, self._steps.results)]
        self._steps.advance()
        return [*self._attempt.call_members(), *self._enter_phase(now_ns)]

    def _enter_phase(self, now_ns: int) -> list[Action]:
        """Enter the phase of the present step; running and staging have no deadline."""
        if self._steps.method == "run":
            self.phase, self._deadline = JobPhase.RUNNING, None
            return self._drain_if_requested(now_ns)
        if self._steps.method == "stage":
            self.phase, self._deadline = JobPhase.STAGING, None
        return []

    @property
    def awaits_last_epoch(self) -> bool:
        """Whether all workers have ended, and what they know is not all in a checkpoint."""
        is_running = self.phase is JobPhase.RUNNING
        return is_running and self._awaits_epochs and self._have_workers_ended

    @property
    def _have_workers_ended(self) -> bool:
        """Whether all workers have received and sent everything: no relay is needed then."""
        if self.phase is JobPhase.RUNNING:
            return self._steps.have_workers_returned
        return self.phase is JobPhase.STAGING

    def _finish_relays(self, now_ns: int) -> list[Action]:
        """Let the relays finish; do without those that are being replaced."""
        for relay in self._repairs.pending:
            self._attempt.do_without(relay)
        self._await_drained(now_ns)
        finish = self._attempt.command("finish")
        return [*finish, *self._advance_if_complete(now_ns)]

    def _can_replace(self, member: int) -> bool:
        """Whether a failed member is replaced within the attempt."""
        is_running = self.phase is JobPhase.RUNNING
        return is_running and self._attempt.is_relay(member) and self._repairs.is_possible

    def _begin_repair(self, relay: int, now_ns: int) -> None:
        self._attempt.begin_repair(relay, now_ns + self._limits.start_timeout_ns)

    def _do_without(self, relays: Iterable[int], now_ns: int) -> list[Action]:
        """Continue without relays that are no longer needed."""
        for relay in relays:
            self._attempt.do_without(relay)
        return self._advance_if_complete(now_ns)

    # --- restart --------------------------------------------------------------------------------

    def _restart_attempt(self, reason: str, died: set[int], now_ns: int) -> list[Action]:
        """Restart the job, or fail it if it may not be restarted (again)."""
        restarts = self.attempt - self._counted_attempt
        refusal = self._limits.refusal(restarts, is_draining=self.draining)
        if refusal is not None:
            msg = f"{reason}; the job is not restarted: {refusal}"
            return self._fail(WorkerDiedError(msg), now_ns)
        if self.lost[0] != self.attempt:  # else a controller that failed began the restart
            self.lost = self.attempt, reason
        return self._restart(died, now_ns)

    def _restart(self, died: set[int], now_ns: int) -> list[Action]:
        """Abort the members that are alive, and replace the others."""
        self.phase = JobPhase.RESTARTING
        self._deadline = _Deadline(now_ns + self._limits.kill_grace_ns, self._replace_hanging)
        self._repairs.give_up()
        respawns = self._attempt.respawn(self._repairs.departed | died)
        aborts = self._attempt.command("abort")
        return [*aborts, *respawns, *self._reopen_if_ready(now_ns)]

    def _replace_hanging(self, now_ns: int) -> list[Action]:
        """Replace the members that did not abort; from now on wait for processes to start."""
        self._await_start(now_ns)
        return [*self._attempt.respawn(set(self._attempt.busy))]

    def _reopen_if_ready(self, now_ns: int) -> list[Action]:
        """Open the next attempt once no member is busy or missing."""
        if self.phase is not JobPhase.RESTARTING or self._attempt.late:
            return []
        discard = Discard(self.attempt)
        self._attempt.number += 1
        return [discard, *self._open(now_ns)]

    # --- stop and failure -----------------------------------------------------------------------

    @property
    def _is_given_up(self) -> bool:
        """Whether members only have to end their steps: the attempt is over."""
        return self.phase in (JobPhase.RESTARTING, JobPhase.ENDING)

    def _go_on_if_quiet(self, now_ns: int) -> list[Action]:
        """Reopen or end after a given-up attempt, once no member is busy."""
        is_ending = self.phase is JobPhase.ENDING
        return self._end_if_quiet() if is_ending else self._reopen_if_ready(now_ns)

    def _stop_requested(self, event: StopRequested, now_ns: int) -> list[Action]:
        if self.phase is JobPhase.ENDING or event == self._stop:  # which adds no time to a drain
            return []
        if self.phase is JobPhase.PUBLISHING:
            # Too late to change the outcome, but a successor must not begin anew.
            self._stop = StopRequested(drain=True)
            return []
        begins = self.phase in (JobPhase.STARTING, JobPhase.RESTARTING)
        begins_anew = begins and (self.attempt > 0 or self.phase is JobPhase.RESTARTING)
        begins_anew &= not self._limits.has_checkpoints
        if event.savepoint:
            self._stop = event
            return []
        if begins_anew or not event.drain:
            return self._end(End("cancelled"), now_ns)
        self._stop = event
        return self._drain_if_requested(now_ns)

    def _drain_if_requested(self, now_ns: int) -> list[Action]:
        if not self.draining or self.phase is not JobPhase.RUNNING:
            return []
        self._await_drained(now_ns)
        return [*self._attempt.command("drain")]

    def _fail(self, error: WhaleError, now_ns: int) -> list[Action]:
        return self._end(End("failed", error), now_ns)

    def _end(self, end: End, now_ns: int) -> list[Action]:
        """Abort all members, and end like this, without publishing."""
        self.phase = JobPhase.ENDING
        self._repairs.give_up()
        self._unpublished_end = end
        self._deadline = _Deadline(now_ns + self._limits.kill_grace_ns, self._end_at_once)
        return [*self._attempt.command("abort"), *self._end_if_quiet()]

    def _end_if_quiet(self) -> list[Action]:
        if self._attempt.busy:
            return []
        assert self._unpublished_end is not None
        self.phase = JobPhase.ENDED
        return [Discard(self.attempt), self._unpublished_end]

    def _end_at_once(self, _now_ns: int) -> list[Action]:
        """End without the members that did not abort."""
        self._attempt.busy.clear()
        return self._end_if_quiet()

    # --- deadlines ------------------------------------------------------------------------------

    def _await_start(self, now_ns: int) -> None:
        self._deadline = _Deadline(now_ns + self._limits.start_timeout_ns, self._fail_late_start)

    def _await_drained(self, now_ns: int) -> None:
        self._deadline = _Deadline(now_ns + self._limits.drain_timeout_ns, self._end_late_drain)

    def _tick(self, now_ns: int) -> list[Action]:
        """Act on the deadlines that have passed: that of each repair, and that of the phase."""
        late_relays = self._repairs.late(now_ns)
        if late_relays and self.phase is JobPhase.RUNNING:
            absent = set(late_relays) & self._attempt.unspawned  # others rejoin, and are aborted
            late = self._names.not_in_time(late_relays, "come back")
            return self._restart_attempt(late, absent, now_ns)
        deadline = self._deadline
        if deadline is None or now_ns < deadline.at_ns:
            return []
        self._deadline = None
        return deadline.missed(now_ns)

    def _end_late_drain(self, now_ns: int) -> list[Action]:
        """Fail if workers did not drain; do without relays that did not finish."""
        if self._have_workers_ended:
            return self._do_without(self._attempt.late, now_ns)
        return self._fail(WorkerDiedError(self._names.not_drained(self._attempt.late)), now_ns)

    def _fail_late_start(self, now_ns: int) -> list[Action]:
        what = "come back" if self.phase is JobPhase.RESTARTING else "start"
        return self._fail(ResourceError(self._names.not_in_time(self._attempt.late, what)), now_ns)
