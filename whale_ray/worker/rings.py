"""The rings of one worker: those it writes and those it reads.

A ring that only its own worker reads lies in private memory; all others are shared with the workers
of the same host, and with its relay if other hosts read the stream. Where a user's transport
carries an edge, its senders and receivers (custom_transports.py) are made beside the rings.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..metrics.counters import RingLoad
from ..plan.assignment import Assignment, has_checkpoints
from ..plan.physical import Edge, PhysicalPlan
from ..plan.streams import RingSpec
from ..tasks.ring_queue import OutRing
from ..transport.channel import Channel
from ..transport.clock import Clock
from ..transport.closing import close_all
from ..transport.handles import BoardHandle, RingHandle
from ..transport.in_flight import InFlightLimit
from ..transport.inproc import create_inproc_ring
from ..transport.mirror import make_memory
from ..transport.ring import RingProducer
from ..transport.segment import Segment
from ..transport.shm import attach_ring, create_ring
from .boards import HostBoard
from .custom_transports import CustomTransports
from .offers import RingOffer


class RingSet:
    """Rings and board of worker `worker` for one attempt; `slots` sources show watermarks."""

    def __init__(
        self, assignment: Assignment, worker: int, attempt: int, slots: int, clock: Clock
    ) -> None:
        self._plan: PhysicalPlan = assignment.plan
        self._settings = assignment.settings.transport
        self._job = f"{assignment.job_id}-{attempt}"
        self._worker = worker
        self._host = self._plan.host_of(worker)
        self._host_board = HostBoard(self._plan, self._settings, worker, self._job, slots)
        self.transports = CustomTransports(assignment, worker, attempt, clock)
        self._own_ends: dict[int, Channel] = {}
        self._mirrors: list[Segment] = []
        in_flight_ms = assignment.settings.checkpoints.in_flight_ms
        self._in_flight_ns = in_flight_ms * 1_000_000 if has_checkpoints(assignment) else 0
        self._limited: list[tuple[RingProducer, InFlightLimit]] = []
        self._measured_at_ns = 0
        self.out_rings: dict[int, list[OutRing]] = {}
        self.in_channels: list[tuple[RingSpec, Channel]] = []

    @property
    def board(self) -> HostBoard:
        """The board of the worker's host."""
        return self._host_board

    def make_rings(self, boards: Sequence[BoardHandle | None]) -> RingOffer:
        """Attach the board and make the rings that this worker writes."""
        self._host_board.join(boards)
        offer = RingOffer({})
        for spec in self._plan.rings_of_producer(self._worker):
            readers = self._plan.members_reading(spec, self._host)
            if readers == (self._worker,):
                producer, (consumer,) = create_inproc_ring(
                    spec.capacity_bytes,
                    1,
                    f"ring-{spec.id}",
                    poison_released=self._settings.poison_released,
                    held_fraction=self._settings.held_fraction,
                )
                self._own_ends[spec.id] = consumer
            else:
                producer, offer.rings[spec.id] = create_ring(
                    spec.capacity_bytes,
                    len(readers),
                    self._job,
                    f"ring-{spec.id}",
                    [self._host_board.doorbell_of(reader) for reader in readers],
                    kind=self._settings.segment_kind,
                    poison_released=self._settings.poison_released,
                )
            if self._in_flight_ns and set(readers) <= set(spec.consumer_workers):
                limit = InFlightLimit(self._in_flight_ns, spec.capacity_bytes)
                self._limited.append((producer, limit))
            edge = self._plan.edges[spec.edge]
            instances = self._reading_instances(edge, spec.consumer_workers)
            ring = OutRing(
                spec.id, producer, instances, producer.max_frame_bytes, spec.per_instance
            )
            self.out_rings.setdefault(spec.edge, []).append(ring)
        for stream, sender in self.transports.make_senders(self._host_board):
            instances = self._reading_instances(
                self._plan.edges[stream.edge], (stream.consumer_worker,)
            )
            ring = OutRing(stream.id, sender, instances, sender.max_frame_bytes)
            self.out_rings.setdefault(stream.edge, []).append(ring)
        offer.receivers.update(self.transports.listen(self._host_board))
        for spec in self._plan.mirrors_on(self._host):
            if self._plan.owner_on(spec, self._host) == self._worker:
                offer.rings[spec.id] = self._make_mirror(spec)
        return offer

    def _make_mirror(self, spec: RingSpec) -> RingHandle:
        """Make the memory of a mirror; the host's relay fills it, or the one that replaces it."""
        memory, handle = make_memory(
            spec.capacity_bytes,
            len(self._plan.members_reading(spec, self._host)),
            self._job,
            f"mirror-{self._host}-{spec.id}",
            self._settings.segment_kind,
        )
        self._mirrors.append(memory)
        return handle

    def attach_rings(self, offers: Sequence[RingOffer]) -> None:
        """Attach the rings that this worker reads, and the mirrors of those of other hosts."""
        for spec in self._plan.rings_of_consumer(self._worker):
            channel = self._own_ends.get(spec.id)
            if channel is None:
                writer = self._plan.writer_on(spec, self._host)
                channel = attach_ring(
                    offers[self._plan.owner_on(spec, self._host)].rings[spec.id],
                    self._plan.members_reading(spec, self._host).index(self._worker),
                    self._host_board.doorbell_of(writer),
                    held_fraction=self._settings.held_fraction,
                )
            self.in_channels.append((spec, channel))
        self.transports.connect([offer.receivers for offer in offers])

    def loads(self) -> tuple[RingLoad, ...]:
        """Return the load of each ring that this worker writes; ValueError while they close."""
        found = []
        for rings in list(self.out_rings.values()):
            for ring in rings:
                counted = ring.channel.statistics()
                lag = max((lag for lag in counted.lag_bytes if lag is not None), default=0)
                fill = lag / counted.capacity_bytes if counted.capacity_bytes else 0.0
                found.append(RingLoad(ring.stream, fill, counted.frames, counted.payload_bytes))
        return tuple(found)

    def limit_in_flight(self, now_ns: int) -> None:
        """Limit what may wait in rings by how fast they are read; called at every turn.

        In a job without checkpoints there is no limit, and neither in rings that a relay forwards:
        those on the other hosts would fill all the same.
        """
        if not self._limited or now_ns < self._measured_at_ns + self._in_flight_ns:
            return
        self._measured_at_ns = now_ns
        for producer, limit in self._limited:
            producer.limit_in_flight(limit.observe(now_ns, producer.progress()))

    def close(self) -> None:
        """Close all channels and the board."""
        closings = [self.transports.close]
        closings += [channel.close for _, channel in self.in_channels]
        closings += [channel.close for channel in self._own_ends.values()]
        closings += [ring.channel.close for rings in self.out_rings.values() for ring in rings]
        closings += [memory.close for memory in self._mirrors]
        close_all([*closings, self._host_board.close])

    def _reading_instances(self, edge: Edge, workers: Sequence[int]) -> tuple[int, ...]:
        placed = self._plan.stages[edge.target_stage].instance_worker
        return tuple(i for i, worker in enumerate(placed) if worker in workers)
