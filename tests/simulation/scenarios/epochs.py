"""A job whose participants take snapshots at epochs, while workers, the store and the sink fail.

Two workers, each with a participant for each of three stages: sources with two tasks, which number
their rows; a count of the rows of each key; a sink. The producers of a worker share a ring to each
participant that consumes their rows. The store of manifests and the table outside fail before or
after they have done what they were asked for, snapshots fail, and workers or the whole job are
killed. The job then goes on from the newest manifest. Whenever something is committed, the table
must hold exactly what the rows before the positions in the manifest make, and in the end what all
rows make.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.simulation.scenarios.workload import MS
from tests.simulation.seeds import Scenario
from tests.simulation.simulator import Simulator
from whale_ray.state.epochs import coordinator_events as events
from whale_ray.state.epochs.aligner import EpochAligner
from whale_ray.state.epochs.coordinator import EpochCoordinator
from whale_ray.state.epochs.rules import EpochRules

WORKERS = 2
TASKS = 2
KEYS = 5
UNTIL_NS = 600_000 * MS
_FRAMES_MAX = 6
"""Frames that a ring holds."""

Output = Counter[tuple[int, int]]
"""How often the sink got each (key, count)."""


class Row(NamedTuple):
    """A frame with one row."""

    key: int
    count: int = 0


class Marker(NamedTuple):
    """A frame that divides the stream into what an epoch's snapshot holds and what follows."""

    epoch: int
    stop: bool


class End(NamedTuple):
    """The last frame of a producer."""


Frame = Row | Marker | End


def key_of(task: int, number: int) -> int:
    """Return the key of a source's row."""
    return (task * 7 + number * 3 + number // 4) % KEYS


def expected_output(positions: dict[int, int]) -> Output:
    """Return what the sink gets from the rows before these positions."""
    rows = Counter(key_of(task, n) for task, stop in positions.items() for n in range(stop))
    return Counter({(key, n): 1 for key, count in rows.items() for n in range(1, count + 1)})


@dataclass
class Part:
    """A participant's part of a manifest."""

    positions: dict[int, int] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)
    staged: dict[int, Output] = field(default_factory=dict)


class Ring:
    """The frames from the producers of one worker to one participant, in order."""

    def __init__(self) -> None:
        self.frames: deque[tuple[int, Frame]] = deque()

    @property
    def full(self) -> bool:
        return len(self.frames) >= _FRAMES_MAX


class Participant:
    """One stage on one worker: reads its rings, counts or stages, writes to the next stage."""

    def __init__(self, job: Job, stage: int, worker: int, part: Part | None) -> None:
        self.job, self.stage, self.worker = job, stage, worker
        self.name = (stage, worker)
        self.inputs = job.rings_into(stage, worker)
        self.outputs = job.rings_from(stage, worker)
        self.tasks = [worker * TASKS + n for n in range(TASKS if stage == 0 else 1)]
        producers = TASKS if stage == 1 else 1
        numbers = [[w * producers + n for n in range(producers)] for w in range(WORKERS)]
        self.aligner = EpochAligner(numbers if self.inputs else [])
        part = Part() if part is None else part
        starts = {} if stage else dict.fromkeys(self.tasks, 0)
        self.positions = starts | part.positions
        self.counts = Counter(part.counts)
        self.staged: dict[int, Output] = {}
        self.rows: Output = Counter()
        self.producing = set(self.tasks)
        self.marker: Marker | None = None
        self.behind = job.base_epoch
        self.ended = self.stopped = False

    def turn(self, chance: random.Random) -> None:
        """Do one thing, if anything can be done: bounded rings may be full."""
        if self.ended or any(ring.full for ring in self.outputs):
            return
        if self.stage == 0:
            self._read_source(chance)
        else:
            self._read_ring(chance)

    # --- rows -------------------------------------------------------------------------------------

    def _read_source(self, chance: random.Random) -> None:
        if self.marker is not None:
            self.stopped = self.stopped or self.marker.stop
            self.snapshot(self.marker)
            self.marker = None
        elif not self.stopped:
            task = chance.choice(sorted(self.producing))
            number = self.positions[task]
            if number == self.job.rows:
                self._finish(task)
            else:
                self.positions[task] += 1
                self._write(Row(key_of(task, number)), task)

    def _read_ring(self, chance: random.Random) -> None:
        ready = [
            n for n, ring in enumerate(self.inputs) if ring.frames and not self.aligner.waits(n)
        ]
        if not ready:
            return
        number = chance.choice(ready)
        producer, frame = self.inputs[number].frames.popleft()
        if isinstance(frame, Row):
            self.aligner.row(number, producer)
            self._take(frame)
        elif isinstance(frame, Marker):
            self.aligner.marker(number, producer, frame.epoch)
            self.marker = frame
        else:
            self.aligner.end(number, producer)
        if self.aligner.aligned and self.marker is not None:
            self.snapshot(self.marker._replace(epoch=self.aligner.pass_on()))
        if self.aligner.ended:
            self._finish(self.tasks[0])

    def _take(self, row: Row) -> None:
        if self.stage == 1:
            self.counts[row.key] += 1
            self._write(Row(row.key, self.counts[row.key]), self.tasks[0])
        else:
            self.rows[row] += 1

    def _write(self, frame: Row, task: int) -> None:
        target = frame.key % WORKERS if self.stage == 0 else frame.key // WORKERS % WORKERS
        self.outputs[target].frames.append((self._producer(task), frame))

    def _producer(self, task: int) -> int:
        return task if self.stage == 0 else self.worker

    # --- epochs -----------------------------------------------------------------------------------

    def snapshot(self, marker: Marker) -> None:
        """Take the snapshot of an epoch, and pass its marker on."""
        self.behind = marker.epoch
        self.job.tell(events.Aligned(self.name, marker.epoch))
        part = self._part(marker.epoch)
        self.pass_on(marker)
        self.job.write_snapshot(self.name, marker.epoch, part)

    def pass_on(self, marker: Marker) -> None:
        """Write the markers of all producers of this participant before any of them goes on."""
        for task in sorted(self.producing):
            for ring in self.outputs:
                ring.frames.append((self._producer(task), marker))

    def begin(self, epoch: int, stop: bool) -> None:
        """Let the tasks of a source emit the marker."""
        self.marker = Marker(epoch, stop)

    def release(self, epoch: int) -> None:
        """Give up what is committed."""
        self.staged = {n: output for n, output in self.staged.items() if n > epoch}

    def _part(self, epoch: int) -> Part:
        if self.rows:
            self.staged[epoch] = self.rows
            self.rows = Counter()
        return Part(dict(self.positions), Counter(self.counts), dict(self.staged))

    def _finish(self, task: int) -> None:
        self.producing.discard(task)
        for ring in self.outputs:
            ring.frames.append((self._producer(task), End()))
        if not self.producing:
            self.ended = True
            part = self._part(self.behind + 1)
            self.job.tell(events.ParticipantEnded(self.name, self.behind, part))


