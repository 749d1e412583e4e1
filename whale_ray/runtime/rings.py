"""The rings of one worker: those it writes, those it reads, and the board on which all sleep.

A ring that only its own worker reads lies in private memory; all others are shared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..plan.physical import Edge, RingSpec
from ..transport.channel import Channel
from ..transport.doorbell import BoardHandle, Doorbell, DoorbellBoard
from ..transport.inproc import create_inproc_ring
from ..transport.segment import sweep_stale
from ..transport.shm import RingHandle, attach_ring, create_ring
from .edge_writer import OutRing
from .fleet import Assignment

RingOffer = dict[int, RingHandle]
"""The rings that a worker made for others, by ring id."""

BOARD_WORKER = 0
"""The worker that makes the board."""


class RingSet:
    """Rings and board of worker `worker` for one attempt; `slots` sources show watermarks."""

    def __init__(self, assignment: Assignment, worker: int, attempt: int, slots: int) -> None:
        self._plan = assignment.plan
        self._settings = assignment.settings.transport
        self._job = f"{assignment.job_id}-{attempt}"
        self._worker = worker
        self._slots = slots
        self._board: DoorbellBoard | None = None
        self._doorbell: Doorbell | None = None
        self._own_ends: dict[int, Channel] = {}
        self.out_rings: dict[int, list[OutRing]] = {}
        self.in_channels: list[tuple[Edge, int, Channel]] = []

    def make_board(self) -> BoardHandle | None:
        """Make the board if that is this worker's part; return what the others attach with."""
        if self._worker != BOARD_WORKER:
            return None
        if self._settings.segment_kind == "named":
            sweep_stale()
        kind = "private" if self._plan.workers == 1 else self._settings.segment_kind
        self._board = DoorbellBoard.create(self._plan.workers, self._slots, self._job, kind=kind)
        return self._board.handle

    def make_rings(self, boards: Sequence[BoardHandle | None]) -> RingOffer:
        """Attach the board and make the rings that this worker writes."""
        if self._board is None:
            handle = boards[BOARD_WORKER]
            assert handle is not None
            self._board = DoorbellBoard.attach(handle)
        self._doorbell = self._ring_of(self._worker)
        offer: RingOffer = {}
        for spec in self._plan.rings_of_producer(self._worker):
            edge = self._plan.edges[spec.edge]
            if spec.consumer_workers == (self._worker,):
                producer, (consumer,) = create_inproc_ring(
                    spec.capacity_bytes,
                    1,
                    f"ring-{spec.id}",
                    poison_released=self._settings.poison_released,
                    held_fraction=self._settings.held_fraction,
                )
                self._own_ends[spec.id] = consumer
            else:
                producer, offer[spec.id] = create_ring(
                    spec.capacity_bytes,
                    len(spec.consumer_workers),
                    self._job,
                    f"ring-{spec.id}",
                    [self._ring_of(consumer) for consumer in spec.consumer_workers],
                    kind=self._settings.segment_kind,
                    poison_released=self._settings.poison_released,
                )
            ring = OutRing(producer, self._instances_behind(edge, spec), producer.max_frame_bytes)
            self.out_rings.setdefault(spec.edge, []).append(ring)
        return offer

    def attach_rings(self, offers: Sequence[RingOffer]) -> None:
        """Attach the rings that this worker reads."""
        handles = {ring: handle for offer in offers for ring, handle in offer.items()}
        for spec in self._plan.rings_of_consumer(self._worker):
            channel = self._own_ends.get(spec.id)
            if channel is None:
                channel = attach_ring(
                    handles[spec.id],
                    spec.consumer_workers.index(self._worker),
                    self._ring_of(spec.producer_worker),
                    held_fraction=self._settings.held_fraction,
                )
            self.in_channels.append((self._plan.edges[spec.edge], spec.producer_worker, channel))

    @property
    def board(self) -> DoorbellBoard:
        """The board of the attempt."""
        assert self._board is not None, "make_rings() comes first"
        return self._board

    def sleep(self, timeout_ns: int, ready: Callable[[], bool]) -> None:
        """Sleep on the worker's doorbell."""
        if self._doorbell is not None:
            self._doorbell.wait(timeout_ns, ready)

    def wake(self) -> None:
        """Ring the worker's own doorbell; callable from any thread."""
        doorbell = self._doorbell
        if doorbell is not None:
            doorbell.ring()

    def close(self) -> None:
        """Close all channels and the board."""
        for _, _, channel in self.in_channels:
            channel.close()
        for channel in self._own_ends.values():
            channel.close()
        for rings in self.out_rings.values():
            for ring in rings:
                ring.channel.close()
        self._doorbell = None
        if self._board is not None:
            self._board.close()

    def _ring_of(self, worker: int) -> Doorbell:
        spins = self._settings.spin_pauses if self._spare_cores() else 0
        return self.board.doorbell(worker, spins)

    def _spare_cores(self) -> bool:
        """Whether a worker may spin: not where workers outnumber cores."""
        import os

        return self._plan.workers <= len(os.sched_getaffinity(0))

    def _instances_behind(self, edge: Edge, spec: RingSpec) -> tuple[int, ...]:
        placed = self._plan.stages[edge.target_stage].instance_worker
        return tuple(i for i, worker in enumerate(placed) if worker in spec.consumer_workers)
