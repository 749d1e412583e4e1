"""Builds what hands the rows of rings, and of users' transports, to the tasks of one worker."""

from __future__ import annotations

from collections.abc import Sequence

from ..plan.physical import Edge, PhysicalPlan
from ..plan.streams import CustomStream, RingSpec
from ..transport.channel import Channel
from .edge_reader import EdgeReader, StreamProgress, UnitedColumns
from .instance_oriented import InstanceOrientedReader, TwoRingProgress, TwoRingReader
from .stage_task import StageTask


class ReaderBuilder:
    """Builds the edge readers of one worker for one attempt; `tasks` are all that it runs."""

    def __init__(self, plan: PhysicalPlan, attempt: int, tasks: Sequence[StageTask]) -> None:
        self._plan = plan
        self._attempt = attempt
        self._tasks = tasks
        self._united: dict[tuple[int, int], UnitedColumns] = {}
        self._two_rings: dict[tuple[int, int], TwoRingProgress] = {}
        self._edges_of_two_rings = {ring.edge for ring in plan.rings if ring.per_instance}

    def of_ring(self, ring: RingSpec, channel: Channel) -> EdgeReader:
        """Return the reader of a ring, or of its mirror."""
        if ring.edge not in self._edges_of_two_rings:
            return self.of_stream(ring, channel)
        plan = self._plan
        edge = plan.edges[ring.edge]
        tasks = self._tasks_of(edge.target_stage)
        sources = plan.source_ids(edge.source_stage, ring.producer_worker)
        progress = self._two_rings.setdefault(
            (edge.id, ring.producer_worker), TwoRingProgress(sources, tasks)
        )
        kind = InstanceOrientedReader if ring.per_instance else TwoRingReader
        return kind(edge, ring.id, channel, self._attempt, tasks, progress, self._united_of(edge))

    def of_stream(self, stream: RingSpec | CustomStream, channel: Channel) -> EdgeReader:
        """Return the reader of a stream that alone brings the rows of an edge from a worker."""
        plan = self._plan
        edge = plan.edges[stream.edge]
        return EdgeReader(
            edge,
            stream.id,
            channel,
            self._attempt,
            self._tasks_of(edge.target_stage),
            StreamProgress(plan.source_ids(edge.source_stage, stream.producer_worker)),
            self._united_of(edge),
        )

    def _tasks_of(self, stage_id: int) -> dict[int, StageTask]:
        """Return a stage's local tasks by instance, ascending."""
        return {
            instance: task
            for task in self._tasks
            if task.stage.id == stage_id
            for instance in task.instances
        }

    def _united_of(self, edge: Edge) -> UnitedColumns | None:
        """Return what the streams of a union share; None for an edge that is none of them."""
        if not self._plan.is_united(edge):
            return None
        return self._united.setdefault((edge.target_stage, edge.port), UnitedColumns())
