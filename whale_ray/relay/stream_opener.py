"""Opens the streams that a relay moves: fills mirrors, taps rings, and joins them to its links.

The memory of a mirror belongs to the first worker of its host, so it outlives the relay. With
`resume`, a new relay takes over mirrors and taps as its predecessor left them.
"""

from __future__ import annotations

from ..multicast.switch_vertex import SwitchVertex
from ..multicast.tree_state import TreeState
from ..plan.assignment import RelayAssignment
from ..plan.hosts import host_name
from ..plan.streams import RingSpec
from ..transport.links.attached import Incoming
from ..transport.mirror import MirrorRing, RingTap
from ..transport.retention import Retention
from ..transport.tcp.endpoint import TcpEndpoint
from ..worker.boards import HostBoard
from ..worker.offers import RingOffer
from .multicast_stream import MulticastStream


class StreamOpener:
    """Opens streams at the host of relay `member`."""

    def __init__(
        self,
        assignment: RelayAssignment,
        member: int,
        board: HostBoard,
        endpoint: TcpEndpoint,
        offers: tuple[RingOffer, ...],
        resume: bool,
    ) -> None:
        self._plan = assignment.streams
        self._settings = assignment.settings
        self._member = member
        self._host = assignment.streams.host_of(member)
        self._board = board
        self._endpoint = endpoint
        self._offers = offers
        self._resume = resume
        self.mirrors: dict[int, MirrorRing] = {}
        self.taps: list[RingTap] = []
        self.retentions: list[Retention] = []

    def open_static(self, spec: RingSpec) -> None:
        """Open a stream from its host to a single other one."""
        origin = self._plan.origin_of(spec)
        if origin == self._host:
            children = [host_name(child) for child in self._plan.children_of(spec, self._host)]
            self._endpoint.offer(spec.id, self._tap(spec), children)
        else:
            self._endpoint.subscribe(spec.id, self._mirror(spec), host_name(origin))

    def open_multicast(self, spec: RingSpec, state: TreeState | None) -> MulticastStream:
        """Open a multicast stream; `state` has its present tree if this relay replaces another."""
        origin = self._plan.origin_of(spec)
        if origin == self._host:
            return self._open_root(spec, state)
        mirror = self._mirror(spec)
        incoming = self._endpoint.subscribe(spec.id, mirror, None)
        offer = self._endpoint.offer(spec.id, self._tap(spec), (), dynamic=True)
        return MulticastStream(
            spec.id, self._vertex(spec, state, incoming), offer, incoming, self._endpoint
        )

    def _open_root(self, spec: RingSpec, state: TreeState | None) -> MulticastStream:
        multicast = self._settings.multicast
        retention = Retention(
            multicast.retention_bytes,
            multicast.retention_spill_bytes_max,
            spec.capacity_bytes,
            self._settings.runtime.spill_directory,
            f"stream {spec.id} of {host_name(self._host)}",
        )
        self.retentions.append(retention)
        tap = self._tap(spec)
        offer = self._endpoint.offer(spec.id, tap, (), dynamic=True, retention=retention)
        if state is None:
            vertex = SwitchVertex.of(self._host, self._plan.tree_of(spec))
        else:
            held_from, head = offer.held_from, offer.head
            vertex = SwitchVertex.root_from(state.record, 0, held_from, head)
        return MulticastStream(spec.id, vertex, offer, None, self._endpoint)

    def _vertex(self, spec: RingSpec, state: TreeState | None, incoming: Incoming) -> SwitchVertex:
        if state is None:
            return SwitchVertex.of(self._host, self._plan.tree_of(spec))
        # This host is no longer in the tree; the controller lets it join again.
        root, epoch = self._plan.origin_of(spec), state.record.last_epoch
        return SwitchVertex(self._host, root, None, epoch=epoch, received=incoming.mirror.published)

    def _mirror(self, spec: RingSpec) -> MirrorRing:
        readers = self._plan.members_reading(spec, self._host)
        handle = self._offers[self._plan.owner_on(spec, self._host)].rings[spec.id]
        self.mirrors[spec.id] = mirror = MirrorRing.attach(
            handle,
            [self._board.doorbell_of(reader) for reader in readers if reader != self._member],
            poison_released=self._settings.transport.poison_released,
        )
        return mirror

    def _tap(self, spec: RingSpec) -> RingTap:
        place = self._plan.members_reading(spec, self._host).index(self._member)
        mirror = self.mirrors.get(spec.id)
        if mirror is not None:
            tap = RingTap.of(mirror, place, resume=self._resume)
        else:
            handle = self._offers[spec.producer_worker].rings[spec.id]
            doorbell = self._board.doorbell_of(spec.producer_worker)
            tap = RingTap.attach(handle, place, doorbell, resume=self._resume)
        self.taps.append(tap)
        return tap
