"""Builds what hands the rows of rings, and of users' transports, to the tasks of one worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..plan.physical import Edge, PhysicalPlan
from ..plan.streams import CustomStream, RingSpec
from ..transport.channel import Channel
from .edge_reader import EdgeReader, StreamProgress, UnitedColumns
from .flow import RowTaker
from .instance_oriented import InstanceOrientedReader, TwoRingProgress, TwoRingReader
from .stage_epochs import EpochInlet, StageEpochs, aligns
from .stage_task import StageTask


class ReaderBuilder:
    """Builds the edge readers of one worker for one attempt; `tasks` are all that it runs.

    `epochs` are those of its stages, by stage; none in a job without checkpoints.
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        attempt: int,
        tasks: Sequence[StageTask],
        epochs: Mapping[int, StageEpochs],
    ) -> None:
        self._plan = plan
        self._attempt = attempt
        self._tasks = tasks
        self._epochs = epochs
        self._united: dict[tuple[str, int], UnitedColumns] = {}
        self._two_rings: dict[tuple[int, int], TwoRingProgress] = {}
        self._edges_of_two_rings = {ring.edge for ring in plan.rings if ring.per_instance}

    def of_ring(self, ring: RingSpec, channel: Channel) -> EdgeReader:
        """Return the reader of a ring, or of its mirror."""
        if ring.edge not in self._edges_of_two_rings:
            return self.of_stream(ring, channel)
        plan = self._plan
        edge = plan.edges[ring.edge]
        tasks = self._targets_of(edge)
        sources = plan.source_ids(edge.source_stage, ring.producer_worker)
        progress = self._two_rings.setdefault(
            (edge.id, ring.producer_worker), TwoRingProgress(sources, tasks)
        )
        kind = InstanceOrientedReader if ring.per_instance else TwoRingReader
        beside = [
            other.id
            for other in plan.rings_of_edge(edge.id)
            if other.producer_worker == ring.producer_worker
            and other.per_instance != ring.per_instance
        ]
        return kind(
            edge,
            ring.id,
            channel,
            self._attempt,
            tasks,
            progress,
            self._united_of(edge),
            self._inlet_of(edge, ring.id, beside),
        )

    def of_stream(self, stream: RingSpec | CustomStream, channel: Channel) -> EdgeReader:
        """Return the reader of a stream that alone brings the rows of an edge from a worker."""
        plan = self._plan
        edge = plan.edges[stream.edge]
        return EdgeReader(
            edge,
            stream.id,
            channel,
            self._attempt,
            self._targets_of(edge),
            StreamProgress(plan.source_ids(edge.source_stage, stream.producer_worker)),
            self._united_of(edge),
            self._inlet_of(edge, stream.id),
        )

    def _inlet_of(self, edge: Edge, stream: int, beside: Sequence[int] = ()) -> EpochInlet | None:
        """Return a stream's place in the alignment of its stage, if it takes part."""
        epochs = self._epochs.get(edge.target_stage)
        if epochs is None or not aligns(edge):
            return None
        return epochs.inlet(stream, beside)

    def _targets_of(self, edge: Edge) -> dict[int, RowTaker]:
        """Return what takes an edge's rows here, by instance, ascending: tasks or side inputs."""
        return {
            instance: task.side_inputs[edge.target] if edge.is_side_input else task
            for task in self._tasks
            if task.stage.id == edge.target_stage
            for instance in task.instances
        }

    def _united_of(self, edge: Edge) -> UnitedColumns | None:
        """Return what the streams of a union share; None for an edge that is none of them."""
        if not self._plan.is_united(edge):
            return None
        return self._united.setdefault(edge.target, UnitedColumns())
