"""Jobs of several workers in one thread, over real rings: a test decides who has its turn.

Sources number their rows, processes write down what they get, and whoever takes a snapshot writes
down where it is. The snapshot of an epoch is right if every process has got exactly the rows that
the sources had read when they took theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, cast

import whale_ray as whale
from whale_ray.configs.loading import load_settings
from whale_ray.operators.sinks.base import Sink, SinkResult, SinkWriter, Staged
from whale_ray.operators.sources.base import Source, SourceReader
from whale_ray.plan.assignment import Assignment
from whale_ray.plan.physical import PhysicalPlan
from whale_ray.plan.planner import plan
from whale_ray.state.epochs.epoch_commands import EpochCommand
from whale_ray.tasks.stage_epochs import SnapshotOutlet, TakenSnapshot
from whale_ray.transport.clock import VirtualClock
from whale_ray.transport.wire.batch import Batch
from whale_ray.worker.worker import Worker

Row = tuple[str, int, int]
"""A row: its source, the source's instance, and its number."""
Object = tuple[str, tuple[int, ...]]
"""An operator object: the operator's id, and the instances that it serves."""


class Numbered(Source):
    """Rows (s, p, n) of source `name`: instance p reads the numbers n below `rows`."""

    def __init__(self, name: str, rows: int, row_bytes: int) -> None:
        self.name, self.rows, self.row_bytes = name, rows, row_bytes

    def open(self, context: whale.InstanceContext) -> SourceReader:
        return NumberedReader(self, context.instance)

    def describe(self) -> str:
        return "numbers"


class NumberedReader(SourceReader):
    """Reads one row more each time, up to seven."""

    def __init__(self, source: Numbered, instance: int) -> None:
        self.source, self.instance, self.next = source, instance, 0

    def read(self, max_rows: int) -> Batch | None:
        count = min(self.source.rows - self.next, 1 + self.next % 7)
        if not count:
            return None
        rows = [
            {"s": self.source.name, "p": self.instance, "n": n, "pad": "x" * self.source.row_bytes}
            for n in range(self.next, self.next + count)
        ]
        self.next += count
        return Batch.from_pydict({name: [row[name] for row in rows] for name in rows[0]})

    @property
    def finished(self) -> bool:
        return self.next >= self.source.rows

    def position(self) -> dict[str, Any]:
        return {"next": self.next}


class Keep(whale.Process):
    """Writes down what it gets, and passes it on."""

    def __init__(self, seen: dict[Object, list[Row]]) -> None:
        self.all_seen = seen

    def open(self, context: whale.InstanceContext) -> None:
        self.seen = self.all_seen.setdefault((context.operator_id, context.instances), [])

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        self.seen += rows_of(batch)
        out.emit(batch.copy())


class KeepTogether(Keep):
    """The same, once for all instances of a worker."""

    per_worker = True


def rows_of(batch: Batch) -> Iterator[Row]:
    return ((row["s"], row["p"], row["n"]) for row in batch.to_pylist())


class Counting(Sink):
    """Counts the rows of each epoch."""

    def open(self, context: whale.InstanceContext, token: str) -> SinkWriter:
        return CountingWriter(context.instance)

    def publish(self, token: str, staged: Any) -> SinkResult:
        return SinkResult(sum(part.rows for part in staged))

    def describe(self) -> str:
        return "counts"


class CountingWriter(SinkWriter):
    def __init__(self, instance: int) -> None:
        self.instance, self.rows = instance, 0

    def write(self, batch: Batch) -> None:
        self.rows += batch.num_rows

    def stage(self) -> Staged:
        return Staged(self.instance, self.rows)

    def stage_epoch(self, epoch: int) -> Staged | None:
        rows, self.rows = self.rows, 0
        return Staged(self.instance, rows, path=f"part-{self.instance}-{epoch}") if rows else None

    def abort(self) -> None:
        pass


@dataclass
class Record(SnapshotOutlet):
    """What the stages of all workers have told, and what was seen when they took snapshots."""

    seen: dict[Object, list[Row]] = field(default_factory=dict)
    told: list[tuple[str, tuple[int, int], int]] = field(default_factory=list)
    cuts: dict[int, dict[Object, int]] = field(default_factory=dict)
    """By epoch and object: how many rows it had got, or its position."""
    last: dict[tuple[int, int], int] = field(default_factory=dict)
    """By participant that has ended: the last epoch of which it took a snapshot."""
    parts: dict[tuple[tuple[int, int], int], tuple[TakenSnapshot, ...]] = field(
        default_factory=dict
    )

    def aligned(self, participant: tuple[int, int], epoch: int) -> None:
        self.told.append(("aligned", participant, epoch))

    def taken(
        self, participant: tuple[int, int], epoch: int, parts: tuple[TakenSnapshot, ...]
    ) -> None:
        self.told.append(("taken", participant, epoch))
        self.parts[participant, epoch] = parts
        for part in parts:
            kept = part.operator
            key = kept.operator_id, kept.instances
            cut = self.cuts.setdefault(epoch, {})
            assert key not in cut
            cut[key] = kept.position["next"] if kept.position else len(self.seen.get(key, ()))

    def failed(self, participant: tuple[int, int], epoch: int, reason: str) -> None:
        self.told.append((f"failed: {reason}", participant, epoch))

    def ended(
        self, participant: tuple[int, int], behind: int, parts: tuple[TakenSnapshot, ...]
    ) -> None:
        assert participant not in self.last
        self.last[participant] = behind
        self.parts[participant, behind + 1] = parts


