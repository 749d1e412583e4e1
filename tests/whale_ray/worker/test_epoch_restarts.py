"""Jobs that are killed at random and go on from an epoch, over real rings and a real store.

The workers run in one thread, in a random order of turns. After each kill the job goes on with
another number of workers or another parallelism, or with some of the workers that it had, which go
back in memory.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

import whale_ray as whale
from tests.whale_ray.worker.ring_jobs import Numbered, NumberedReader
from whale_ray import state
from whale_ray.configs.loading import load_settings
from whale_ray.control.epoch_output import EpochOutput
from whale_ray.control.epoch_writer import parts_of
from whale_ray.operators.sinks.base import Sink, SinkResult, SinkWriter, Staged
from whale_ray.operators.sources.base import SourceReader
from whale_ray.plan.assignment import Assignment
from whale_ray.plan.planner import plan
from whale_ray.state.epochs.checkpoint_store import CheckpointStore
from whale_ray.state.epochs.coordinator_events import ParticipantEnded, SnapshotWritten
from whale_ray.state.epochs.epoch_commands import (
    EpochDurable,
    EpochForgotten,
    InjectMarker,
    RestorePoint,
)
from whale_ray.state.epochs.manifest import Lineage, Manifest
from whale_ray.transport.clock import VirtualClock
from whale_ray.transport.wire.batch import Batch
from whale_ray.worker.worker import Worker

SOURCES, ROWS = 2, 150
EXPECTED = Counter({(p, n, n + 1): 1 for p in range(SOURCES) for n in range(ROWS)})


class Resumed(Numbered):
    """Numbers that can be read from a position."""

    def open_at(self, context: whale.InstanceContext, positions: Sequence[Any]) -> SourceReader:
        reader = NumberedReader(self, context.instance)
        reader.next = positions[context.instance]["next"]
        return reader


class Running(whale.KeyedProcess):
    """How many rows of its source came up to each row."""

    rows = state.count()

    def on_row(self, row: Any, out: Any) -> None:
        self.rows.add(1)
        out.emit_row(p=row.p, n=row.n, count=self.rows.get())


class Rows(Sink):
    """Stages the rows themselves."""

    def open(self, context: whale.InstanceContext, token: str) -> SinkWriter:
        return RowsWriter(context.instance)

    def publish(self, token: str, staged: Any) -> SinkResult:
        return SinkResult(0)

    def describe(self) -> str:
        return "rows"


class RowsWriter(SinkWriter):
    def __init__(self, instance: int) -> None:
        self.instance = instance
        self.rows: list[list[int]] = []

    def write(self, batch: Batch) -> None:
        self.rows += [list(row.values()) for row in batch.to_pylist()]

    def stage(self) -> Staged:
        return Staged(self.instance, 0)

    def stage_epoch(self, epoch: int) -> Staged | None:
        rows, self.rows = self.rows, []
        return Staged(self.instance, len(rows), payload=json.dumps(rows).encode()) if rows else None

    def abort(self) -> None:
        pass


class Attempts:
    """A job over all its attempts: what counts, and what is committed."""

    def __init__(self, folder: Path, chance: Random) -> None:
        self.folder, self.chance = folder, chance
        self.store = CheckpointStore.at(str(folder))
        self.claim = self.store.take_claim("job", "restarts")
        self.output = EpochOutput(self.store.read_chunk, bounded=False)
        self.committed: Counter[tuple[int, ...]] = Counter()
        self.point: RestorePoint | None = None
        self.epoch = 0
        self.attempt = -1
        self.workers: list[Worker] = []
        self.parallelism = 0

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self.claim.close()

    def begin(self) -> None:
        """Begin an attempt: with other workers, or with those that survived."""
        self.attempt += 1
        self.told: list[Any] = []
        if self.workers and self.chance.random() < 0.5:
            victim = self.chance.randrange(len(self.workers))
            self.workers[victim].close()
            self.workers[victim] = self._worker(victim)
        else:
            for worker in self.workers:
                worker.close()
            self.parallelism = self.chance.randint(1, 4)
            self.assignment = self._assignment(self.chance.randint(1, 3))
            count = self.assignment.plan.workers
            self.workers = [self._worker(index) for index in range(count)]
        boards = tuple(worker.open(self.attempt) for worker in self.workers)
        offers = tuple(worker.link(self.attempt, boards, self.point) for worker in self.workers)
        for worker in self.workers:
            worker.connect(self.attempt, offers)
        plan = self.assignment.plan
        self.participants = {
            (stage.id, worker) for stage in plan.stages for worker in stage.workers
        }
        self.ended: dict[Any, ParticipantEnded] = {}

    def _worker(self, index: int) -> Worker:
        return Worker(index, self.assignment, VirtualClock(), self._take)

    def _take(self, attempt: int, content: object) -> None:
        if attempt == self.attempt:
            self.told.append(content)

    def _assignment(self, workers: int) -> Assignment:
        topology = whale.Topology("restarts")
        source = topology.source(Resumed("a", ROWS, 500), id="a", parallelism=SOURCES)
        keyed = source.key_by("p").process(Running, id="running", parallelism=self.parallelism)
        keyed.shuffle().map(
            lambda row: {"p": row.p, "n": row.n, "count": row.count}, id="same"
        ).sink(Rows(), id="out")
        settings = load_settings(
            overrides={
                "checkpoints.url": str(self.folder),
                "transport.ring_bytes": 65_536,
                "transport.ring_bytes_min": 65_536,
                "transport.wtl_ms": 0.0,
            },
            environ={},
        )
        return Assignment("job", plan(topology.logical_plan(), settings, workers), settings)

    def tell(self, command: Any) -> None:
        for worker in self.workers:
            worker.tell(self.attempt, command)

    def turn(self) -> None:
        for worker in self.chance.sample(self.workers, len(self.workers)):
            worker._apply_pending_commands(self.attempt)
            worker._turn(worker._clock.monotonic_ns())
            worker._clock.sleep_ns(1_000_000)
            worker._checkpoints.wait()

    def play_epoch(self, turns: int) -> bool:
        """Take an epoch, if so many turns are enough; return whether all have ended."""
        self.epoch += 1
        self.tell(InjectMarker(self.epoch))
        for _ in range(turns):
            self.turn()
            self.ended |= {
                one.participant: one for one in self.told if isinstance(one, ParticipantEnded)
            }
            parts = {
                one.participant: one.part
                for one in self.told
                if isinstance(one, SnapshotWritten) and one.epoch == self.epoch
            }
            before = {t: one.part for t, one in self.ended.items() if one.behind < self.epoch}
            if parts.keys() | before.keys() == self.participants:
                self._count(parts_of((before | parts).values()))
                self.tell(EpochDurable(self.epoch))
                return self.ended.keys() == self.participants
        self.tell(EpochForgotten(self.epoch))
        return False

    def _count(self, snapshots: Any) -> None:
        """Write the manifest, and commit what it names."""
        previous = 0 if self.point is None else self.point.epoch
        manifest = Manifest(
            self.epoch,
            previous,
            Lineage("job"),
            "restarts",
            0,
            self.assignment.settings.runtime.virtual_nodes,
            self.output.parts(snapshots),
        )
        name = self.store.write_manifest(manifest)
        self.output.count(manifest, snapshots)
        for part in self.output.staged().get("out", ()):
            assert part.payload is not None
            self.committed.update(tuple(row) for row in json.loads(part.payload))
        self.point = RestorePoint(self.store.url, name, self.epoch)


@pytest.mark.parametrize("seed", range(6))
def test_a_job_that_is_killed_again_and_again_commits_every_row_once(
    tmp_path: Path, seed: int
) -> None:
    chance = Random(seed)
    job = Attempts(tmp_path, chance)
    try:
        finished = False
        while not finished:
            job.begin()
            lasts = job.attempt > 5
            while not finished and (lasts or chance.random() < 0.7):
                for _ in range(chance.randrange(6)):
                    job.turn()
                finished = job.play_epoch(200 if lasts else chance.choice([2, 200]))
            assert not job.committed - EXPECTED, "no row twice, and none that is wrong"
        assert job.committed == EXPECTED
    finally:
        job.close()
