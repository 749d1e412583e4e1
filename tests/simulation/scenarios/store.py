"""Jobs that take, one after another, one folder of checkpoints, which fails in every way it can.

The files are in memory. A process dies at any call, before or after what it does; a disk is full;
a put is told to have failed and is there all the same, at once or later; where puts are not atomic,
half of a file is left. A listing of an object store lacks what is new and still has what is gone. A
job pauses in the middle of a call, another takes the folder over, and the first goes on.

Whatever happens, a job that goes on from the newest manifest finds every chunk that it lists, with
the bytes that were written, and has behind it all that was ever committed and all that counted;
savepoints stay whole; and in the end no file is left that nothing lists.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from tests.simulation.scenarios.workload import MS
from tests.simulation.seeds import Scenario
from tests.simulation.simulator import Simulator
from whale_ray.configs.errors import ClaimLostError, DamagedCheckpointError, OutputError
from whale_ray.state.epochs import checkpoint_store
from whale_ray.state.epochs.checkpoint_store import CheckpointStore
from whale_ray.state.epochs.claim import claim_numbers
from whale_ray.state.epochs.claim_rules import EXPIRY_MS
from whale_ray.state.epochs.epoch_commands import RestorePoint
from whale_ray.state.epochs.manifest import ChunkFile, Lineage, Manifest, OperatorPart
from whale_ray.state.epochs.store_names import (
    CHUNKS,
    MANIFESTS,
    NEWEST,
    ManifestName,
    chunk_name,
    claim_number,
)

TOPOLOGY = "simulated"
NODES_MAX = 2
"""Jobs that are in the middle of a call at once."""


class CrashedError(BaseException):
    """The process of a job has died."""


@dataclass
class Disk:
    """What is in the folder, and what a listing may show of it.

    Attributes:
        files: the bytes by name.
        changes: for names that have come or gone: until which call a listing may show the reverse.
        too_late: manifests of a job from which another had taken over before they were there.
        late: puts that were told to have failed, and from which call on they are there.
        unfinished: what those who died have begun to write; nobody reads it.
    """

    atomic: bool
    stale_calls: int
    files: dict[str, bytes] = field(default_factory=dict)
    changes: dict[str, int] = field(default_factory=dict)
    too_late: set[str] = field(default_factory=set)
    late: list[tuple[int, str, bytes]] = field(default_factory=list)
    unfinished: set[str] = field(default_factory=set)
    calls: int = 0

    def put(self, name: str, data: bytes) -> None:
        if name not in self.files:
            self.changes[name] = self.calls + self.stale_calls
            self._note_what_is_too_late(name)
        self.files[name] = data

    def _note_what_is_too_late(self, name: str) -> None:
        found = ManifestName.of(name)
        notes = [claim_number(note) for note in self.files if note.startswith(NEWEST)]
        if found is not None and max(notes, default=0) > found.claim:
            self.too_late.add(name)

    def remove(self, name: str) -> None:
        self.unfinished.discard(name)
        if self.files.pop(name, None) is not None:
            self.changes[name] = self.calls + self.stale_calls

    def arrive(self) -> None:
        """Let puts arrive that are late."""
        for due, name, data in [one for one in self.late if one[0] <= self.calls]:
            self.put(name, data)
            self.late.remove((due, name, data))


class SoundFiles:
    """The folder without any fault: for what the scenario itself looks at."""

    url = "simulated"

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def put(self, name: str, data: bytes) -> None:
        self.disk.put(name, data)

    def create(self, name: str, data: bytes) -> bool:
        if name in self.disk.files:
            return False
        self.disk.put(name, data)
        return True

    def get(self, name: str) -> bytes | None:
        return self.disk.files.get(name)

    def names(self, folder: str) -> list[str]:
        return sorted(name for name in self.disk.files if name.startswith(f"{folder}/"))

    def unfinished(self, folder: str) -> list[str]:
        return sorted(name for name in self.disk.unfinished if name.startswith(f"{folder}/"))

    def remove(self, name: str) -> None:
        self.disk.remove(name)


class FailingFiles(SoundFiles):
    """The folder as one job meets it."""

    def __init__(self, world: World, job: str) -> None:
        super().__init__(world.disk)
        self.world, self.job = world, job
        self.chance = world.chance
        self.crash_in = world.chance.choice((10, 40, 150, 10_000))
        self.pauses = world.chance.random() < 0.5
        self.holding = False
        """Whether it asks if its claim holds, to act on the answer at once: no pause in between."""

    def put(self, name: str, data: bytes) -> None:
        self._writing("put", name, lambda: self.disk.put(name, data), data)

    def create(self, name: str, data: bytes) -> bool:
        if name in self.disk.files:
            return False
        self._writing("create", name, lambda: self.disk.put(name, data), None)
        return True

    def get(self, name: str) -> bytes | None:
        self._call("get", name)
        return super().get(name)

    def names(self, folder: str) -> list[str]:
        """Return a listing in which some of the latest changes are missing."""
        self._call("list", folder)
        found = set(super().names(folder))
        for name, until in self.disk.changes.items():
            if name.startswith(f"{folder}/") and self.disk.calls < until and self._now_and_then(2):
                found ^= {name}
        return sorted(found)

    def remove(self, name: str) -> None:
        self._writing("remove", name, lambda: self.disk.remove(name), None)

    def _writing(self, kind: str, name: str, act: Callable[[], None], data: bytes | None) -> None:
        """Do something, or fail, or both; or die before, behind or in the middle of it."""
        try:
            self._call(kind, name)
        except CrashedError:
            if self._now_and_then(2):
                act()
            elif data and not self.disk.atomic:
                self.disk.put(name, data[: self.chance.randrange(len(data))])
            elif data:
                self.disk.unfinished.add(f"{name}.{self.disk.calls}.open")
            raise
        if not self.world.fails():
            act()
            return
        if data is not None and self._now_and_then(3):
            act()
        elif data is not None and name.startswith((CHUNKS, MANIFESTS)) and self._now_and_then(3):
            # Names that are used once: what arrives late replaces nothing.
            self.disk.late.append((self.disk.calls + self.chance.randrange(60), name, data))
        msg = f"{kind} {name}: no room, or no answer"
        raise OutputError(msg)

    def _call(self, kind: str, name: str) -> None:
        self.disk.calls += 1
        self.disk.arrive()
        self.world.note(kind, self.job, name)
        self.crash_in -= 1
        if self.crash_in < 0:
            raise CrashedError
        if self.pauses and not self.holding and self._now_and_then(40):
            self.pauses = False
            self.world.another_takes_over()

    def _now_and_then(self, times: int) -> bool:
        return self.chance.randrange(times) == 0


class WorldClock:
    """The wall time of the simulation."""

    def __init__(self, simulation: Simulator) -> None:
        self._clock = simulation.clock

    def wall_ns(self) -> int:
        return self._clock.now_ns

    monotonic_ns = wall_ns

    def sleep_ns(self, duration_ns: int) -> None:
        """Let no time pass: nobody sleeps."""


class World:
    """The folder, what was written into it, and what must be found again."""

    def __init__(self, simulation: Simulator) -> None:
        self.simulation = simulation
        self.chance = random.Random(f"{simulation.seed}/store")
        kind = self.chance.choice(("directory", "object store", "plain"))
        self.disk = Disk(kind != "plain", 30 if kind == "object store" else 0)
        self.trouble = self.chance.choice((0.0, 0.02, 0.1))
        self.clock = WorldClock(simulation)
        self.seen: Counter[str] = Counter()
        self.jobs = 0
        self.truth: dict[str, tuple[bytes, ...]] = {}
        self.parents: dict[str, str | None] = {}
        self.counted: str | None = None
        self.committed: set[str] = set()
        self.savepoints: set[str] = set()
        self.alive: list[Job] = []

    def note(self, kind: str, job: str, name: str) -> None:
        """Record a call in the trace, and let a moment pass."""
        self.simulation.clock.now_ns += self.chance.randrange(2 * MS)
        self.simulation._record(kind, job, name, None)

    def fails(self) -> bool:
        return self.chance.random() < self.trouble

    # --- jobs -------------------------------------------------------------------------------------

    def live(self) -> None:
        """Let a job begin, or the one that is alive go on, for some epochs."""
        job = self.alive[-1] if self.alive else self.begin_job(take_over=False)
        if job is not None:
            self.let_run(job, self.chance.choice((1, 3, 8)))

    def begin_job(self, take_over: bool) -> Job | None:
        """Begin a job; None if it dies at once."""
        if not take_over:
            self.simulation.clock.now_ns += (EXPIRY_MS + 1) * MS
        self.jobs += 1
        job = Job(self, f"job-{self.jobs}")
        try:
            job.begin(take_over or not self.disk.atomic)
        except (OutputError, CrashedError):  # another has it, it failed or died, or lost it at once
            return None
        except DamagedCheckpointError:  # removed by another, which has taken over while it began
            assert job.claim < self.last_claim
            return None
        self.alive.append(job)
        return job

    def let_run(self, job: Job, epochs: int) -> None:
        """Let a job take some epochs, unless it dies, or another has taken over from it."""
        try:
            for _ in range(epochs):
                job.take_epoch()
        except (ClaimLostError, CrashedError) as error:
            self.seen[type(error).__name__] += 1
            if job in self.alive:
                self.alive.remove(job)

    def another_takes_over(self) -> None:
        """Let another job take the folder over, while one is in the middle of a call."""
        if len(self.alive) < NODES_MAX:
            self.seen["taken over"] += 1
            job = self.begin_job(take_over=True)
            if job is not None:
                self.let_run(job, self.chance.choice((0, 1, 3)))

    @property
    def last_claim(self) -> int:
        """The number of the claim that holds."""
        return max(claim_numbers(SoundFiles(self.disk)))

    # --- what must hold ---------------------------------------------------------------------------

    def count(self, name: str, job: Job, savepoint: bool) -> None:
        """Take note that a job was told that its manifest is durable."""
        if job.claim == self.last_claim:
            self.counted = name
            if savepoint:
                self.savepoints.add(name)

    def check_restored(self, name: str | None) -> None:
        """Check where a job goes on: behind all that counts and all that was committed."""
        chain = self.chain(name)
        assert name not in self.disk.too_late, f"{name} was written by a job that was over"
        assert self.counted is None or self.counted in chain, (
            f"{self.counted} counted; {name} is newest"
        )
        assert self.committed <= chain, f"{self.committed - chain} committed, and not in {name}"

    def chain(self, name: str | None) -> set[str]:
        found = set()
        while name is not None:
            found.add(name)
            name = self.parents[name]
        return found

    def check_whole(self) -> None:
        """Check that all epochs that are offered can be restored, and all savepoints."""
        store = CheckpointStore(SoundFiles(self.disk))
        offered = set(store.manifests())
        assert self.savepoints <= offered, f"{self.savepoints - offered} are gone"
        for name in offered:
            try:
                manifest = store.read_manifest(name)
            except DamagedCheckpointError:
                assert not self.disk.atomic, f"{name} is half written"
                continue
            assert read_state(store, manifest) == self.truth[name], name


class Job:
    """A job: its state is a list of chunks, of which each epoch drops some and adds some."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.chance = world.chance
        self.files = FailingFiles(world, name)
        self.store = CheckpointStore(self.files)
        self.chunks: list[tuple[bytes, ChunkFile | None]] = []
        self.ahead: list[tuple[bytes, ChunkFile | None]] = []
        self.keep = self.chance.choice((1, 2, 4))
        self.newest: str | None = None
        self.epoch = 0
        self.claim = 0

    def begin(self, take_over: bool) -> None:
        """Take the folder, and go on from its newest manifest."""
        self.newest = self.store.newest_name()
        point = RestorePoint(self.files.url, self.newest or "", 0)
        claim = self.store.take_claim(
            self.name,
            TOPOLOGY,
            restore=point,
            take_over=take_over,
            clock=self.world.clock,
            beats=False,
        )
        self.claim = claim.number
        # What a fenced job wrote until then counts.
        self.newest = self.store.newest_name()
        if self.world.last_claim != self.claim:
            raise ClaimLostError  # while it began
        self.world.check_restored(self.newest)
        if self.newest is not None:
            manifest = self.store.read_manifest(self.newest)
            files = manifest.parts[0].chunks
            found = read_state(self.store, manifest)
            assert found == self.world.truth[self.newest], self.newest
            self.chunks = list(zip(found, files, strict=True))
            self.epoch = manifest.epoch
            self.commit(self.newest)
        self.world.check_whole()

    def take_epoch(self, savepoints: float = 0.1) -> None:
        """Take an epoch, which may be forgotten; commit it; remove what nobody needs."""
        self.epoch += 1
        before, savepoint = self.newest, self.chance.random() < savepoints
        dropped = self.chance.randrange(3)
        self.chunks = self.chunks[dropped:] + self.ahead
        self.ahead = []
        for number in range(self.chance.randrange(1, 3)):
            self.chunks.append((f"{self.name}/{self.epoch}/{number}".encode(), None))
        try:
            self.write_chunks()
            name = self.end_epoch(savepoint)
        except ClaimLostError:
            raise
        except OutputError:
            self.world.seen["forgotten"] += 1
            return
        self.world.seen["counted"] += 1
        self.newest = name
        assert before != name
        self.remove_old()
        with suppress(OutputError):  # renewed later
            self.store.claim.beat()

    def write_chunks(self) -> None:
        """Write the chunks that are not in the store yet."""
        for number, (data, file) in enumerate(self.chunks):
            if file is None:
                name = chunk_name(self.name, self.epoch, str(number))
                self.chunks[number] = (data, self.store.write_chunk(name, data))

    def end_epoch(self, savepoint: bool) -> str:
        """Write the manifest, then commit."""
        name = self.write_manifest(savepoint)
        self.commit(name)
        return name

    def write_manifest(self, savepoint: bool) -> str:
        """Write the manifest of the present epoch."""
        files = tuple(file for _, file in self.chunks if file is not None)
        manifest = Manifest(
            self.epoch,
            self.epoch - 1,
            Lineage(self.name),
            TOPOLOGY,
            0,
            1,
            (OperatorPart("state", (0,), 1, 0, files),),
            savepoint=savepoint,
        )
        name = self.name_of_epoch()
        self.world.truth[name] = tuple(data for data, _ in self.chunks)
        self.world.parents[name] = self.newest
        assert self.store.write_manifest(manifest) == name
        self.world.count(name, self, savepoint)
        return name

    def name_of_epoch(self) -> str:
        return f"{MANIFESTS}/{self.claim:06d}-{self.epoch:012d}-{self.name}"

    def commit(self, name: str) -> None:
        """Commit an epoch, if the claim holds."""
        self.files.holding = True
        try:
            if self.store.claim.holds():
                self.world.committed.add(name)
        finally:
            self.files.holding = False

    def remove_old(self) -> None:
        """Remove what nobody needs; what fails is tried again behind the next epoch.

        A worker may have written chunks of the next epoch by then.
        """
        try:
            if self.chance.random() < 0.3:
                data = f"{self.name}/{self.epoch + 1}/ahead".encode()
                name = chunk_name(self.name, self.epoch + 1, "ahead")
                self.ahead = [(data, self.store.write_chunk(name, data))]
            removed = self.store.remove_unlisted(self.keep, [self.newest or ""])
            self.world.seen["removed"] += removed
        except ClaimLostError:
            raise
        except OutputError:
            self.world.seen["not removed"] += 1
        self.world.check_whole()