class Table:
    """The table outside: takes what it is given once for each run and epoch."""

    def __init__(self) -> None:
        self.commits: dict[tuple[int, int], Output] = {}

    def commit(self, run: int, epoch: int, output: Output) -> None:
        assert self.commits.setdefault((run, epoch), output) == output

    @property
    def output(self) -> Output:
        return sum(self.commits.values(), Counter())


class Manifest(NamedTuple):
    """What the store keeps of an epoch."""

    run: int
    epoch: int
    previous: int
    parts: dict[events.Participant, Part]

    def staged(self) -> Output:
        """Return what the sinks are to commit."""
        outputs = [
            output
            for part in self.parts.values()
            for epoch, output in part.staged.items()
            if self.previous < epoch <= self.epoch
        ]
        return sum(outputs, Counter())

    def positions(self) -> dict[int, int]:
        """Return how many rows of each task it covers."""
        return {u: n for part in self.parts.values() for u, n in part.positions.items()}


class Store:
    """Manifests; a job first writes down from which one it goes on, so that older jobs are over."""

    def __init__(self) -> None:
        self.run = 0
        self.base: Manifest | None = None
        self.manifests: dict[int, Manifest] = {}

    def begin_run(self) -> Manifest | None:
        """Begin another run; return the manifest that it goes on from, None for none."""
        self.base = self.newest()
        self.run += 1
        self.manifests = {}
        return self.base

    def newest(self) -> Manifest | None:
        return self.manifests[max(self.manifests)] if self.manifests else self.base

    def write(self, manifest: Manifest) -> None:
        """Keep a manifest, unless its run is over."""
        if manifest.run == self.run:
            self.manifests[manifest.epoch] = manifest


