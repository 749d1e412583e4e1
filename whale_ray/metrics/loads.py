"""What stages cost their workers, and what edges carried: the optimizer's measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class EdgeLoad:
    """What one worker has sent over one edge.

    Attributes:
        rows: that they held, each counted once for every message that it was in.
        messages: frames with rows.
        nbytes: of these frames.
        slices: that they were made of; one by key becomes several messages.
    """

    rows: int = 0
    messages: int = 0
    nbytes: int = 0
    slices: int = 0

    def plus(self, other: EdgeLoad) -> EdgeLoad:
        """Return both together."""
        return EdgeLoad(
            self.rows + other.rows,
            self.messages + other.messages,
            self.nbytes + other.nbytes,
            self.slices + other.slices,
        )

    def minus(self, before: EdgeLoad) -> EdgeLoad:
        """Return what was sent since then."""
        return EdgeLoad(
            self.rows - before.rows,
            self.messages - before.messages,
            self.nbytes - before.nbytes,
            self.slices - before.slices,
        )


@dataclass(frozen=True)
class WorkerLoad:
    """What one worker did so far.

    Attributes:
        worker: its number.
        stage_cpu_ns: processor time of its loop, by stage; empty unless `runtime.meter_stages` or
            `runtime.adapt` is set.
        sent: by edge.
        idle_ns: time in turns of its loop in which nothing moved, and asleep after them.
    """

    worker: int
    stage_cpu_ns: Mapping[int, int] = field(default_factory=dict)
    sent: Mapping[int, EdgeLoad] = field(default_factory=dict)
    idle_ns: int = 0

    @property
    def cpu_ns(self) -> int:
        """Processor time of its loop."""
        return sum(self.stage_cpu_ns.values())

    def plus(self, other: WorkerLoad) -> WorkerLoad:
        """Return both together."""
        cpu_ns = Counter(self.stage_cpu_ns) + Counter(other.stage_cpu_ns)
        sent = dict(self.sent)
        for edge, load in other.sent.items():
            sent[edge] = sent.get(edge, EdgeLoad()).plus(load)
        return WorkerLoad(self.worker, cpu_ns, sent, self.idle_ns + other.idle_ns)


def load_between(before: WorkerLoad, now: WorkerLoad) -> WorkerLoad:
    """Return what a worker did between two moments."""
    cpu_ns = {
        stage: spent - before.stage_cpu_ns.get(stage, 0)
        for stage, spent in now.stage_cpu_ns.items()
    }
    sent = {
        edge: so_far.minus(before.sent.get(edge, EdgeLoad())) for edge, so_far in now.sent.items()
    }
    return WorkerLoad(now.worker, cpu_ns, sent, now.idle_ns - before.idle_ns)


def stage_cpu_ns(loads: tuple[WorkerLoad, ...]) -> dict[int, int]:
    """Return the processor time of each stage on all workers together."""
    total: dict[int, int] = {}
    for load in loads:
        for stage, cpu_ns in load.stage_cpu_ns.items():
            total[stage] = total.get(stage, 0) + cpu_ns
    return total


def sent_by_edge(loads: tuple[WorkerLoad, ...]) -> dict[int, EdgeLoad]:
    """Return what all workers together have sent over each edge."""
    total: dict[int, EdgeLoad] = {}
    for load in loads:
        for edge, sent in load.sent.items():
            total[edge] = total.get(edge, EdgeLoad()).plus(sent)
    return total
