"""All tasks of one stage with a process, fed by hand: no rings, no workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from whale_ray.operators.groupings import All, Grouping, Key, Shuffle
from whale_ray.operators.process import CoProcess, Process
from whale_ray.operators.snapshot_files import (
    chunk_from_bytes,
    chunk_to_bytes,
    values_from_bytes,
    values_to_bytes,
)
from whale_ray.operators.snapshots import OperatorSnapshot
from whale_ray.plan.physical import Stage
from whale_ray.state.event_time_buffer import EventTimeBuffer
from whale_ray.state.keys import hash_keys, virtual_node_of
from whale_ray.state.owners import Owners
from whale_ray.state.spill import SpillFile
from whale_ray.state.watermarks import WATERMARK_END, WATERMARK_NONE
from whale_ray.tasks.nodes import Node
from whale_ray.tasks.process_node import ProcessNode
from whale_ray.tasks.stage_task import StageTask
from whale_ray.testing import instance_context
from whale_ray.transport.clock import VirtualClock
from whale_ray.transport.wire.batch import Batch

VIRTUAL_NODES = 64
WORKERS_MAX = 3
SOURCES = 2
"""Producers of each port."""


@dataclass(frozen=True)
class Rows:
    """A step: rows of a producer reach a port."""

    port: int
    source: int
    batch: Batch


@dataclass(frozen=True)
class Reached:
    """A step: the watermark of a port's producer."""

    port: int
    source: int
    watermark_ns: int


Step = Rows | Reached


class Sunk:
    """Takes what a process emits on one output, as the operators behind it would."""

    def __init__(self, output: str) -> None:
        self.output = output
        self.rows: list[dict[str, Any]] = []
        self.columns: set[Any] = set()
        self.watermark_ns = WATERMARK_NONE
        self.ended = self.idle = False

    def emit(self, batch: Batch) -> None:
        assert not self.ended
        self.columns.add(batch.schema)
        times = [None] * batch.num_rows if batch.times is None else batch.times.tolist()
        for row, time_ns in zip(batch.to_pylist(), times, strict=True):
            self.rows.append({**row, "(time)": time_ns, "(output)": self.output})

    def advance(self, watermark_ns: int) -> None:
        assert watermark_ns >= self.watermark_ns
        self.watermark_ns = watermark_ns

    def set_idle(self, idle: bool) -> None:
        self.idle = idle

    def end(self) -> None:
        self.ended = True


class Board:
    """Nobody looks at it."""

    def set_watermark(self, slot: int, watermark_ns: int) -> None:
        pass

    def min_watermark(self) -> int:
        return WATERMARK_END


