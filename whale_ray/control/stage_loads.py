"""What the stages of a running job did between two looks at its workers, for the policies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..configs.units import NS_PER_S
from ..metrics.counters import MemberCounters
from ..metrics.loads import EdgeLoad, WorkerLoad, load_between
from ..operators.groupings import All
from ..optimizer.scaling_policy import StageLoad
from ..optimizer.slice_policy import SliceLoad
from ..plan.physical import Edge, PhysicalPlan, Stage

__all__ = ["LoadsBetween"]


@dataclass(frozen=True)
class LoadsBetween:
    """Two looks at all workers of one attempt.

    Attributes:
        plan: of the job.
        before: the counters of each worker at the first look.
        now: at the second, later on each of them.
    """

    plan: PhysicalPlan
    before: Mapping[int, MemberCounters]
    now: Mapping[int, MemberCounters]

    def slices_of(self, edge: Edge) -> SliceLoad | None:
        """Return what is sent on an edge; None if nothing was."""
        sent = self._sent_on(edge)
        if sent is None:
            return None
        stages = self.plan.stages
        ends = {*stages[edge.source_stage].workers, *stages[edge.target_stage].workers}
        return SliceLoad(max(map(self.busy, ends)), *sent)

    def work_of(self, stage: Stage) -> StageLoad:
        """Return what a stage took and spent."""
        producers = {edge.source_stage for edge in self.plan.in_edges(stage.id)}
        return StageLoad(
            self._rows_per_s(stage),
            sum(
                self._load(worker).stage_cpu_ns.get(stage.id, 0) / self._elapsed_s(worker)
                for worker in stage.workers
            ),
            max((self._waits(self.plan.stages[one]) for one in producers), default=0.0),
            self._waits(stage),
            max(map(self.busy, stage.workers)),
            sum(1 - self.busy(worker) for worker in self.now),
        )

    def busy(self, worker: int) -> float:
        """Return for what part of the time a worker's loop did not sleep."""
        idle_s = self._load(worker).idle_ns / NS_PER_S
        return min(1.0, max(0.0, 1 - idle_s / self._elapsed_s(worker)))

    def _sent_on(self, edge: Edge) -> tuple[float, float, float] | None:
        """Return rows per s of a producer, rows of a slice, and bytes of a row on an edge."""
        stage = self.plan.stages[edge.source_stage]
        found = EdgeLoad()
        for worker in stage.workers:
            found = found.plus(self._load(worker).sent.get(edge.id, EdgeLoad()))
        if not (found.slices and found.messages and found.rows):
            return None
        # A message to all holds a whole slice; others are divided among several messages.
        slices = found.messages if isinstance(edge.grouping, All) else found.slices
        producers = sum(len(self.plan.source_ids(stage.id, one)) for one in stage.workers)
        elapsed_s = max(self._elapsed_s(worker) for worker in stage.workers)
        slice_rows = found.rows / slices
        rows_per_s = found.slices * slice_rows / producers / elapsed_s
        return rows_per_s, slice_rows, found.nbytes / found.rows

    def _rows_per_s(self, stage: Stage) -> float:
        """Return how many rows a stage took; one that goes to all instances counts once."""
        edges = self.plan.in_edges(stage.id)
        if not any(isinstance(edge.grouping, All) for edge in edges):
            return sum(
                (one.rows_in - self._earlier(worker, one.operator_id, one.instance)[0])
                / self._elapsed_s(worker)
                for worker in stage.workers
                for one in self.now[worker].instances
                if one.operator_id == stage.head
            )
        return sum(
            self._load(worker).sent.get(edge.id, EdgeLoad()).rows / self._elapsed_s(worker)
            for edge in edges
            for worker in self.plan.stages[edge.source_stage].workers
        )

    def _waits(self, stage: Stage) -> float:
        """Return for what part of the time the most blocked instance of a stage waited."""
        shares = [
            (one.blocked_ns - self._earlier(worker, one.operator_id, one.instance)[1])
            / NS_PER_S
            / self._elapsed_s(worker)
            for worker in stage.workers
            for one in self.now[worker].instances
            if one.operator_id == stage.head
        ]
        return min(1.0, max(0.0, max(shares, default=0.0)))

    def _earlier(self, worker: int, operator_id: str, instance: int) -> tuple[int, int]:
        """Return the rows in, and the ns blocked, of an instance at the first look."""
        for one in self.before[worker].instances:
            if one.operator_id == operator_id and one.instance == instance:
                return one.rows_in, one.blocked_ns
        return 0, 0

    def _elapsed_s(self, worker: int) -> float:
        return (self.now[worker].at_ns - self.before[worker].at_ns) / NS_PER_S

    def _load(self, worker: int) -> WorkerLoad:
        none = WorkerLoad(worker)
        return load_between(self.before[worker].load or none, self.now[worker].load or none)
