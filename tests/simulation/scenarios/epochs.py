"""A job whose participants take snapshots at epochs, while workers, the store and the sink fail.

Two workers, each with a participant for each of three stages: sources with two tasks, which number
their rows; a count of the rows of each key; a sink. The producers of a worker share a ring to each
participant that consumes their rows. The store of manifests and the table outside fail before or
after they have done what they were asked for, snapshots fail, and workers or the whole job are
killed. The job then goes on from the newest manifest. The controller alone is killed, too, at any
step: participants go on without it, until its successor takes over. Whenever something is
committed, the table must hold exactly what the rows before the positions in the manifest make, and
in the end what all rows make.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.simulation.scenarios.epoch_control import (
    TASKS,
    WORKERS,
    ControllerDiedError,
    Manifest,
    Part,
    Store,
    Table,
    new_session,
)
from tests.simulation.scenarios.epoch_stages import Participant, Ring, expected_output
from tests.simulation.scenarios.workload import MS
from tests.simulation.seeds import Scenario
from tests.simulation.simulator import Simulator
from whale_ray.control.controller_events import EpochsFailed, EpochsOver
from whale_ray.control.epoch_progress import EpochProgress
from whale_ray.control.epoch_session import EpochSession
from whale_ray.control.fleet import MemberMessage
from whale_ray.state.epochs import coordinator_events as events
from whale_ray.state.epochs.epoch_commands import EpochCommand, EpochDurable, InjectMarker

UNTIL_NS = 600_000 * MS
_TOLD = (events.Aligned, events.SnapshotWritten, events.SnapshotFailed, events.ParticipantEnded)


class Job:
    """The participants and the controller of the present run, and what surrounds them."""

    def __init__(self, simulation: Simulator) -> None:
        self.simulation = simulation
        self.chance = random.Random(f"{simulation.seed}/job")
        self.rows = self.chance.choice((5, 20, 60))
        self.trouble = self.chance.choice((0.0, 0.05, 0.3))
        self._checkpoints = {
            "interval_ms": self.chance.choice((10, 20, 100)),
            "min_pause_ms": self.chance.choice((0, 3)),
            "timeout_ms": self.chance.choice((60, 200, 500)),
            "retry_ms": 2,
            "tries_max": 1_000,
        }
        self._writing_ns = self.chance.choice((2, 10, 40)) * MS
        self.store, self.table = Store(), Table()
        self.seen: Counter[str] = Counter()
        self.over = self._stop_requested = False
        self._controllers = 0
        self.number = 0
        self.session: EpochSession | None = None
        self._steps_left: int | None = None
        """Steps of the controller until one is its last; None: it lives."""
        self._run()

    # --- runs and attempts ------------------------------------------------------------------------

    def _run(self) -> None:
        """Begin another job, which goes on from the newest manifest."""
        base = self.store.begin_run()
        self.journal: EpochProgress | None = None
        self._written_in = 0  # the attempt
        self._steps_left = None
        self._begin_controller()
        self._begin_attempt()
        self._controlled().writer.recover(base)
        if self._stop_requested:
            self._controlled().savepoints.stop()
        self._start(self._controllers)

    def kill(self) -> None:
        """Kill the controller and the workers, and begin another job."""
        if self.over:
            return
        self.seen[f"killed while {self._phase}"] += 1
        self._run()

    def kill_workers(self) -> None:
        """Kill the workers: the controller, if it lives, begins another attempt."""
        if self.over or self.session is None:
            return
        self.seen[f"workers killed while {self._phase}"] += 1
        self._begin_attempt()
        self._go_back()

    def _go_back(self) -> None:
        """Let the controller find from where the attempt goes on, as its supervisor does."""
        session = self._controlled()
        session.end()
        try:
            self._write_down()
            self.store.advance()
            session.writer.recover(self.store.newest())
            self._write_down()
        except ControllerDiedError as died:
            self._lose_controller(str(died))
        else:
            self._later(self._start, self._controllers, within_ns=20 * MS)

    def _begin_attempt(self) -> None:
        """Give the present attempt up: whatever is on its way in it comes to nothing."""
        self.number += 1
        self._is_started = False
        self._told: list[MemberMessage] = []
        self._taken: set[int] = set()

    def _start(self, controller: int) -> None:
        """Let workers go on from where the controller says, unless its successor is to do so."""
        if self.session is None or controller != self._controllers:
            return
        try:
            self.step("start")
        except ControllerDiedError as died:
            self._lose_controller(str(died))
            return
        self._is_started = True
        self._rings = {
            (stage, source, target): Ring()
            for stage in (1, 2)
            for source in range(WORKERS)
            for target in range(WORKERS)
        }
        base = self.session.writer.manifest
        parts = {} if base is None else base.parts
        self.base_epoch = 0 if base is None else base.epoch
        names = [(stage, worker) for stage in range(3) for worker in range(WORKERS)]
        self.participants = {name: Participant(self, *name, parts.get(name)) for name in names}
        for name in names:
            self._later(self._turn, name)
        self._tick(self._controllers)

    def ask(self, stop: bool) -> None:
        """Ask for a savepoint; a wish to stop outlives the run, and the controller."""
        self._stop_requested = self._stop_requested or stop
        if self.session is None or self.over:
            return
        if not stop:
            self.session.savepoints.ask()
            return
        self.session.savepoints.stop()
        try:
            self._write_down()
        except ControllerDiedError as died:
            self._lose_controller(str(died))

    # --- the controller ---------------------------------------------------------------------------

    def _begin_controller(self) -> None:
        self._controllers += 1
        self.store.advance()
        self.session = new_session(self, self._checkpoints, self._write_down)

    def _controlled(self) -> Any:
        """Return the session of the controller, which lives."""
        assert self.session is not None
        return self.session

    def kill_controller(self, steps: int) -> None:
        """Kill the controller, or its successor, and nothing else at one of its next steps."""
        self._steps_left = steps

    def step(self, what: str) -> None:
        """Count a step of the controller, which may be killed before it."""
        if self._steps_left == 0:
            raise ControllerDiedError(what)
        self.seen[what] += 1
        if self._steps_left is not None:
            self._steps_left -= 1

    def _lose_controller(self, step: str) -> None:
        self.seen[f"controller killed while {self._phase}"] += 1
        self.seen[f"controller killed at {step}"] += 1
        self.session = self._steps_left = None
        self._controllers += 1
        self._later(self._succeed, within_ns=self.chance.choice((1, 20, 80)) * MS)

    def _succeed(self) -> None:
        """Let a successor take over: it gets the journal, and what was told and is not taken."""
        self._begin_controller()
        session = self._controlled()
        if self.journal is None:
            session.writer.recover(self.store.base)
        else:
            session.inherit(self.journal, self.number)
        if self._stop_requested and (self.journal is None or not self.journal.stops):
            session.savepoints.stop()  # nobody has written it down: its user asks again
        for number in range(len(self._told)):
            if number not in self._taken or self.chance.random() < 0.5:
                self._later(self._take, number)
        if self._is_started:
            self._tick(self._controllers)
        elif self._written_in == self.number:
            self._later(self._start, self._controllers, within_ns=20 * MS)
        else:
            self._go_back()

    def _write_down(self) -> None:
        self.step("write down")
        self.journal, self._written_in = self._controlled().progress, self.number

    @property
    def _phase(self) -> str:
        coordinator = None if self.session is None else self.session._coordinator
        return "there is no controller" if coordinator is None else coordinator.phase.name

    def tell(self, event: events.Event) -> None:
        """Bring an event to the controller, or to its successor."""
        assert isinstance(event, _TOLD)
        self._told.append(MemberMessage(event.participant[1], self.number, event))
        self._later(self._take, len(self._told) - 1)

    def _take(self, number: int) -> None:
        if self.session is None:
            return
        try:
            self.session.take(self._told[number], self.simulation.clock.now_ns)
        except ControllerDiedError as died:
            self._lose_controller(str(died))
        else:
            self._taken.add(number)

    def _tick(self, controller: int) -> None:
        if self.session is None or controller != self._controllers:
            return
        now_ns = self.simulation.clock.now_ns
        try:
            self.session.run(self.number, now_ns)
            told = self.session.turn(now_ns)
        except ControllerDiedError as died:
            self._lose_controller(str(died))
            return
        for event in told:
            assert not isinstance(event, EpochsFailed), event.error
            if isinstance(event, EpochsOver):
                self._check_end()
        self._later(self._tick, controller)

    # --- what a controller does -------------------------------------------------------------------

    def command(self, worker: int, command: EpochCommand) -> None:
        """Bring a command to a worker; it may be lost with the controller that gave it."""
        self._later(self._obey, worker, command, self._controllers)

    def _obey(self, worker: int, command: EpochCommand, controller: int) -> None:
        if controller != self._controllers and self.chance.random() < 0.5:
            self.seen["command lost"] += 1
            return
        for stage in range(3):
            participant = self.participants[stage, worker]
            if isinstance(command, InjectMarker):
                participant.begin(command)
            elif isinstance(command, EpochDurable):
                participant.release(command.epoch)
            else:
                participant.forget(command.epoch)

    def carry_out(self, call: Callable[[], None]) -> None:
        """Carry out a call of the controller, unless it is killed before."""
        self._later(self._carry_out, self._controllers, call)

    def _carry_out(self, controller: int, call: Callable[[], None]) -> None:
        if controller == self._controllers:
            call()

    def carry_out_late(self, call: Callable[[], None]) -> None:
        """Carry out a call after a longer while, whatever is killed."""
        self._outside(call)

    def committed(self, manifest: Manifest) -> None:
        """Check what is in the table behind a commit."""
        assert self.table.output == expected_output(manifest.positions())

    def _check_end(self) -> None:
        self.over = True
        if not any(participant.stopped for participant in self.participants.values()):
            every = dict.fromkeys(range(WORKERS * TASKS), self.rows)
            assert self.table.output == expected_output(every)

    # --- participants -----------------------------------------------------------------------------

    def rings_into(self, stage: int, worker: int) -> list[Ring]:
        return [self._rings[stage, w, worker] for w in range(WORKERS)] if stage else []

    def rings_from(self, stage: int, worker: int) -> list[Ring]:
        return [self._rings[stage + 1, worker, w] for w in range(WORKERS)] if stage < 2 else []

    def write_snapshot(self, name: events.Participant, epoch: int, part: Part) -> None:
        """Write a participant's snapshot, which may fail."""
        told: events.Event = events.SnapshotWritten(name, epoch, part)
        if self.fails():
            told = events.SnapshotFailed(name, epoch, "disk full")
        self._later(self.tell, told, within_ns=self._writing_ns)

    def _turn(self, name: events.Participant) -> None:
        participant = self.participants[name]
        participant.turn(self.chance)
        if not participant.ended:
            self._later(self._turn, name)

    # --- time -------------------------------------------------------------------------------------

    def fails(self) -> bool:
        """Whether something fails now."""
        return self.chance.random() < self.trouble

    def _later(self, call: Any, *arguments: Any, within_ns: int = 2 * MS) -> None:
        """Call something within a time, unless another run has begun by then."""
        self._outside(self._call_in_run, self.number, call, arguments, within_ns=within_ns)

    def _call_in_run(self, run: int, call: Any, arguments: tuple[Any, ...]) -> None:
        if run == self.number and not self.over:
            call(*arguments)

    def _outside(self, call: Any, *arguments: Any, within_ns: int = 50 * MS) -> None:
        """Call something within a time, whatever becomes of this run."""
        due_ns = self.simulation.clock.now_ns + 1 + self.chance.randrange(within_ns)
        self.simulation.events.post(due_ns, call, *arguments)


def play(simulation: Simulator) -> Job:
    """Run a job to its end."""
    job = Job(simulation)
    chance = simulation.chance
    for _ in range(chance.choice((0, 1, 3, 8))):
        simulation.events.post(chance.randrange(400 * MS), job.kill)
    for _ in range(chance.choice((0, 0, 2))):
        simulation.events.post(chance.randrange(100 * MS), job.ask, chance.random() < 0.5)
    for _ in range(chance.choice((0, 1, 3))):
        at_ns = chance.randrange(400 * MS)
        simulation.events.post(at_ns, job.kill_workers)
        if chance.random() < 0.5:
            simulation.events.post(at_ns + 1, job.kill_controller, chance.randrange(3))
    for _ in range(chance.choice((0, 1, 3, 8))):
        at_ns, steps = chance.randrange(400 * MS), chance.randrange(12)
        simulation.events.post(at_ns, job.kill_controller, steps)
    simulation.run(until_ns=UNTIL_NS, done=lambda: job.over)
    return job


SCENARIO = Scenario("epochs", play)
