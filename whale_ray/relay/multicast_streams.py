"""All multicast streams at one host: their branches, the links they need, news of them.

The relay calls `turn` in its loop. Orders come from the controller at any moment, in another
thread; everything else happens in the relay's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from ..configs.errors import ProtocolError
from ..configs.settings import MulticastSettings
from ..metrics.job_metrics import cpu_time_ns
from ..multicast import vertex_wire
from ..multicast.floors import Acknowledgement
from ..multicast.monitor import asks_for_scale_down, period_ns
from ..multicast.switch_messages import Message
from ..multicast.tree_messages import Relocated, StreamLoad, TreeNews, TreeOrders
from ..multicast.trees import Vertex
from ..plan.hosts import host_name
from ..transport.tcp.endpoint import TcpEndpoint
from .multicast_stream import MulticastStream
from .stream_load import LINK_MEMORY_NS, LoadMeter

TURN_NS: Final = 1_000_000
"""The time between two looks at a stream at which nothing is being switched."""

TICK_NS: Final = 50_000_000
"""How often what was not answered is said again, while a stream is being switched."""

QUIET_TICK_NS: Final = 4 * TICK_NS
"""How often a host says again how far it is, while none is: its parent may have been replaced."""

HURRIES_PER_INTERVAL: Final = 5
"""A queue that stays full asks all the time: so often it is told beside the usual reports."""

_NEVER_NS = 1 << 62
_ORDERS_MAX = 4096
_SLICES_MEASURED = 8

Order = TreeOrders | Relocated


class MulticastStreams:
    """The multicast streams of host `host`."""

    def __init__(
        self,
        host: int,
        endpoint: TcpEndpoint,
        settings: MulticastSettings,
        addresses: dict[int, tuple[str, int]],
        always: Iterable[int],
        tell: Callable[[TreeNews], None],
        cpu_ns: Callable[[], int] = cpu_time_ns,
    ) -> None:
        """Have no stream yet.

        `addresses` has where relays listen; hosts in `always` are dialled whatever the trees are.
        """
        self._host = host
        self._endpoint = endpoint
        self._settings = settings
        self._addresses = addresses
        self._always = frozenset(always)
        self._tell = tell
        self._cpu_ns = cpu_ns
        self._branches: dict[int, MulticastStream] = {}
        self._watches: dict[int, _SenderWatch] = {}
        self._orders: deque[Order] = deque(maxlen=_ORDERS_MAX)
        self._dialled: set[int] = set()
        self._turn_ns = self._tick_ns = 0
        self._heard = False
        self.stirred = False
        """Whether the last turn may have changed who is sent what, or was asked to."""
        self._answers: list[tuple[int, Message]] = []
        self._reach()

    def add(self, branch: MulticastStream, now_ns: int, *, is_root: bool) -> None:
        """Serve one more stream."""
        self._branches[branch.stream] = branch
        congested = self._endpoint.congested
        watch = _SenderWatch(
            branch, self._host, self._settings, now_ns, congested, self._cpu_ns, is_root
        )
        self._watches[branch.stream] = watch
        self._reach()

    def order(self, order: Order) -> None:
        """Take an order of the controller, in any thread; the relay must be woken then."""
        self._orders.append(order)

    @property
    def has_orders(self) -> bool:
        """Whether an order waits."""
        return bool(self._orders)

    def hear(self, host: int, packed: bytes) -> bool:
        """Take what the relay of `host` says (behind the tag); False if it makes no sense."""
        try:
            stream, message = vertex_wire.unpack(packed)
        except ProtocolError:
            return False
        branch = self._branches.get(stream)
        if branch is None:
            return False
        self._note(branch, branch.heard(host, message))
        self._heard |= not isinstance(message, Acknowledgement)
        self._turn_ns = 0  # the acknowledgement goes on upward at once
        return True

    def turn(self, now_ns: int) -> set[int]:
        """Do what is due; return the hosts whose relays have died, or were replaced."""
        is_ticking = now_ns >= self._tick_ns
        is_due = is_ticking or now_ns >= self._turn_ns or self.has_orders
        self.stirred = self.has_orders or self._heard
        self._heard = False
        lost = self._obey()
        for watch in self._watches.values():
            watch.look(now_ns)
        if is_ticking:
            self._tick_ns = now_ns + QUIET_TICK_NS
            for branch in self._branches.values():
                self._note(branch, branch.tick())
        has_turned = is_due
        for branch in self._branches.values():
            if branch.urgent:
                self._tick_ns = min(self._tick_ns, now_ns + TICK_NS)
                self.stirred = True
            elif not is_due:
                continue
            has_turned = True
            self._note(branch, branch.turn())
            self.stirred |= branch.urgent
        if is_due:
            self._turn_ns = now_ns + TURN_NS
        if has_turned:  # else nobody can have got another parent
            self._reach()
        self._report(now_ns)
        return lost

    @property
    def next_due_ns(self) -> int:
        """When `turn` has something to do at the latest."""
        if any(branch.urgent or branch.has_news for branch in self._branches.values()):
            return self._turn_ns
        due_ns = self._tick_ns
        for watch in self._watches.values():
            due_ns = min(due_ns, watch.due_ns)
        return due_ns

    def _note(self, branch: MulticastStream, answers: list[Message]) -> None:
        self._answers += [(branch.stream, answer) for answer in answers]

    def _obey(self) -> set[int]:
        lost: set[int] = set()
        while self._orders:
            order = self._orders.popleft()
            if isinstance(order, Relocated):
                lost.add(order.host)
                self._addresses[order.host] = order.address
                if order.host in self._dialled:
                    self._endpoint.dial(host_name(order.host), order.address)
                continue
            for stream, message in order.messages:
                branch = self._branches.get(stream)
                if branch is not None:
                    self._note(branch, branch.take(message))
            lost |= self._forget_the_dead()
        return lost

    def _forget_the_dead(self) -> set[int]:
        """Drop the links to processes that have died, though the network has not noticed yet.

        What one of them had subscribed must not be taken for a wish of its successor.
        """
        dead: set[Vertex] = set()
        for branch in self._branches.values():
            dead |= branch.take_deaths()
        hosts = {int(one) for one in dead} - {self._host}
        for host in sorted(hosts):
            self._endpoint.forget(host_name(host))
            if host in self._dialled:
                self._endpoint.dial(host_name(host), self._addresses[host])
        return hosts

    def _reach(self) -> None:
        """Keep up the links that are needed, and no others."""
        needed = set(self._always)
        for branch in self._branches.values():
            needed.update(map(int, branch.upward))
        needed.discard(self._host)
        if needed == self._dialled:
            return
        for host in sorted(needed - self._dialled):
            self._endpoint.dial(host_name(host), self._addresses[host])
        for host in sorted(self._dialled - needed):
            self._endpoint.undial(host_name(host))
        self._dialled = needed

    def _report(self, now_ns: int) -> None:
        loads = [load for watch in self._watches.values() if (load := watch.report(now_ns))]
        if self._answers or loads:
            self._tell(TreeNews(tuple(self._answers), tuple(loads)))
            self._answers = []


class _SenderWatch:
    """Watches the load of a stream that this host sends on.

    The source's host tells it regularly. Others do while their way out is full, and a while after:
    each is capped by a degree of its own (DESIGN 6).
    """

    def __init__(
        self,
        branch: MulticastStream,
        host: int,
        settings: MulticastSettings,
        now_ns: int,
        congested: Callable[[str], bool],
        cpu_ns: Callable[[], int],
        is_root: bool,
    ) -> None:
        self._is_root = is_root
        self._told_until_ns = now_ns
        self._congested = congested
        self._cpu_ns = cpu_ns
        self._offer = branch.offer
        self._settings = settings
        self._meter = LoadMeter(
            branch.stream, host, self._offer.tap.capacity, now_ns, self._offer.head
        )
        self._interval_ns = settings.report_interval_ms * 1_000_000
        self.report_ns = now_ns + self._interval_ns
        self._ruled_ns = self._rule_ns = now_ns
        self._hurried_ns = now_ns
        self._slice_bytes = 0.0
        self._queue_slices = 0.0
        self._got: dict[str, int] = {}
        self._head = self._offer.head
        self._rule_head = self._reported_head = self._head

    def look(self, now_ns: int) -> None:
        """Take note of what there is to send, and was sent."""
        self._head = head = self._offer.head
        all_got, is_full = 0, False
        for child, outgoing in self._offer.outgoing.items():
            # What has arrived: what was only handed to a socket has not passed the link yet.
            got = outgoing.sender.acknowledged
            all_got += max(0, got - self._got.get(child, got))
            self._got[child] = got
            is_full = is_full or (outgoing.sender.sent < head and self._congested(child))
        self._meter.look(now_ns, all_got, is_full)

    def report(self, now_ns: int) -> StreamLoad | None:
        """Return the load if it is to be told now: at the interval, or when a rule hurries."""
        tail = self._tail
        if now_ns < self.report_ns and not self._hurries(now_ns, tail):
            return None
        self.report_ns = now_ns + self._interval_ns
        self._measure_slices()
        load = self._meter.take(now_ns, self._head, tail, self._slice_bytes, self._cpu_ns())
        if load.link_was_full:
            self._told_until_ns = now_ns + LINK_MEMORY_NS
        idle, self._reported_head = self._idle, self._head
        return load if self._is_root or (now_ns < self._told_until_ns and not idle) else None

    @property
    def due_ns(self) -> int:
        """When `report` is to be asked at the latest; far away while nothing is sent on."""
        return self.report_ns if self._is_root or not self._idle else _NEVER_NS

    @property
    def _idle(self) -> bool:
        """Whether there was nothing to send on since the last report."""
        return self._head == self._reported_head or not self._offer.outgoing

    @property
    def _tail(self) -> int:
        """Where the slowest child is."""
        offer, head = self._offer, self._head  # a child to be may begin beyond the head
        return min([head, *(offer.position_of(child) for child in offer.children)])

    def _hurries(self, now_ns: int, tail: int) -> bool:
        """Whether the queue grows so that the degree may have to shrink (Whale 3.3)."""
        if now_ns < self._rule_ns or self._slice_bytes <= 0:
            return False
        capacity = self._offer.tap.capacity / self._slice_bytes
        arrived = (self._head - self._rule_head) / self._slice_bytes
        elapsed_s = max(1, now_ns - self._ruled_ns) / 1e9
        self._ruled_ns = now_ns
        self._rule_ns = now_ns + period_ns(capacity, arrived / elapsed_s)
        self._rule_head = self._head
        before, self._queue_slices = self._queue_slices, (self._head - tail) / self._slice_bytes
        waterline = self._settings.waterline_fraction * capacity
        threshold = self._settings.threshold_down
        asks = asks_for_scale_down(before, self._queue_slices, waterline, threshold)
        if not asks or now_ns < self._hurried_ns:
            return False
        self._hurried_ns = now_ns + self._interval_ns // HURRIES_PER_INTERVAL
        return True

    def _measure_slices(self) -> None:
        """Look at some of the frames in the ring for the size of a slice."""
        tap = self._offer.tap
        start = stop = tap.released
        count = 0
        while count < _SLICES_MEASURED:
            after = tap.whole_frames(stop, self._head, 64)
            if after == stop:
                break
            stop, count = after, count + 1
        if count:
            self._slice_bytes = (stop - start) / count
