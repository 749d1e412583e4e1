"""What leads the job of the scenario "epochs": its controller, what that has written, the table.

The controller has a session of epochs as a supervisor has; what only it knows dies with it. Its
successor gets the journal, and of the participants what the dead one had not processed. The store
and the table outlive all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import whale_ray as whale
from whale_ray import state
from whale_ray.api.job_requests import NewJob
from whale_ray.configs.settings import Settings
from whale_ray.control.epoch_session import EpochSession
from whale_ray.control.epoch_writer import EpochSize
from whale_ray.plan.assignment import Assignment
from whale_ray.state.epochs import coordinator_events as events
from whale_ray.state.epochs.epoch_commands import EpochCommand, RestorePoint

WORKERS = 2
TASKS = 2

Output = Counter[tuple[int, int]]
"""How often the sink got each (key, count)."""


class ControllerDiedError(Exception):
    """The controller is killed at this step."""


class _Counts(whale.KeyedProcess):
    rows = state.count()

    def on_row(self, row: Any, out: Any) -> None:
        self.rows.add(1)
        out.emit_row(key=row.key, count=self.rows.get())


def _made_assignment() -> Assignment:
    """Return a job of three stages on each of two workers."""
    topology = whale.Topology("epochs")
    numbers = whale.sources.poisson(1.0, lambda numbers, _: {"key": numbers})
    rows = topology.source(numbers, id="rows", parallelism=WORKERS * TASKS)
    counts = rows.key_by("key").process(_Counts, id="counts", parallelism=WORKERS)
    counts.key_by("key").sink(whale.sinks.parquet("out"), id="out", parallelism=WORKERS)
    settings = Settings().with_overrides({"checkpoints.url": "state"})
    return NewJob.checked(topology.logical_plan(), settings, WORKERS).assignment(settings)


_ASSIGNMENT = _made_assignment()


@dataclass
class Part:
    """A participant's part of a manifest."""

    positions: dict[int, int] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)
    staged: dict[int, Output] = field(default_factory=dict)


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
    """What the store keeps of an epoch; `claim` is that under which it was written."""

    claim: int
    run: int
    epoch: int
    previous: int
    parts: Mapping[events.Participant, Part]

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
    """Manifests; none counts that comes when the claim is over under which it was written."""

    def __init__(self) -> None:
        self.run = self.claim = 0
        self.base: Manifest | None = None
        self.manifests: dict[int, Manifest] = {}

    def begin_run(self) -> Manifest | None:
        """Begin another run; return the manifest that it goes on from, None for none."""
        self.base = self.newest()
        self.run += 1
        self.advance()
        self.manifests = {}
        return self.base

    def advance(self) -> None:
        """Begin a new claim: of a job, of a controller, of an attempt."""
        self.claim += 1

    def newest(self) -> Manifest | None:
        return self.manifests[max(self.manifests)] if self.manifests else self.base

    def holds(self, manifest: Manifest) -> bool:
        return manifest in (self.base, self.manifests.get(manifest.epoch))

    def write(self, manifest: Manifest) -> None:
        """Keep a manifest, unless its claim is over."""
        if manifest.claim == self.claim:
            self.manifests[manifest.epoch] = manifest


class World(Protocol):
    """What surrounds a controller."""

    store: Store
    table: Table
    number: int

    def step(self, what: str) -> None:
        """Count a step of the controller; ControllerDiedError if it is its last one."""

    def command(self, worker: int, command: EpochCommand) -> None:
        """Bring a command to a worker, after a while."""

    def carry_out(self, call: Callable[[], None]) -> None:
        """Carry out a call after a while, unless the controller is killed before."""

    def carry_out_late(self, call: Callable[[], None]) -> None:
        """Carry out a call after a longer while, whatever is killed."""

    def fails(self) -> bool:
        """Whether something fails now."""

    def committed(self, manifest: Manifest) -> None:
        """Check what is in the table behind a commit."""


class Writer:
    """An `EpochWriter` on the store and the table of the simulation, whose calls take time."""

    lost = None
    place = ""
    size = EpochSize()
    next_due_ns = None

    def __init__(self, world: World) -> None:
        self._world = world
        self.manifest: Manifest | None = None
        self._results: list[events.Event | Manifest] = []

    @property
    def restore_point(self) -> RestorePoint | None:
        if self.manifest is None:
            return None
        return RestorePoint("state", str(self.manifest.epoch), self.manifest.epoch)

    def recover(self, base: Manifest | None) -> None:
        """Go on from a manifest, or from the start."""
        self.manifest = base

    def inherit(self, name: str, ended: Iterable[events.Part] = ()) -> None:
        """Go on from a manifest by its name; what ended before has numbers to know it by."""
        del ended
        store = self._world.store
        found = [store.base, *store.manifests.values()]
        self.manifest = next(one for one in found if one is not None and str(one.epoch) == name)

    def write(self, action: events.WriteManifest, *, savepoint: bool, stopped: bool) -> None:
        """Write a manifest; after a failure, it may be in the store or come there later."""
        del savepoint, stopped
        self._world.step("WriteManifest")
        parts: dict[events.Participant, Any] = dict(action.parts)
        store = self._world.store
        manifest = Manifest(store.claim, store.run, action.epoch, action.previous, parts)
        self._world.carry_out(lambda: self._write(manifest))

    def _write(self, manifest: Manifest) -> None:
        world = self._world
        if not world.fails():
            world.store.write(manifest)
            self._results.append(manifest)
            return
        self._results.append(events.ManifestFailed(manifest.epoch, "connection reset"))
        if world.fails():
            world.carry_out_late(lambda: world.store.write(manifest))

    def commit(self, epoch: int) -> None:
        """Let the table commit, which may fail before or after it has done so."""
        self._world.step("CommitEpoch")
        self._world.carry_out(lambda: self._commit(epoch))

    def _commit(self, epoch: int) -> None:
        world, manifest = self._world, self.manifest
        assert manifest is not None, "a commit without a manifest"
        assert manifest.epoch == epoch, "a commit of another epoch than the newest manifest's"
        assert world.store.holds(manifest), "a commit before the manifest is in the store"
        does, tells = not world.fails(), not world.fails()
        if does:
            world.table.commit(manifest.run, epoch, manifest.staged())
            world.committed(manifest)
        done = events.Committed(epoch) if does and tells else None
        self._results.append(done or events.CommitFailed(epoch, "connection reset"))

    def forget(self) -> None:
        """Expect no results any more: their attempt is over."""
        self._results.clear()

    def release(self) -> None:
        self._world.step("ReleaseEpoch")

    def poll(self) -> list[events.Event]:
        found: list[events.Event] = []
        for result in self._results:
            if isinstance(result, Manifest):
                self.manifest = result
                found.append(events.ManifestWritten(result.epoch))
            else:
                found.append(result)
        self._results = []
        return found


def new_session(
    world: World, checkpoints: Mapping[str, int], write_down: Callable[[], None]
) -> EpochSession:
    """Return the epochs of a controller; `checkpoints` are settings of that section."""
    overrides = {f"checkpoints.{name}": value for name, value in checkpoints.items()}
    settings = _ASSIGNMENT.settings.with_overrides(overrides)

    def call(worker: int, attempt: int, method: str, arguments: tuple[Any, ...]) -> None:
        assert (attempt, method) == (world.number, "tell")
        (command,) = arguments
        world.step(type(command).__name__)
        world.command(worker, command)

    writer: Any = Writer(world)
    return EpochSession(replace(_ASSIGNMENT, settings=settings), writer, call, write_down)
