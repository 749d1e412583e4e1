"""Makes the writers of a worker's edges: how rows are addressed, and into which rings they go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..configs.settings import Settings
from ..operators.groupings import All, Key
from ..plan.physical import Edge, PhysicalPlan
from ..transport.slicing import StreamSlicer
from .addressing import AddressingStrategy, KeyedAddressing, OneWorker, WorkerOriented
from .edge_writer import EdgeWriter, Stamp
from .instance_oriented import InstanceOriented
from .partitioner import make_partitioner
from .ring_queue import OutRing

if TYPE_CHECKING:
    pass


class WriterBuilder:
    """Makes the edge writers of one worker for one attempt.

    Args:
        plan: of the job.
        settings: of the job.
        worker: its number.
        attempt: the attempt's number.
        out_rings: the worker's own rings of each edge that it sends on.
    """

    def __init__(
        self,
        plan: PhysicalPlan,
        settings: Settings,
        worker: int,
        attempt: int,
        out_rings: Mapping[int, Sequence[OutRing]],
    ) -> None:
        self._plan = plan
        self._settings = settings
        self._worker = worker
        self._attempt = attempt
        self._out_rings = out_rings

    def writer(self, edge: Edge, source: int) -> EdgeWriter:
        """Return the writer of one producer on one edge."""
        transport = self._settings.transport
        wtl_ns = int(transport.wtl_ms * 1e6)
        return EdgeWriter(
            edge,
            Stamp(source, self._attempt, edge.carries_time, transport.checksum),
            self._addressings(edge, source),
            StreamSlicer(transport.mms_bytes, wtl_ns, edge.batch_rows),
        )

    def _addressings(self, edge: Edge, source: int) -> dict[str, AddressingStrategy]:
        """Return the ways to address an edge, by name: one, or two where the plan has the rings."""
        rings, with_times = self._out_rings[edge.id], edge.carries_time
        if not isinstance(edge.grouping, All):
            return {"keyed": self._keyed(edge, rings, source)}
        shared = [ring for ring in rings if not ring.per_instance]
        single = [ring for ring in rings if ring.per_instance]
        found: dict[str, AddressingStrategy] = {
            "worker-oriented": WorkerOriented(edge, shared, with_times=with_times)
        }
        if single:
            found["instance-oriented"] = InstanceOriented(edge, single, with_times=with_times)
        return found

    def _keyed(self, edge: Edge, rings: Sequence[OutRing], source: int) -> AddressingStrategy:
        """Return the addressing of rows that go to one instance each."""
        target, with_times = self._plan.stages[edge.target_stage], edge.carries_time
        together = target.per_worker or all(len(ring.instances) == 1 for ring in rings)
        if together and len(rings) == 1 and isinstance(edge.grouping, Key):
            return OneWorker(edge, rings, edge.grouping.columns, with_times=with_times)
        parallelism = target.parallelism
        local = self._plan.instances_on(edge.target_stage, self._worker)
        partitioner = make_partitioner(edge, parallelism, target.owners, local, source)
        return KeyedAddressing(
            edge, rings, partitioner, parallelism, together=together, with_times=with_times
        )