class Observed(Worker):
    """A worker whose snapshots go to a record."""

    def __init__(self, index: int, assignment: Assignment, record: Record) -> None:
        super().__init__(index, assignment, VirtualClock())
        cast(Any, self._checkpoints)._make_outlet = lambda _attempt: record


class EpochJob:
    """All workers of a job, connected; `step` gives one part of one worker its turn."""

    def __init__(
        self, topology: whale.Topology, workers: int, record: Record, settings: Mapping[str, Any]
    ) -> None:
        self.record = record
        chosen = load_settings(overrides=settings, environ={})
        self.plan: PhysicalPlan = plan(topology.logical_plan(), chosen, workers)
        assignment = Assignment("job", self.plan, chosen)
        self.workers = [Observed(index, assignment, record) for index in range(workers)]
        boards = tuple(worker.open(0) for worker in self.workers)
        offers = tuple(worker.link(0, boards) for worker in self.workers)
        for worker in self.workers:
            worker.connect(0, offers)
        self.now_ns = 0
        self.forgotten: set[int] = set()

    def __enter__(self) -> EpochJob:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.close()

    def tell(self, worker: int, command: EpochCommand) -> None:
        told = self.workers[worker]
        told.tell(0, command)
        assert told._epochs is not None
        told._epochs.carry_out_commands()

    def tell_all(self, command: EpochCommand) -> None:
        for worker in range(len(self.workers)):
            self.tell(worker, command)

    def steps(self) -> list[Callable[[int], Any]]:
        """Return everything that a loop does, in pieces: each takes the time."""
        found: list[Callable[[int], Any]] = []
        for worker in self.workers:
            assert worker._epochs is not None
            found += [reader.poll for reader in worker._readers]
            found += [stage.turn for stage in worker._epochs.by_stage.values()]
            found += [task.poll for task in worker._tasks]
            found += [writer.pump for task in worker._tasks for writer in task.writers]
        return found

    @property
    def done(self) -> bool:
        return all(
            all(task.done for task in worker._tasks)
            and worker._epochs is not None
            and worker._epochs.ended
            and worker._opened.transports.ended
            for worker in self.workers
        )

    def turn(self, chance: Random | None = None) -> bool:
        """Give everyone a turn, in a random order; return whether anything moved."""
        steps = self.steps()
        if chance is not None:
            chance.shuffle(steps)
        self.now_ns += 1_000_000
        moved = False
        for step in steps:
            moved = bool(step(self.now_ns)) or moved
        return moved

    def run_to_the_end(self, turns: int = 100_000) -> None:
        for _ in range(turns):
            if self.done:
                return
            self.turn()
        raise AssertionError("the job does not come to its end")

    # --- what must be so --------------------------------------------------------------------------

    def check_cuts(self, sources: Mapping[str, int]) -> int:
        """Check each epoch of which all participants took a snapshot, or ended; return how many.

        `sources` says how many rows each instance of a source has.
        """
        whole = [epoch for epoch in self.record.cuts if self.is_whole(epoch)]
        for epoch in whole:
            self.check_cut(epoch, sources)
        return len(whole)

    def is_whole(self, epoch: int) -> bool:
        """Whether all participants have taken the snapshot of an epoch, or had ended before it."""
        failed = {n for kind, _, n in self.record.told if kind.startswith("failed")}
        if epoch in self.forgotten | failed:
            return False
        last = self.record.last
        behind = {
            participant for participant in self.participants if last.get(participant, epoch) < epoch
        }
        taken = {
            participant
            for kind, participant, n in self.record.told
            if (kind, n) == ("taken", epoch)
        }
        return behind | taken == self.participants

    @property
    def participants(self) -> set[tuple[int, int]]:
        return {(stage.id, worker) for stage in self.plan.stages for worker in stage.workers}

    def check_cut(self, epoch: int, sources: Mapping[str, int]) -> None:
        """Check one epoch; one without snapshots is the end."""
        cut = self.record.cuts.get(epoch, {})
        expected: Counter[Row] = Counter()
        for name, rows in sources.items():
            for instance in range(self.plan.stage_of(name).parallelism):
                until = cut.get((name, (instance,)), rows)
                expected.update((name, instance, n) for n in range(until))
        by_operator: dict[str, list[Object]] = {}
        for key in self.record.seen:
            by_operator.setdefault(key[0], []).append(key)
        for operator, objects in by_operator.items():
            wanted = self._from(operator, expected)
            got = [
                Counter(self.record.seen[key][: cut.get(key, len(self.record.seen[key]))])
                for key in objects
            ]
            if self._to_all(operator):
                assert all(one == wanted for one in got), (epoch, operator)
            else:
                assert sum(got, Counter()) == wanted, (epoch, operator)

    def _from(self, operator: str, rows: Counter[Row]) -> Counter[Row]:
        """Return how often an operator's objects get each row, all together."""
        times: Counter[str] = Counter()
        self._count_ways(operator, 1, times)
        return Counter({row: count * times[row[0]] for row, count in rows.items() if times[row[0]]})

    def _count_ways(self, operator: str, copies: int, times: Counter[str]) -> None:
        node = self.plan.operator(operator)
        if not node.inputs:
            times[operator] += copies
        for feed in node.inputs:
            upstream = feed.upstream
            before = len([key for key in self.record.seen if key[0] == upstream])
            self._count_ways(upstream, copies * (before if self._to_all(upstream) else 1), times)

    def _to_all(self, operator: str) -> bool:
        return any(
            type(feed.grouping).__name__ == "All" for feed in self.plan.operator(operator).inputs
        )
