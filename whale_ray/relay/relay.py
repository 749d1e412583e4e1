"""A relay: fetches other hosts' streams for the workers of its host, and forwards streams.

It runs in a process of its own, without user code: a function that holds the GIL of its worker
delays no other rows, heartbeats or acknowledgements. It takes these steps::

    open()            make the doorbell board
    link(boards)      join the host's board; listen
    connect(offers)   take over the mirrors; tap the rings that other hosts read
    run()             move bytes until all workers have ended
    close()           release everything

    rejoin(…)         instead of open, link and connect: replace a relay that has failed

`RelayLoop` takes turns: `TcpEndpoint` moves the bytes, `MulticastStreams` decides where they go.
A relay owns no memory that others read, so its successor finds rings and mirrors as it left them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from ..configs.errors import AttemptLostError
from ..metrics.counters import MemberCounters, cpu_time_ns
from ..multicast.tree_messages import Relocated, TreeOrders
from ..multicast.tree_state import TreeState
from ..plan.assignment import RelayAssignment
from ..plan.hosts import host_name
from ..transport.clock import Clock
from ..transport.closing import close_all
from ..transport.handles import BoardHandle
from ..transport.links.handshake import Identity
from ..transport.mirror import MirrorRing, RingTap
from ..transport.retention import Retention
from ..transport.tcp.endpoint import TcpEndpoint
from ..worker.boards import HostBoard
from ..worker.offers import RingOffer
from .multicast_streams import MulticastStreams
from .relay_loop import RelayLoop
from .stream_opener import StreamOpener
from .watermark_exchange import WatermarkExchange

Tell = Callable[[int, object], None]
"""Sends content to the controller, in an attempt: called with the attempt and the content."""


class Relay:
    """Member `member` of a job, for one attempt after another; listens at `address`.

    The steps and `close` are called from one thread; `abort`, `finish` and `counters` from any.
    """

    def __init__(
        self,
        member: int,
        assignment: RelayAssignment,
        clock: Clock,
        address: str,
        tell: Tell | None = None,
    ) -> None:
        self._tell: Tell = tell or _discard
        self._member = member
        self._assignment = assignment
        self._plan = assignment.streams
        self._host = self._plan.host_of(member)
        self._clock = clock
        self._address = address
        self._attempt = -1
        self._aborted = -1
        self._finished = -1
        self._board: HostBoard | None = None
        self._endpoint: TcpEndpoint | None = None
        self._mirrors: dict[int, MirrorRing] = {}
        self._taps: list[RingTap] = []
        self._retentions: list[Retention] = []
        self._loop: RelayLoop | None = None

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"relay of {host_name(self._host)}"

    @property
    def attempt(self) -> int:
        """The attempt that it is in; −1 before the first."""
        return self._attempt

    def open(self, attempt: int) -> BoardHandle | None:
        """Begin an attempt, after closing what an earlier one left."""
        self.close()
        self._attempt = attempt
        slots = len(self._assignment.slot_hosts)
        transport = self._assignment.settings.transport
        self._board = HostBoard(self._plan, transport, self._member, self._job, slots)
        return self._board.make()

    def link(self, attempt: int, boards: tuple[BoardHandle | None, ...]) -> RingOffer:
        """Join the host's board, and listen for other hosts."""
        assert self._board is not None, "open() comes first"
        self._board.join(boards)
        assignment = self._assignment
        # No term: links belong to an attempt, whichever controller leads it.
        identity = Identity(assignment.job_id, attempt, 0, host_name(self._host))
        self._endpoint = TcpEndpoint(
            identity,
            assignment.secret,
            assignment.settings.transport,
            self._clock.monotonic_ns,
            random.SystemRandom(),
            self._board.doorbell_of(self._member),
            hosts=self._plan.hosts.names,
        )
        return RingOffer({}, self._endpoint.listen(self._address))

    def connect(self, attempt: int, offers: tuple[RingOffer, ...]) -> None:
        """Take over the mirrors, tap the rings that other hosts read, and find the parents."""
        self._connect(attempt, offers, {}, resume=False)

    def rejoin(
        self,
        attempt: int,
        boards: tuple[BoardHandle | None, ...],
        offers: tuple[RingOffer, ...],
        trees: Mapping[int, TreeState],
    ) -> RingOffer:
        """Replace a relay that has failed: continue from its positions, with the same memory.

        `trees` has the present trees, by stream.
        """
        self.open(attempt)
        offer = self.link(attempt, boards)
        self._connect(attempt, offers, trees, resume=True)
        return offer

    def _connect(
        self,
        attempt: int,
        offers: tuple[RingOffer, ...],
        trees: Mapping[int, TreeState],
        *,
        resume: bool,
    ) -> None:
        board, endpoint, plan = self._board, self._opened, self._plan
        assert board is not None
        slots, settings = self._assignment.slot_hosts, self._assignment.settings
        watermarks = WatermarkExchange(board.board, endpoint, slots, self._host)
        streams = MulticastStreams(
            self._host,
            endpoint,
            settings.multicast,
            self._addresses(offers),
            self._origins() | watermarks.parents,
            lambda news: self._tell(attempt, news),
        )
        self._loop = RelayLoop(
            self._host,
            plan.hosts.names,
            endpoint,
            streams,
            watermarks,
            sleep_max_ns=settings.transport.doorbell_timeout_ms * 1_000_000,
            unreachable_after_ns=settings.runtime.unreachable_after_ms * 1_000_000,
            tell=lambda news: self._tell(attempt, news),
        )
        opener = StreamOpener(self._assignment, self._member, board, endpoint, offers, resume)
        for spec in plan.rings:
            if self._host not in plan.tree_of(spec).vertices or not plan.mirrors_of(spec):
                continue
            if not plan.is_multicast(spec):
                opener.open_static(spec)
                continue
            stream = opener.open_multicast(spec, trees.get(spec.id))
            is_root = plan.origin_of(spec) == self._host
            streams.add(stream, self._clock.monotonic_ns(), is_root=is_root)
        self._taps, self._mirrors = opener.taps, opener.mirrors
        self._retentions = opener.retentions

    def _addresses(self, offers: tuple[RingOffer, ...]) -> dict[int, tuple[str, int]]:
        """Return the address of each host's relay."""
        found = {}
        for host in range(self._plan.hosts.count):
            address = offers[self._plan.relay_of(host)].address
            assert address is not None, "every relay listens"
            found[host] = address
        return found

    def run(self, attempt: int, _connected: tuple[object, ...] = ()) -> MemberCounters:
        """Move bytes until `finish`; return the final counters."""
        board = self._board
        assert board is not None
        self._opened.watch()
        while self._finished < attempt:
            if self._aborted >= attempt:
                msg = "the attempt was aborted"
                raise AttemptLostError(msg)
            board.rest(self._turn)
        return self.counters()

    def drain(self, attempt: int) -> None:
        """Do nothing: a relay runs until all workers have ended."""

    def finish(self, attempt: int) -> None:
        """End the run: every worker has received everything."""
        self._finished = attempt
        self._wake()

    def tell(self, attempt: int, content: object) -> None:
        """Take an order of the controller about trees."""
        loop = self._loop  # `close` may run at the same time
        if attempt == self._attempt and loop is not None:
            assert isinstance(content, TreeOrders | Relocated)
            loop.streams.order(content)
            self._wake()

    def abort(self, attempt: int) -> None:
        """End the attempt with the next turn of the loop."""
        self._aborted = attempt
        self._wake()

    def counters(self) -> MemberCounters:
        """Return the counters of its links."""
        endpoint = self._endpoint
        return MemberCounters(
            self._member,
            self._clock.monotonic_ns(),
            cpu_time_ns(),
            links=() if endpoint is None else endpoint.statistics(),
            refused={} if endpoint is None else dict(endpoint.refused),
            host=host_name(self._host),
            attempt=self._attempt,
        )

    def close(self) -> None:
        """Release sockets, rings and the board.

        The reader places in rings stay taken, since another relay may take them over.
        """
        closings = [] if self._endpoint is None else [self._endpoint.close]
        closings += [tap.detach for tap in self._taps]
        closings += [retention.close for retention in self._retentions]
        closings += [mirror.close for mirror in self._mirrors.values()]
        closings += [] if self._board is None else [self._board.close]
        self._endpoint, self._board = None, None
        self._taps, self._retentions, self._mirrors = [], [], {}
        self._loop = None
        close_all(closings)

    @property
    def _job(self) -> str:
        return f"{self._assignment.job_id}-{self._attempt}"

    @property
    def _opened(self) -> TcpEndpoint:
        assert self._endpoint is not None, "link() comes first"
        return self._endpoint

    def _origins(self) -> set[int]:
        """Return the hosts that streams for this host alone come from."""
        plan = self._plan
        return {plan.origin_of(s) for s in plan.mirrors_on(self._host) if not plan.is_multicast(s)}

    def _turn(self) -> int:
        """Do what is due; return how many ns the relay may sleep, 0 if there is more to do."""
        assert self._loop is not None, "connect() comes first"
        timeout_ns = self._loop.turn(self._clock.monotonic_ns())
        return 0 if max(self._aborted, self._finished) >= self._attempt else timeout_ns

    def _wake(self) -> None:
        board = self._board
        if board is not None:
            board.wake()


def _discard(_attempt: int, _content: object) -> None:
    """Do nothing: no controller takes messages."""