class Fleet:
    """All objects of one process at some parallelism."""

    def __init__(
        self,
        make: Callable[[], Process | CoProcess],
        parallelism: int,
        *,
        groupings: Sequence[Grouping] = (Key(("key",)),),
        buffer_bytes: int = 1 << 20,
        workers: int = WORKERS_MAX,
        restored: Mapping[str, Sequence[OperatorSnapshot]] | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        self._groupings = tuple(groupings)
        self._ports = len(groupings)
        self._buffer_bytes = buffer_bytes
        self._make = make
        self._owners = Owners.even(VIRTUAL_NODES, parallelism)
        self._clock = clock or VirtualClock()
        self._sent = 0
        self.sunk: list[list[Sunk]] = []
        self.tasks: list[StageTask] = []
        per_worker = make().per_worker
        objects = min(parallelism, workers) if per_worker else parallelism
        for first in range(objects):
            self._build(tuple(range(first, parallelism, objects)), parallelism, restored or {})

    def _build(
        self,
        instances: tuple[int, ...],
        parallelism: int,
        restored: Mapping[str, Sequence[OperatorSnapshot]],
    ) -> None:
        process = self._make()
        in_order = process.input_order != "arrival"
        kept = [one for one in restored.get("op", ()) if one.watermark_ns != WATERMARK_END]
        context = replace(
            instance_context(instances[0], parallelism, operator_id="op", clock=self._clock),
            instances=instances,
            virtual_nodes=VIRTUAL_NODES,
            keys=tuple(one.columns if isinstance(one, Key) else () for one in self._groupings),
            in_event_time_order=in_order,
            watermark_ns=min((one.watermark_ns for one in kept), default=WATERMARK_NONE),
        )
        outputs = [Sunk(name) for name in process.outputs]
        buffer = None
        if in_order:
            spill = SpillFile("op", 1 << 30)
            buffer = EventTimeBuffer(self._ports, self._buffer_bytes, lambda: spill)
        node: Node = ProcessNode(
            context,
            0,
            process,
            outputs,
            buffer,
            needs_times=True,
            bounded=True,
            remake=self._make,
            groupings=self._groupings,
            checkpoints=True,
        )
        inputs = [(port, source) for port in range(self._ports) for source in range(SOURCES)]
        stage = Stage(0, ("op",), parallelism, (0,) * parallelism, False, {})
        task = StageTask(stage, instances, node, [node], [], inputs)
        if restored:
            task.restore(restored)
        task.begin(Board())
        self.tasks.append(task)
        self.sunk.append(outputs)

    def take(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, Reached):
                for task in self.tasks:
                    task.advance(step.port, step.source, step.watermark_ns)
                continue
            instances = self._instances_of(step)
            for task in self.tasks:
                part = step.batch if instances is None else _part(step.batch, instances, task)
                if part.num_rows:
                    task.deliver(step.port, step.source, part)

    def _instances_of(self, step: Rows) -> list[int] | None:
        """Return the instance that each row goes to; None if all of them get all rows."""
        grouping, batch = self._groupings[step.port], step.batch
        if isinstance(grouping, Key):
            nodes = virtual_node_of(hash_keys(batch, grouping.columns)[0], VIRTUAL_NODES)
            return self._owners.of(nodes).tolist()
        if isinstance(grouping, Shuffle):
            parallelism = len(set(self._owners.instances.tolist()))
            first, self._sent = self._sent, self._sent + batch.num_rows
            return [number % parallelism for number in range(first, self._sent)]
        assert isinstance(grouping, All)
        return None

    def end(self) -> None:
        for port in range(self._ports):
            for source in range(SOURCES):
                self.take([Reached(port, source, WATERMARK_END)])

    def close(self) -> None:
        for task in self.tasks:
            task.close()

    def snapshot(self, epoch: int = 1) -> list[OperatorSnapshot]:
        return [one for task in self.tasks for one in task.snapshot(epoch)]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for outputs in self.sunk for sunk in outputs for row in sunk.rows]

    @property
    def columns(self) -> set[Any]:
        return {
            (sunk.output, columns)
            for outputs in self.sunk
            for sunk in outputs
            for columns in sunk.columns
        }


def _part(batch: Batch, instances: Sequence[int], task: StageTask) -> Batch:
    return batch.filter(np.array([one in task.instances for one in instances], np.bool_))


@dataclass(frozen=True)
class Stored:
    """A snapshot as a store has it."""

    besides: OperatorSnapshot
    chunks: Sequence[bytes]
    values: bytes

    @classmethod
    def of(cls, snapshot: OperatorSnapshot) -> Stored:
        """Store a snapshot."""
        chunks = [chunk_to_bytes(one) for one in snapshot.chunks]
        besides = replace(snapshot, chunks=(), values={})
        return cls(besides, chunks, values_to_bytes(snapshot.values))

    def read(self) -> OperatorSnapshot:
        """Return the snapshot as it comes back."""
        chunks = [chunk_from_bytes(one) for one in self.chunks]
        return replace(self.besides, chunks=chunks, values=values_from_bytes(self.values))


def sent(snapshot: OperatorSnapshot) -> OperatorSnapshot:
    """Return a snapshot as it comes back from a store."""
    return Stored.of(snapshot).read()


def last_watermarks(steps: Sequence[Step]) -> list[Reached]:
    """Return what producers tell first in a restored job: how far they had come."""
    latest: dict[tuple[int, int], Reached] = {}
    for step in steps:
        if isinstance(step, Reached):
            before = latest.get((step.port, step.source), step)
            latest[step.port, step.source] = max(step, before, key=lambda one: one.watermark_ns)
    return list(latest.values())
