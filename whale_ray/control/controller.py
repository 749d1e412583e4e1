"""The controller: leads a job's members through an attempt, and through the next one if one dies.

The members are the workers and, where a job spans hosts, behind them the hosts' relays.

A pure state machine: `handle` takes an event and returns the actions to carry out; time comes in
with `Tick`. A supervisor does the I/O, and writes `progress` down: a controller that takes the
place of a dead one resumes from it, while the workers run on.

::

    STARTING ──────► RUNNING ──► STAGING ──► PUBLISHING ──► ended (finished or drained)
    open, link,         │           │            │
    connect             │           │            │
       ▲                ▼           ▼            ▼
       └── RESTARTING ◄── a worker died       FAILING ──► ended (failed or cancelled)

An attempt is all or nothing. All members take its steps together: open, link and connect their
rings (each given what the step before it returned on all of them), run until their inputs end,
stage the output of their sinks. Relays, which do not look into what they carry, run until all
workers have, and are then told to finish. Only at the end is the output published, once. If a
worker dies before that, the others are aborted, the dead one is replaced, what was staged is
discarded, and the next attempt reads the sources from the start (DESIGN: death of a worker). A
relay that dies while the job runs is replaced within the attempt: it rejoins, and runs. Once all
workers have ended, those that die, or do not finish, are done without.

A drain ends the sources where they are. Asked for before the workers run, there is nothing to
drain: the job is cancelled. A job that loses its attempt once it is to drain fails: another attempt
would begin at the start of the sources, and end there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from ..configs.errors import (
    AttemptLostError,
    NotInAttemptError,
    ResourceError,
    WhaleError,
    WorkerDiedError,
)
from .controller_events import (
    Action,
    AttemptLost,
    Call,
    Died,
    Discard,
    End,
    Event,
    Publish,
    Published,
    Raised,
    RelayBack,
    RelayLost,
    Respawn,
    Respawned,
    Returned,
    StopAsked,
    Tick,
    WorkerResult,
)
from .member_names import MemberNames
from .progress import ControllerProgress


class JobPhase(Enum):
    """Where the job is."""

    STARTING = auto()
    RUNNING = auto()
    STAGING = auto()
    PUBLISHING = auto()
    RESTARTING = auto()
    FAILING = auto()
    ENDED = auto()


STEPS = ("open", "link", "connect", "run", "stage")
"""What every worker does in an attempt, in this order; methods of `Worker`."""

REJOIN = "rejoin"
"""What a relay does that takes the place of a dead one: all steps before `run` at once."""

_TAKE_RESULTS = ("link", "connect")
"""The steps that take what the step before them returned on all workers."""

_DRAINING = "it was to drain, and what it had read and not published is lost; run it again"


@dataclass(frozen=True)
class Limits:
    """How often and how long the controller tries, in ns; why it may not restart the job, if so."""

    max_restarts: int
    start_timeout_ns: int
    drain_timeout_ns: int
    kill_grace_ns: int
    restart_refused: str | None = None
    repairs_max: int = 16


class JobController:
    """Leads workers 0 … n − 1 and the relays behind them; see the module's diagram.

    `names` is what messages call the members; without it, all are workers.
    """

    def __init__(
        self, workers: int, limits: Limits, relays: int = 0, names: tuple[str, ...] = ()
    ) -> None:
        self.phase = JobPhase.STARTING
        self.attempt = 0
        self._step = 0
        self._arguments: tuple[object, ...] = ()
        self._workers = workers
        self._members = workers + relays
        self._names = MemberNames(workers, relays, names)
        self._limits = limits
        self._results: dict[int, WorkerResult] = {}
        self._made: tuple[tuple[WorkerResult, ...], ...] = ()
        self._repairing: dict[int, int] = {}  # relay → until when it has to be back
        self._repaired: set[int] = set()
        self._repairs = 0
        self._departed: set[int] = set()  # relays that this attempt does without
        self._unspawned: set[int] = set()
        self._busy: set[int] = set()
        self._aborting = False
        self._deadline_ns: int | None = None
        self._stop: StopAsked | None = None
        self._failing = False  # for good: also once it has ended
        self._error: WhaleError | None = None

    @property
    def draining(self) -> bool:
        """Whether the user asked for an orderly end."""
        return self._stop is not None and self._stop.drain

    def start(self, now_ns: int) -> list[Action]:
        """Open the first attempt."""
        return self._open(now_ns)

    @property
    def progress(self) -> ControllerProgress:
        """Where it is, as `resume` takes it."""
        staged = self.phase in (JobPhase.PUBLISHING, JobPhase.ENDED)
        step = len(STEPS) if staged else self._step
        return ControllerProgress(
            self.attempt,
            step,
            self._arguments,
            self.draining,
            self._made,
            frozenset(self._repairing),
            frozenset(self._repaired),
            self._failing,
            self._error,
        )

    def resume(self, progress: ControllerProgress, now_ns: int) -> list[Action]:
        """Go on for a controller that died: ask for the step again that it was waiting for.

        Members carry out a step once and tell its result as often as they are asked. One that has
        lost the attempt meanwhile says so, and the job begins anew. What was under way when relays
        were replaced is done again, as nobody knows how far it came.
        """
        self.attempt = progress.attempt
        self._stop = StopAsked(drain=True) if progress.draining else None
        self._made = progress.made
        if progress.failing:
            self._busy = set(range(self._members))
            return self._fail(progress.error, now_ns)
        self._repairing = dict.fromkeys(progress.repairing, self._late_ns(now_ns))
        self._repaired = set(progress.repaired)
        back = [RelayBack(relay, self._made[1][relay]) for relay in sorted(self._repaired)]
        step = min(progress.step, len(STEPS) - 1)
        actions = self._take_step(step, progress.arguments)
        self._deadline_ns = self._late_ns(now_ns)
        actions += self._enter_phase(now_ns)
        for relay in sorted(self._repairing):
            actions += [RelayLost(relay), *self._rejoin(relay)]
        return [*back, *actions]

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
                self._busy.discard(event.worker)
                return self._returned(event, now_ns)
            case Raised():
                self._busy.discard(event.worker)
                return self._raised(event, now_ns)
            case Died():
                self._busy.discard(event.worker)
                return self._died(event, now_ns)
            case Respawned():
                self._unspawned.discard(event.worker)
                if event.worker in self._repairing and event.worker not in self._busy:
                    return self._rejoin(event.worker)
                return self._reopen_when_ready(now_ns)
            case AttemptLost():
                return self._attempt_lost(event, now_ns)
            case StopAsked():
                return self._stop_asked(event, now_ns)
            case Published():
                return self._published(event)
            case Tick():
                return self._tick(now_ns)

    @property
    def _is_given_up(self) -> bool:
        return self.phase in (JobPhase.RESTARTING, JobPhase.FAILING)

    def _late_ns(self, now_ns: int) -> int:
        """Return when a process that is to start now has taken too long."""
        return now_ns + self._limits.start_timeout_ns

    def _wait_for_all(self, now_ns: int) -> list[Action]:
        failing = self.phase is JobPhase.FAILING
        return self._end_when_quiet() if failing else self._reopen_when_ready(now_ns)

    def _open(self, now_ns: int) -> list[Action]:
        self.phase = JobPhase.STARTING
        self._made = ()
        self._repairs = 0
        self._repaired.clear()
        self._departed.clear()
        self._deadline_ns = self._late_ns(now_ns)
        return self._take_step(0, ())

    def _take_step(self, step: int, arguments: tuple[object, ...]) -> list[Action]:
        self._step = step
        self._arguments = arguments
        self._results.clear()
        if STEPS[step] == "stage":
            self._results |= dict.fromkeys(range(self._workers, self._members))
        self._busy = set(range(self._members)) - set(self._results) - set(self._repairing)
        return [Call(m, self.attempt, STEPS[step], arguments) for m in sorted(self._busy)]

    def _is_expected(self, event: Returned) -> bool:
        """Whether it is waited for: not told twice, nor of a relay that was done without."""
        if self._is_given_up:
            return True
        if event.method == REJOIN:
            return event.worker in self._repairing
        return event.method == STEPS[self._step]

    def _returned(self, event: Returned, now_ns: int) -> list[Action]:
        if self._is_given_up:
            return self._wait_for_all(now_ns)
        if event.method == REJOIN:
            return self._rejoined(event)
        self._results[event.worker] = event.result
        is_last = not self._is_relay(event.worker) and self._have_workers_ended
        if is_last and self.phase is JobPhase.RUNNING:
            return self._finish_relays(now_ns)
        return self._go_on_if_complete(now_ns)

    def _go_on_if_complete(self, now_ns: int) -> list[Action]:
        if len(self._results) < self._members:
            return []
        results = tuple(self._results[member] for member in range(self._members))
        if STEPS[self._step] == "stage":
            self.phase = JobPhase.PUBLISHING
            return [Publish(self.attempt, results)]
        step = self._step + 1
        arguments = (results,) if STEPS[step] in _TAKE_RESULTS else ()
        self._made += arguments
        return self._take_step(step, arguments) + self._enter_phase(now_ns)

    def _finish_relays(self, now_ns: int) -> list[Action]:
        """Let the relays end, those that are being replaced without their successors."""
        for relay in tuple(self._repairing):
            self._do_without(relay)
        self._deadline_ns = now_ns + self._limits.drain_timeout_ns
        finish = [Call(relay, self.attempt, "finish") for relay in sorted(self._busy)]
        return [*finish, *self._go_on_if_complete(now_ns)]

    @property
    def _have_workers_ended(self) -> bool:
        """Whether every worker has received and sent everything; relays have nothing to do then."""
        if self.phase is JobPhase.RUNNING:
            return all(worker in self._results for worker in range(self._workers))
        return self.phase is JobPhase.STAGING

    def _enter_phase(self, now_ns: int) -> list[Action]:
        """Enter the phase of the present step; running and staging take as long as they take."""
        if STEPS[self._step] == "run":
            self.phase, self._deadline_ns = JobPhase.RUNNING, None
            return self._drain_if_asked(now_ns)
        if STEPS[self._step] == "stage":
            self.phase, self._deadline_ns = JobPhase.STAGING, None
        return []

    def _raised(self, event: Raised, now_ns: int) -> list[Action]:
        if self._is_given_up:
            return self._wait_for_all(now_ns)
        is_lost = isinstance(event.error, AttemptLostError)
        if is_lost and self._is_relay(event.worker) and self._have_workers_ended:
            return self._depart(event.worker, now_ns)
        if isinstance(event.error, NotInAttemptError) and self._is_relay(event.worker):
            # It was replaced, and whoever led then died before it could rejoin.
            if self.phase is JobPhase.RUNNING and self._repairs < self._limits.repairs_max:
                return [*self._repair(event.worker, now_ns)[:1], *self._rejoin(event.worker)]
        if is_lost:
            lost = f"{self._names.of(event.worker)} lost attempt {event.attempt}: {event.error}"
            return self._begin_anew(lost, set(), now_ns)
        return self._fail(event.error, now_ns)

    def _died(self, event: Died, now_ns: int) -> list[Action]:
        if self.phase is JobPhase.FAILING:
            return self._end_when_quiet()
        if self.phase is JobPhase.PUBLISHING:
            return []  # its output is staged already; nothing more is asked of it
        if self.phase is JobPhase.RESTARTING:
            self._unspawned.add(event.worker)  # maybe again: it died before it was ready
            return [Respawn(event.worker)]
        if self._is_relay(event.worker) and self._have_workers_ended:
            return self._depart(event.worker, now_ns)
        died = f"{self._names.of(event.worker)} died ({event.detail})"
        if self._is_relay(event.worker) and self.phase is JobPhase.RUNNING:
            if self._repairs < self._limits.repairs_max:
                return self._repair(event.worker, now_ns)
            died = f"{died}, after {self._repairs} relays were replaced (multicast.repairs_max)"
        return self._begin_anew(died, {event.worker}, now_ns)

    def _attempt_lost(self, event: AttemptLost, now_ns: int) -> list[Action]:
        is_running = event.attempt == self.attempt and self.phase is JobPhase.RUNNING
        if not is_running or self._have_workers_ended:
            return []
        return self._begin_anew(event.reason, set(), now_ns)

    def _is_relay(self, member: int) -> bool:
        return member >= self._workers

    def _depart(self, relay: int, now_ns: int) -> list[Action]:
        self._do_without(relay)
        return self._go_on_if_complete(now_ns)

    def _do_without(self, relay: int) -> None:
        """Let a relay go that has nothing left to do, whatever becomes of its process."""
        self._departed.add(relay)
        self._repairing.pop(relay, None)
        self._unspawned.discard(relay)
        self._busy.discard(relay)
        self._results.setdefault(relay, None)

    def _repair(self, relay: int, now_ns: int) -> list[Action]:
        """Replace a relay; its host's workers and all others run on."""
        self._repairs += 1
        self._repaired.discard(relay)
        self._repairing[relay] = self._late_ns(now_ns)
        self._unspawned.add(relay)
        self._results.pop(relay, None)
        return [RelayLost(relay), Respawn(relay)]

    def _rejoin(self, relay: int) -> list[Action]:
        self._unspawned.discard(relay)
        self._busy.add(relay)
        return [Call(relay, self.attempt, REJOIN, self._made)]

    def _rejoined(self, event: Returned) -> list[Action]:
        """Let a new relay run."""
        relay = event.worker
        del self._repairing[relay]
        self._repaired.add(relay)
        boards, offers = self._made
        self._made = (boards, (*offers[:relay], event.result, *offers[relay + 1 :]))
        self._busy.add(relay)
        return [RelayBack(relay, event.result), Call(relay, self.attempt, "run")]

    def _begin_anew(self, reason: str, dead: set[int], now_ns: int) -> list[Action]:
        """Restart the job, or fail it if it may not be restarted (again)."""
        refused = _DRAINING if self.draining else self._limits.restart_refused
        if refused is None and self.attempt >= self._limits.max_restarts:
            refused = f"it was restarted {self.attempt} times already (runtime.max_restarts)"
        if refused is not None:
            msg = f"{reason}; the job is not restarted: {refused}"
            return self._fail(WorkerDiedError(msg), now_ns)
        return self._restart(dead, now_ns)

    def _restart(self, dead: set[int], now_ns: int) -> list[Action]:
        self.phase = JobPhase.RESTARTING
        self._aborting = True
        self._deadline_ns = now_ns + self._limits.kill_grace_ns
        gone = self._departed | dead
        self._unspawned |= gone
        self._repairing.clear()
        aborts = [Call(w, self.attempt, "abort") for w in sorted(self._busy)]
        respawns = [Respawn(w) for w in sorted(gone)]
        return [*aborts, *respawns, *self._reopen_when_ready(now_ns)]

    def _replace_hanging(self, now_ns: int) -> list[Action]:
        """Replace the workers that did not abort; from now on wait for processes to start."""
        self._aborting = False
        self._deadline_ns = now_ns + self._limits.start_timeout_ns
        hanging = sorted(self._busy)
        self._unspawned |= self._busy
        self._busy.clear()
        return [Respawn(worker) for worker in hanging]

    def _reopen_when_ready(self, now_ns: int) -> list[Action]:
        if self.phase is not JobPhase.RESTARTING or self._busy or self._unspawned:
            return []
        actions: list[Action] = [Discard(self.attempt)]
        self.attempt += 1
        return [*actions, *self._open(now_ns)]

    def _stop_asked(self, event: StopAsked, now_ns: int) -> list[Action]:
        if self.phase is JobPhase.FAILING:
            return []
        if self.phase is JobPhase.PUBLISHING:  # too late to change the outcome
            self._stop = StopAsked(drain=True)  # but no successor shall begin anew
            return []
        has_nothing_to_drain = self.phase in (JobPhase.STARTING, JobPhase.RESTARTING)
        if has_nothing_to_drain or not event.drain:
            return self._fail(None, now_ns)
        self._stop = event
        return self._drain_if_asked(now_ns)

    def _drain_if_asked(self, now_ns: int) -> list[Action]:
        if not self.draining or self.phase is not JobPhase.RUNNING:
            return []
        self._deadline_ns = now_ns + self._limits.drain_timeout_ns
        return [Call(worker, self.attempt, "drain") for worker in sorted(self._busy)]

    def _published(self, event: Published) -> list[Action]:
        if event.error is not None:
            self.phase = JobPhase.ENDED
            return [Discard(self.attempt), End("failed", event.error)]
        self.phase = JobPhase.ENDED
        return [End("drained" if event.cut_short else "finished")]

    def _fail(self, error: WhaleError | None, now_ns: int) -> list[Action]:
        """Abort everything; without an error, because the user asked for it."""
        self.phase, self._failing = JobPhase.FAILING, True
        self._repairing.clear()
        self._error = error
        self._deadline_ns = now_ns + self._limits.kill_grace_ns
        aborts = [Call(w, self.attempt, "abort") for w in sorted(self._busy)]
        return [*aborts, *self._end_when_quiet()]

    def _end_when_quiet(self) -> list[Action]:
        if self._busy:
            return []
        self.phase = JobPhase.ENDED
        state = "cancelled" if self._error is None else "failed"
        return [Discard(self.attempt), End(state, self._error)]

    def _tick(self, now_ns: int) -> list[Action]:
        late = [relay for relay, late_ns in self._repairing.items() if now_ns >= late_ns]
        if late and self.phase is JobPhase.RUNNING:
            absent = set(late) & self._unspawned  # others rejoin, and are aborted
            return self._begin_anew(self._names.not_in_time(late, "come back"), absent, now_ns)
        if self._deadline_ns is None or now_ns < self._deadline_ns:
            return []
        self._deadline_ns = None
        late = sorted(self._busy | self._unspawned)
        if self.phase is JobPhase.FAILING:
            self._busy.clear()
            return self._end_when_quiet()
        if self.phase is JobPhase.RESTARTING and not self._aborting:
            return self._fail(ResourceError(self._names.not_in_time(late, "come back")), now_ns)
        if self.phase is JobPhase.RESTARTING:
            return self._replace_hanging(now_ns)
        if self.phase is JobPhase.RUNNING and self._have_workers_ended:
            for relay in late:
                self._do_without(relay)
            return self._go_on_if_complete(now_ns)
        if self.phase is JobPhase.RUNNING:
            # Relays do not drain: they wait for the workers that are late.
            late = [member for member in late if member < self._workers] or late
            msg = (
                f"{self._names.told(late)} did not drain in time: raise runtime.drain_timeout_ms, "
                "or cancel with a second Ctrl-C"
            )
            return self._fail(WorkerDiedError(msg), now_ns)
        return self._fail(ResourceError(self._names.not_in_time(late, "start")), now_ns)