def read_state(store: CheckpointStore, manifest: Manifest) -> tuple[bytes, ...]:
    """Return the bytes of all chunks of an epoch."""
    return tuple(map(store.read_chunk, manifest.parts[0].chunks))


def play(simulation: Simulator) -> World:
    """Let jobs come and go; then let a last one, to which nothing happens, clean up."""
    world = World(simulation)
    for _ in range(world.chance.choice((2, 4, 8))):
        world.live()
    world.disk.calls += 1_000
    world.disk.arrive()
    world.trouble, world.disk.stale_calls = 0.0, 0
    world.alive.clear()
    world.disk.changes.clear()
    last = Job(world, "last")
    last.files.crash_in, last.files.pauses, last.keep = 1 << 60, False, 1
    world.simulation.clock.now_ns += (EXPIRY_MS + 1) * MS
    last.begin(take_over=True)
    last.take_epoch(savepoints=0.0)
    store = CheckpointStore(SoundFiles(world.disk))
    manifests = [store.read_manifest(name) for name in store.manifests()]
    listed = {file.name for one in manifests for file in one.parts[0].chunks}
    listed |= {file.name for _, file in last.ahead if file is not None}
    left = SoundFiles(world.disk)
    assert {*left.names(CHUNKS), *left.unfinished(CHUNKS)} == listed, "files are left"
    assert manifests[-1].lineage.job == "last"
    assert all(manifest.savepoint for manifest in manifests[:-1]), "old manifests are left"
    return world


def _play(simulation: Simulator) -> None:
    log = logging.getLogger(checkpoint_store.__name__)
    level = log.level
    log.setLevel(logging.ERROR)  # what is passed over is meant to be there
    try:
        play(simulation)
    finally:
        log.setLevel(level)


SCENARIO = Scenario("store", _play)