class Job:
    """The participants and the coordinator of the present run, and what surrounds them."""

    def __init__(self, simulation: Simulator) -> None:
        self.simulation = simulation
        self.chance = random.Random(f"{simulation.seed}/job")
        self.rows = self.chance.choice((5, 20, 60))
        self.trouble = self.chance.choice((0.0, 0.05, 0.3))
        interval_ms = self.chance.choice((5, 20, 100))
        self.rules = EpochRules(
            interval_ms=interval_ms,
            min_pause_ms=self.chance.choice((0, 3)),
            timeout_ms=self.chance.choice((60, 200, 500)),
            retry_ms=2,
            tries_max=1_000,
        )
        self._writing_ns = self.chance.choice((2, 10, 40)) * MS
        self.store, self.table = Store(), Table()
        self.seen: Counter[str] = Counter()
        self.over = self._stop_requested = False
        self._run()

    # --- runs -------------------------------------------------------------------------------------

    def _run(self) -> None:
        base = self.store.begin_run()
        self.number = self.store.run
        self._rings = {
            (stage, source, target): Ring()
            for stage in (1, 2)
            for source in range(WORKERS)
            for target in range(WORKERS)
        }
        parts = {} if base is None else base.parts
        self.base_epoch = 0 if base is None else base.epoch
        names = [(stage, worker) for stage in range(3) for worker in range(WORKERS)]
        self.participants = {name: Participant(self, *name, parts.get(name)) for name in names}
        self.coordinator = EpochCoordinator(
            self.rules, names, last=self.base_epoch, now_ms=self._now_ms
        )
        for name in names:
            self._later(self._turn, name)
        self._tick()
        if base is not None:
            self.coordinator_does(self.coordinator.resume(base.epoch))
        if self._stop_requested:
            self.tell(events.SavepointRequested(stop=True))

    def kill(self) -> None:
        """Kill the workers, or everything, and begin another run."""
        if self.over:
            return
        self.seen[f"killed while {self.coordinator.phase.name}"] += 1
        self._run()

    def ask(self, stop: bool) -> None:
        """Ask for a savepoint; a wish to stop outlives the run."""
        self._stop_requested = self._stop_requested or stop
        if not self.over:
            self.tell(events.SavepointRequested(stop))

    def rings_into(self, stage: int, worker: int) -> list[Ring]:
        return [self._rings[stage, w, worker] for w in range(WORKERS)] if stage else []

    def rings_from(self, stage: int, worker: int) -> list[Ring]:
        return [self._rings[stage + 1, worker, w] for w in range(WORKERS)] if stage < 2 else []

    # --- events and actions -----------------------------------------------------------------------

    def tell(self, event: events.Event) -> None:
        """Bring an event to the coordinator, after a while."""
        self._later(self._handle, event)

    def _handle(self, event: events.Event) -> None:
        self.coordinator_does(self.coordinator.handle(event, self._now_ms))

    def coordinator_does(self, actions: list[events.Action]) -> None:
        for action in actions:
            self.seen[type(action).__name__] += 1
            match action:
                case events.BeginEpoch(epoch, stop):
                    for worker in range(WORKERS):
                        self._later(self._begin, (0, worker), epoch, stop)
                case events.ForgetEpoch(epoch, _):
                    for name, participant in self.participants.items():
                        self._later(participant.aligner.forget, epoch)
                        self._later(self._drop_marker, name, epoch)
                case events.WriteManifest(epoch, previous, parts):
                    manifest = Manifest(self.number, epoch, previous, dict(parts))
                    self._later(self._write_manifest, manifest)
                case events.CommitEpoch(epoch):
                    self._later(self._commit, epoch)
                case events.ReleaseEpoch(epoch):
                    for participant in self.participants.values():
                        self._later(participant.release, epoch)
                    self._check_end()
                case events.GiveUp(reason):
                    raise AssertionError(reason)

    def _begin(self, name: events.Participant, epoch: int, stop: bool) -> None:
        participant = self.participants[name]
        if not participant.ended and epoch == self.coordinator.epoch:
            participant.begin(epoch, stop)

    def _drop_marker(self, name: events.Participant, epoch: int) -> None:
        participant = self.participants[name]
        if (
            participant.stage == 0
            and participant.marker is not None
            and participant.marker.epoch <= epoch
        ):
            participant.marker = None

    def write_snapshot(self, name: events.Participant, epoch: int, part: Part) -> None:
        """Write a participant's snapshot, which may fail."""
        told: events.Event = events.SnapshotWritten(name, epoch, part)
        if self._fails():
            told = events.SnapshotFailed(name, epoch, "disk full")
        self._later(self._handle, told, within_ns=self._writing_ns)

    def _write_manifest(self, manifest: Manifest) -> None:
        """Write a manifest; after a failure, it may be in the store or come there later."""
        if not self._fails():
            self.store.write(manifest)
            self.tell(events.ManifestWritten(manifest.epoch))
            return
        self.tell(events.ManifestFailed(manifest.epoch, "connection reset"))
        if self.chance.random() < 0.5:
            self._outside(self.store.write, manifest)

    def _commit(self, epoch: int) -> None:
        manifest = self.store.newest()
        assert manifest is not None, "a commit without a manifest"
        assert manifest.epoch == epoch, "a commit of another epoch than the newest manifest's"
        does, tells = not self._fails(), not self._fails()
        if does:
            self.table.commit(manifest.run, epoch, manifest.staged())
            assert self.table.output == expected_output(manifest.positions())
        if does and tells:
            self.tell(events.Committed(epoch))
        else:
            self.tell(events.CommitFailed(epoch, "connection reset"))

    def _check_end(self) -> None:
        if self.coordinator.over:
            self.over = True
            if not any(participant.stopped for participant in self.participants.values()):
                every = dict.fromkeys(range(WORKERS * TASKS), self.rows)
                assert self.table.output == expected_output(every)

    # --- time -------------------------------------------------------------------------------------

    @property
    def _now_ms(self) -> int:
        return self.simulation.clock.now_ns // MS

    def _fails(self) -> bool:
        return self.chance.random() < self.trouble

    def _turn(self, name: events.Participant) -> None:
        participant = self.participants[name]
        participant.turn(self.chance)
        if not participant.ended:
            self._later(self._turn, name)

    def _tick(self) -> None:
        due_ms = self.coordinator.deadline_ms
        if due_ms is not None and due_ms <= self._now_ms:
            self._handle(events.TimePassed())
        self._later(self._tick)

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
    simulation.run(until_ns=UNTIL_NS, done=lambda: job.over)
    return job


SCENARIO = Scenario("epochs", play)
