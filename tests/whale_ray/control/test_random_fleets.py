"""Controllers that lead random fleets of workers and relays, die amid that, and are replaced."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tests.whale_ray.control.test_controller import LIMITS
from whale_ray.configs.errors import AttemptLostError, NotInAttemptError
from whale_ray.control.attempt_steps import REJOIN, STEPS
from whale_ray.control.controller import JobController, JobPhase
from whale_ray.control.controller_events import (
    Action,
    CallMember,
    Died,
    End,
    Event,
    Publish,
    Published,
    Raised,
    Respawn,
    Respawned,
    Returned,
    StopRequested,
    Tick,
)
from whale_ray.control.controller_progress import ControllerProgress

TURNS_MAX = 5_000


@dataclass
class Member:
    """A process; it carries out a step once, and tells its result as often as it is asked."""

    index: int
    is_relay: bool
    attempt: int = -1
    alive: bool = True
    hangs: bool = False
    cut_short: bool = False
    under_way: tuple[int, str] | None = None
    answers: dict[tuple[int, str], Returned | Raised] = field(default_factory=dict)

    def call(self, attempt: int, method: str) -> list[Event]:
        """Begin a step, or obey a command; return what is answered at once."""
        if not self.alive or self.hangs:
            return []
        key = (attempt, method)
        if method in (*STEPS, REJOIN):
            if key in self.answers:
                return [self.answers[key]]
            if key != self.under_way:
                return self._begin(key)
        elif self.under_way == (attempt, "run"):
            if method == "abort":
                return self._tell(Raised(self.index, attempt, "run", AttemptLostError("aborted")))
            if method == {True: "finish", False: "drain"}[self.is_relay]:
                self.cut_short = method == "drain"
                return self.end_run()
        return []

    def _begin(self, key: tuple[int, str]) -> list[Event]:
        attempt, method = key
        assert self.under_way is None, f"{method} is asked for during {self.under_way}"
        if method in ("open", REJOIN):
            self.attempt = attempt
        if self.attempt != attempt:
            error = NotInAttemptError(f"it is in attempt {self.attempt}")
            return [Raised(self.index, attempt, method, error)]
        self.under_way = key
        if method == "run":
            return []
        return self._tell(Returned(self.index, attempt, method, {}))

    def end_run(self) -> list[Event]:
        assert self.under_way is not None
        return self._tell(Returned(self.index, self.under_way[0], "run", {}))

    def _tell(self, event: Returned | Raised) -> list[Event]:
        assert self.under_way is not None
        self.answers[self.under_way] = event
        self.under_way = None
        return [event]


class Story:
    """One job, and what may happen to it.

    "worker" and "relay" die, relays "hang", the "controller" fails and is replaced.

    The user asks for a "drain", once.

    With `from_running` members live until the job runs.
    """

    def __init__(
        self,
        seed: int,
        workers: int,
        relays: int,
        kinds: tuple[str, ...],
        *,
        from_running: bool = False,
    ) -> None:
        self.chance = random.Random(seed)
        self.workers, self.relays, self.kinds = workers, relays, kinds
        self.members = [Member(i, i >= workers) for i in range(workers + relays)]
        self.controller = JobController(workers, LIMITS, relays)
        self.events: list[Event] = []
        self.ended: End | None = None
        self.now_ns = 0
        self.troubles = 6
        self.from_running = from_running
        self.stopped_in: int | None = None  # the attempt in which the user asked for the end

    def play(self) -> End:
        actions = self.controller.start(0)
        for _ in range(TURNS_MAX):
            written = self.controller.progress  # before the calls
            for action in actions:
                if self._happens("controller", 0.02):
                    actions = self._succeed(written)
                    break
                self._perform(action)
            else:
                actions = []
            if self.ended is not None:
                return self.ended
            self._trouble()
            if self.stopped_in is None and self._happens("drain", 0.02):
                self.stopped_in = self.controller.attempt
                actions += self.controller.handle(StopRequested(drain=True), self.now_ns)
            actions += self.controller.handle(self._next_event(), self.now_ns)
        msg = f"it does not end: {self.controller.phase}, {self.members}"
        raise AssertionError(msg)

    def _happens(self, kind: str, share: float) -> bool:
        if kind not in self.kinds or self.troubles == 0 or self.chance.random() >= share:
            return False
        self.troubles -= 1
        return True

    def _succeed(self, written: ControllerProgress) -> list[Action]:
        """Let another controller go on; what was on its way to the former one is lost."""
        self.events = [event for event in self.events if isinstance(event, Died | Respawned)]
        self.controller = JobController(self.workers, LIMITS, self.relays)
        return self.controller.resume(written, self.now_ns)

    def _perform(self, action: Action) -> None:
        match action:
            case CallMember(worker, attempt, method):
                self.events += self.members[worker].call(attempt, method)
                if not self.members[worker].alive and method in (*STEPS, REJOIN):
                    self._tell_death(worker)  # again if a successor asks
            case Respawn(worker):
                self.events = [e for e in self.events if getattr(e, "member", None) != worker]
                self.members[worker] = Member(worker, worker >= self.workers)
                self.events.append(Respawned(worker))
            case Publish(attempt):
                assert self.stopped_in in (None, attempt), "what another attempt read"
                cut_short = any(member.cut_short for member in self.members)
                self.events.append(Published(cut_short=cut_short))
            case End():
                self.ended = action

    def _trouble(self) -> None:
        if self.controller.phase is JobPhase.STARTING and self.from_running:
            return
        for member in self.members:
            kind = "relay" if member.is_relay else "worker"
            if member.alive and self._happens(kind, 0.02):
                member.alive = False
                self._tell_death(member.index)
            elif member.alive and member.is_relay and self._happens("hang", 0.02):
                member.hangs = True

    def _tell_death(self, member: int) -> None:
        self.events = [e for e in self.events if getattr(e, "member", None) != member]
        self.events.append(Died(member, "killed"))

    def _next_event(self) -> Event:
        running = [
            member
            for member in self.members
            if not member.is_relay and member.under_way is not None and not member.hangs
        ]
        if running and self.chance.random() < 0.1:
            self.events += self.chance.choice(running).end_run()
        if self.events and self.chance.random() < 0.9:
            return self.events.pop(self.chance.randrange(len(self.events)))
        self.now_ns += 5
        return Tick()


SEEDS = st.integers(0, 2**32)


@given(seed=SEEDS, workers=st.integers(1, 3), relays=st.integers(1, 3))
def test_relays_and_controllers_that_die_cost_no_attempt(seed, workers, relays):
    story = Story(seed, workers, relays, ("relay", "controller"), from_running=True)
    assert story.play().state == "finished"
    assert story.controller.attempt == 0


@given(seed=SEEDS, workers=st.integers(1, 3), relays=st.integers(0, 3))
def test_the_job_ends_whichever_members_die(seed, workers, relays):
    story = Story(seed, workers, relays, ("worker", "relay", "controller"))
    assert story.play().state in {"finished", "failed"}


@given(seed=SEEDS, workers=st.integers(1, 3), relays=st.integers(1, 3))
def test_a_relay_that_hangs_is_replaced_or_done_without(seed, workers, relays):
    story = Story(seed, workers, relays, ("hang", "relay", "controller"))
    assert story.play().state in {"finished", "failed"}


@given(seed=SEEDS, workers=st.integers(1, 3), relays=st.integers(0, 3))
def test_if_members_die_around_a_drain_no_other_attempt_begins(seed, workers, relays):
    """What was drained is published by the attempt that read it, or not at all."""
    story = Story(seed, workers, relays, ("drain", "worker", "relay", "controller"))
    end = story.play()
    if story.stopped_in is None:
        assert end.state in {"finished", "failed"}
        return
    assert story.controller.attempt == story.stopped_in
    assert end.state in {"finished", "drained", "cancelled", "failed"}
    if end.state in {"finished", "drained"}:
        assert (end.state == "drained") == any(member.cut_short for member in story.members)
