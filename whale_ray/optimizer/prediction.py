"""Predicts the throughput and latency of a plan from what its stages cost (Aeolus, section II).

The paper's equations say how busy an instance is that has a core of its own. Here instances share
workers, and a batch is divided among the workers that it is for; so a plan's throughput is the one
at which its busiest worker, or all cores together, are busy all the time. A batch is not always
full: it is sent after `wtl_ns`, and a stage emits as many rows at once as follow from one message,
or as it has held back, such as those of a window that ends.

Throughputs are rows that all sources read in a second; `flow` is per such row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..configs.units import NS_PER_S
from .fitting import StageCosts

__all__ = ["PlannedEdge", "PlannedStage", "Prediction", "predict"]

_ROUNDS = 40
_HOP_NS = 50_000.0
"""What it takes a worker that sleeps to be woken up, about (two context switches)."""


@dataclass(frozen=True)
class PlannedStage:
    """A stage of a plan.

    Args:
        id: its head.
        costs: of its rows and messages.
        flow: how many rows it takes.
        workers: of each instance.
        rows_at_once: of a source: how many rows it reads together.
    """

    id: str
    costs: StageCosts
    flow: float
    workers: tuple[int, ...]
    rows_at_once: float = 1.0


@dataclass(frozen=True)
class PlannedEdge:
    """An edge of a plan.

    Args:
        source: the index of the stage that sends.
        target: the index of the stage that receives.
        flow: how many rows it carries; one for all instances counts once.
        to_all: whether each worker of the target gets all of them.
        batch_rows: the most rows that are sent together.
        held_rows: how many rows all instances of the sender together let go at once; 0 if it holds
            none back.
        gathers: how many times the rows are sent together that follow from one message.
        spread: of the target's other workers, the part that a full slice also goes to: 0 if its
            rows are all for one, as where both ends have the same key.
    """

    source: int
    target: int
    flow: float
    to_all: bool
    batch_rows: float
    held_rows: float = 0.0
    gathers: float = 1.0
    spread: float = 1.0


@dataclass(frozen=True)
class Prediction:
    """What a plan can do.

    Args:
        rows_per_s: that all sources read.
        latency_ns: from source to sink, on the slowest way, at the rate that was asked for.
        worker_ns: the processor time for a row, by worker.
        slice_rows: how many rows are sent together, by edge.
    """

    rows_per_s: float
    latency_ns: float
    worker_ns: Mapping[int, float]
    slice_rows: tuple[float, ...]


def predict(
    stages: Sequence[PlannedStage],
    edges: Sequence[PlannedEdge],
    *,
    cores: int,
    wtl_ns: float,
    rate_per_s: float | None = None,
) -> Prediction:
    """Return how many rows a plan can take, and its latency.

    Args:
        stages: each after those that feed it.
        edges: between them.
        cores: of the machine.
        wtl_ns: after which a batch is sent that is not full.
        rate_per_s: at which the latency is asked for; None: at half of the throughput.
    """
    rows_per_s = 0.0
    sizes = [edge.batch_rows for edge in edges]
    for round_ in range(_ROUNDS):
        loads = _worker_ns(stages, edges, sizes)
        needed_ns = max(max(loads.values(), default=0.0), sum(loads.values()) / cores)
        possible = NS_PER_S / needed_ns if needed_ns else 0.0
        rows_per_s = possible if round_ == 0 else (rows_per_s + possible) / 2
        sizes = _slice_rows(stages, edges, rows_per_s, wtl_ns)
    rate = rate_per_s or rows_per_s / 2
    sizes_then = _slice_rows(stages, edges, rate, wtl_ns)
    loads_then = _worker_ns(stages, edges, sizes_then)
    latency_ns = _latency_ns(stages, edges, sizes_then, loads_then, rate, wtl_ns)
    return Prediction(rows_per_s, latency_ns, loads, tuple(sizes))


def _slice_rows(
    stages: Sequence[PlannedStage], edges: Sequence[PlannedEdge], rows_per_s: float, wtl_ns: float
) -> list[float]:
    """Return how many rows of each edge are sent together."""
    found: list[float] = []
    for edge in edges:
        sender = stages[edge.source]
        producers = len(sender.workers)
        emitted = _emitted(sender, edge, edges, found, stages) * edge.gathers
        at_once = max(emitted, edge.held_rows / producers)
        gathered = rows_per_s * edge.flow / producers * wtl_ns / NS_PER_S
        found.append(min(edge.batch_rows, max(1.0, at_once, gathered)))
    return found


def _emitted(
    sender: PlannedStage,
    edge: PlannedEdge,
    edges: Sequence[PlannedEdge],
    found: Sequence[float],
    stages: Sequence[PlannedStage],
) -> float:
    """Return how many rows of an edge follow from one message, or from one reading of a source."""
    if not sender.flow:
        return 0.0
    selectivity = edge.flow / sender.flow
    inputs = [at for at, one in enumerate(edges[: len(found)]) if stages[one.target] is sender]
    if not inputs:
        return sender.rows_at_once * selectivity
    taken = sum(found[at] / _messages(edges[at], stages, found[at]) for at in inputs)
    return taken / len(inputs) * selectivity


def _messages(edge: PlannedEdge, stages: Sequence[PlannedStage], slice_rows: float) -> float:
    """Return in how many messages a slice is sent."""
    if edge.to_all:
        return 1.0
    workers = len(set(stages[edge.target].workers))
    return 1.0 + edge.spread * (min(max(1.0, slice_rows), workers) - 1.0)


def _worker_ns(
    stages: Sequence[PlannedStage], edges: Sequence[PlannedEdge], sizes: Sequence[float]
) -> dict[int, float]:
    """Return what a row that the sources read costs each worker."""
    total: dict[int, float] = {}
    for number, stage in enumerate(stages):
        sent = received = 0.0
        for edge, size in zip(edges, sizes, strict=True):
            if not size:
                continue
            messages = edge.flow / size * _messages(edge, stages, size)
            if edge.source == number:
                sent += messages
            if edge.target == number:
                readers = len(set(stage.workers)) if edge.to_all else 1
                received += messages * readers
        costs = stage.costs
        cost_ns = costs.row_ns * stage.flow + costs.receive_ns * received + costs.send_ns * sent
        own_ns = cost_ns / len(stage.workers) + costs.each_ns * stage.flow
        for worker in stage.workers:
            total[worker] = total.get(worker, 0.0) + own_ns
    return total


def _latency_ns(
    stages: Sequence[PlannedStage],
    edges: Sequence[PlannedEdge],
    sizes: Sequence[float],
    loads: Mapping[int, float],
    rows_per_s: float,
    wtl_ns: float,
) -> float:
    """Return how long the oldest row of a batch takes on the slowest way.

    Each edge adds the wait for its batch, each stage the work on a message, which takes longer the
    busier its worker is: 1 / (1 - ρ), as where all share the processor.
    """
    behind = [0.0] * len(stages)
    for number, stage in enumerate(stages):
        inputs = [at for at, edge in enumerate(edges) if edge.target == number]
        busy = max((rows_per_s * loads[one] / NS_PER_S for one in stage.workers), default=0.0)
        rows = stage.rows_at_once if not inputs else 0.0
        for at in inputs:
            rows = max(rows, sizes[at] / _messages(edges[at], stages, sizes[at]))
        outputs = sum(1 for edge in edges if edge.source == number)
        costs = stage.costs
        rows_ns = (costs.row_ns + costs.each_ns) * rows
        work_ns = rows_ns + costs.receive_ns * bool(inputs) + costs.send_ns * outputs
        slowest = 0.0
        for at in inputs:
            producers = len(stages[edges[at].source].workers)
            per_ns = rows_per_s * edges[at].flow / producers / NS_PER_S
            fills_ns = (edges[at].batch_rows - 1) / per_ns if per_ns else wtl_ns
            slowest = max(slowest, behind[edges[at].source] + min(wtl_ns, fills_ns) + _HOP_NS)
        behind[number] = slowest + work_ns / max(0.05, 1 - min(busy, 1.0))
    return max(behind, default=0.0)
