"""The tasks of a process in event-time order, which are killed and go on from their last snapshots.

The objects are those of a worker: they order rows by the watermarks of two producers, keep state by
key, and learn the columns of what they emit. Two producers send rows out of order, within what
their watermarks promise. Epochs take snapshots, which go through bytes. A kill discards what came
since the last epoch, rows that were emitted included; other objects, at another parallelism, go on
from there, and the producers send again what they had sent since. What was emitted up to the epochs
that count must be what the rows make in the order of their event times, in the same columns.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

import whale_ray as whale
from tests.simulation.scenarios.workload import MS
from tests.simulation.seeds import Scenario
from tests.simulation.simulator import Simulator
from tests.whale_ray.tasks.fleets import (
    SOURCES,
    Fleet,
    Reached,
    Rows,
    Step,
    Stored,
    last_watermarks,
)
from whale_ray.operators.process import Output, Process
from whale_ray.operators.snapshots import OperatorSnapshot
from whale_ray.state.keys import is_among
from whale_ray.transport.wire.batch import Batch

KEYS = 4
_SCHEMA = whale.Schema.of(key="int32", number="int64")
COLUMNS = whale.Schema.of(key="int64", before="int64", number="int64", share="float64")
_FIRST = 0.5
"""What the first row of an instance emits: a float, of which its column learns its type."""

Emitted = Counter[tuple[int, int, int]]
"""How often (key, how many rows of the key came before, number of the row) was emitted."""


class Numbered(Process):
    """Emits each row with how many of its key came before it in event time."""

    def open(self, context: Any) -> None:
        self._context = context
        self._seen: Counter[int] = Counter()

    def on_row(self, row: Any, out: Output) -> None:
        # Whole numbers from the second row on: who has forgotten the first one learns integers.
        before = self._seen[row.key]
        self._seen[row.key] += 1
        share = 1 if any(count > 1 for count in self._seen.values()) else _FIRST
        out.emit_row(key=row.key, before=before, number=row.number, share=share)

    def dump(self, nodes: Any) -> Iterator[Batch]:
        if self._seen:
            batch = _numbered(list(self._seen), list(self._seen.values()))
            is_asked = is_among(self._context.nodes_of(batch), nodes, self._context.virtual_nodes)
            yield batch.filter(is_asked)

    def load(self, batch: Batch) -> None:
        for row in batch.to_pylist():
            self._seen[row["key"]] += row["number"]


def _numbered(keys: Sequence[int], numbers: Sequence[int]) -> Batch:
    columns = {"key": np.array(keys, np.int32), "number": np.array(numbers, np.int64)}
    return Batch.from_pydict(columns, _SCHEMA)


@dataclass(frozen=True)
class Epoch:
    """An epoch that counts.

    Attributes:
        step: how many steps of the producers it covers.
        stored: the snapshots of all objects.
    """

    step: int = 0
    stored: tuple[Stored, ...] = ()

    @cached_property
    def snapshots(self) -> tuple[OperatorSnapshot, ...]:
        """The snapshots, as they come back from a store, if anybody asks for them."""
        return tuple(one.read() for one in self.stored)


class Play:
    """A process over all its attempts; `seen` counts what happened."""

    def __init__(self, simulation: Simulator) -> None:
        self._simulation = simulation
        self._chance = random.Random(f"{simulation.seed}/tasks")
        self._times = self._chance.sample(range(1_000), self._chance.choice((8, 24, 60)))
        self._times.sort()
        self._keys = [self._chance.randrange(KEYS) for _ in self._times]
        self._steps = self._made_steps()
        self._trouble = self._chance.choice((0.0, 0.1, 0.3))
        self._epoch = Epoch()
        self._emitted: Emitted = Counter()
        self._columns: set[Any] = set()
        self.seen: Counter[str] = Counter()
        self._fleet = self._begin()

    def run(self) -> None:
        """Let the producers send everything, again where objects were killed; check what came."""
        step = 0
        while step < len(self._steps):
            self._simulation.clock.now_ns += MS
            if self._chance.random() < self._trouble:
                step = self._kill()
                continue
            self._fleet.take([self._steps[step]])
            step += 1
            if self._chance.random() < 0.2:
                self._take_epoch(step)
        self._fleet.end()
        self._count()
        assert self._emitted == self._expected()
        assert self._columns == {COLUMNS}, "restored objects emit other columns"

    def _begin(self) -> Fleet:
        parallelism = self._chance.choice((1, 2, 3))
        restored = {"op": self._epoch.snapshots} if self._epoch.snapshots else None
        fleet = Fleet(Numbered, parallelism, restored=restored)
        fleet.take(last_watermarks(self._steps[: self._epoch.step]))
        return fleet

    def _kill(self) -> int:
        """Go on from the last epoch; return the step."""
        self.seen["killed"] += 1
        self.seen["restored"] += bool(self._epoch.snapshots)
        self._fleet.close()
        self._fleet = self._begin()
        return self._epoch.step

    def _take_epoch(self, step: int) -> None:
        self.seen["epochs"] += 1
        self._epoch = Epoch(step, tuple(Stored.of(one) for one in self._fleet.snapshot(step)))
        self._count()

    def _count(self) -> None:
        """Let all that was emitted since the last epoch count."""
        for outputs in self._fleet.sunk:
            for sunk in outputs:
                self._emitted.update(
                    (row["key"], row["before"], row["number"]) for row in sunk.rows
                )
                sunk.rows.clear()
                self._columns |= sunk.columns

    # --- what is sent -----------------------------------------------------------------------------

    def _made_steps(self) -> list[Step]:
        """Return the steps of all producers: rows out of order, then what they promise."""
        queues = [self._of_producer(source) for source in range(SOURCES)]
        steps: list[Step] = []
        while any(queues):
            steps.append(self._chance.choice([queue for queue in queues if queue]).pop(0))
        return steps

    def _of_producer(self, source: int) -> list[Step]:
        rows = [row for row in range(len(self._times)) if row % SOURCES == source]
        slow = 1 + 30 * self._chance.random()
        rows.sort(key=lambda row: row + slow * self._chance.random())
        steps: list[Step] = []
        while rows:
            count = self._chance.randint(1, 5)
            sending, rows = rows[:count], rows[count:]
            steps.append(Rows(0, source, self._batch(sending)))
            if rows:
                promise = min(self._times[row] for row in rows) - 1
                steps.append(Reached(0, source, promise * MS))
        return steps

    def _batch(self, rows: Sequence[int]) -> Batch:
        times = np.array([self._times[row] * MS for row in rows], np.int64)
        return _numbered([self._keys[row] for row in rows], rows).with_times(times)

    def _expected(self) -> Emitted:
        before: Counter[int] = Counter()
        found: Emitted = Counter()
        for number, key in enumerate(self._keys):  # in the order of event time
            found[key, before[key], number] += 1
            before[key] += 1
        return found


def play(simulation: Simulator) -> Play:
    """Play one seed; return what happened."""
    played = Play(simulation)
    played.run()
    return played


SCENARIO = Scenario("tasks", play)
