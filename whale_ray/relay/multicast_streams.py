"""All multicast streams at one host, the links that they need, and reports to the controller.

The relay calls `turn` in its loop. `order` may be called from any thread, at any time; everything
else runs in the relay's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from ..configs.errors import ProtocolError
from ..configs.settings import MulticastSettings
from ..metrics.counters import cpu_time_ns
from ..multicast import vertex_wire
from ..multicast.floors import Acknowledgement
from ..multicast.switch_messages import Message
from ..multicast.tree_messages import Relocated, TreeOrders, TreeReport
from ..multicast.trees import Vertex
from ..plan.hosts import host_name
from ..transport.tcp.endpoint import TcpEndpoint
from .load_reporter import LoadReporter
from .multicast_stream import MulticastStream

TURN_NS: Final = 1_000_000
"""The time between two turns of a stream whose tree does not change."""

TICK_NS: Final = 50_000_000
"""How often unanswered messages are repeated during a switch."""

QUIET_TICK_NS: Final = 4 * TICK_NS
"""How often acknowledgements are repeated without one: the parent may be a new process."""

_ORDERS_MAX = 4096

Order = TreeOrders | Relocated


class MulticastStreams:
    """The multicast streams of host `host`."""

    def __init__(
        self,
        host: int,
        endpoint: TcpEndpoint,
        settings: MulticastSettings,
        addresses: dict[int, tuple[str, int]],
        static_hosts: Iterable[int],
        tell: Callable[[TreeReport], None],
        cpu_ns: Callable[[], int] = cpu_time_ns,
    ) -> None:
        """Begin without a stream.

        `addresses` has where relays listen, by host. Links to `static_hosts` are always kept up,
        others while a tree needs them. `tell` sends news to the controller.
        """
        self._host = host
        self._endpoint = endpoint
        self._settings = settings
        self._addresses = addresses
        self._static_hosts = frozenset(static_hosts)
        self._tell = tell
        self._cpu_ns = cpu_ns
        self._streams: dict[int, MulticastStream] = {}
        self._reporters: dict[int, LoadReporter] = {}
        self._orders: deque[Order] = deque(maxlen=_ORDERS_MAX)
        self._dialled: set[int] = set()
        self._turn_ns = self._tick_ns = 0
        self._has_received = False
        self.may_have_changed = False
        """Whether the last turn may have changed a parent or a child, or was asked to."""
        self._answers: list[tuple[int, Message]] = []
        self._update_links()

    def add(self, stream: MulticastStream, now_ns: int, *, is_root: bool) -> None:
        """Serve one more stream."""
        self._streams[stream.id] = stream
        congested = self._endpoint.congested
        self._reporters[stream.id] = LoadReporter(
            stream, self._host, self._settings, now_ns, congested, self._cpu_ns, is_root
        )
        self._update_links()

    def order(self, order: Order) -> None:
        """Take an order of the controller, in any thread; the caller then wakes the relay."""
        self._orders.append(order)

    @property
    def has_orders(self) -> bool:
        """Whether an order waits."""
        return bool(self._orders)

    def receive_from(self, host: int, packed: bytes) -> bool:
        """Take a message of the relay of `host`, without its tag; False if it is invalid."""
        try:
            stream_id, message = vertex_wire.unpack(packed)
        except ProtocolError:
            return False
        stream = self._streams.get(stream_id)
        if stream is None:
            return False
        self._keep_answers(stream, stream.receive_from(host, message))
        self._has_received |= not isinstance(message, Acknowledgement)
        self._turn_ns = 0  # an acknowledgement is passed on upward at once
        return True

    def turn(self, now_ns: int) -> set[int]:
        """Do what is due; return the hosts whose relays have failed, or were replaced."""
        is_ticking = now_ns >= self._tick_ns
        is_due = is_ticking or now_ns >= self._turn_ns or self.has_orders
        self.may_have_changed = self.has_orders or self._has_received
        self._has_received = False
        lost = self._carry_out_orders()
        for reporter in self._reporters.values():
            reporter.look(now_ns)
        if is_ticking:
            self._tick_ns = now_ns + QUIET_TICK_NS
            for stream in self._streams.values():
                self._keep_answers(stream, stream.tick())
        has_turned = is_due
        for stream in self._streams.values():
            if stream.is_switching:
                self._tick_ns = min(self._tick_ns, now_ns + TICK_NS)
                self.may_have_changed = True
            elif not is_due:
                continue
            has_turned = True
            self._keep_answers(stream, stream.turn())
            self.may_have_changed |= stream.is_switching
        if is_due:
            self._turn_ns = now_ns + TURN_NS
        if has_turned:  # else no stream can have another parent
            self._update_links()
        self._report(now_ns)
        return lost

    @property
    def next_due_ns(self) -> int:
        """The latest time for the next `turn`."""
        streams = self._streams.values()
        if any(one.is_switching or one.has_unsent_acknowledgement for one in streams):
            return self._turn_ns
        due_ns = self._tick_ns
        for reporter in self._reporters.values():
            due_ns = min(due_ns, reporter.due_ns)
        return due_ns

    def _keep_answers(self, stream: MulticastStream, answers: list[Message]) -> None:
        """Keep answers for the next report to the controller."""
        self._answers += [(stream.id, answer) for answer in answers]

    def _carry_out_orders(self) -> set[int]:
        """Carry out all orders; return the hosts whose relays have failed, or were replaced."""
        lost: set[int] = set()
        while self._orders:
            order = self._orders.popleft()
            if isinstance(order, Relocated):
                lost.add(order.host)
                self._addresses[order.host] = order.address
                if order.host in self._dialled:
                    self._endpoint.dial(host_name(order.host), order.address)
                continue
            for stream_id, message in order.messages:
                stream = self._streams.get(stream_id)
                if stream is not None:
                    self._keep_answers(stream, stream.receive(message))
            lost |= self._drop_failed_links()
        return lost

    def _drop_failed_links(self) -> set[int]:
        """Drop the links to failed relays, even if their connections still look alive.

        Subscriptions of a failed relay must not count as those of its successor.
        """
        failed: set[Vertex] = set()
        for stream in self._streams.values():
            failed |= stream.new_failures()
        hosts = {int(one) for one in failed} - {self._host}
        for host in sorted(hosts):
            self._endpoint.forget(host_name(host))
            if host in self._dialled:
                self._endpoint.dial(host_name(host), self._addresses[host])
        return hosts

    def _update_links(self) -> None:
        """Dial the hosts that are needed, and hang up on all others."""
        needed = set(self._static_hosts)
        for stream in self._streams.values():
            needed.update(map(int, stream.upward))
        needed.discard(self._host)
        if needed == self._dialled:
            return
        for host in sorted(needed - self._dialled):
            self._endpoint.dial(host_name(host), self._addresses[host])
        for host in sorted(self._dialled - needed):
            self._endpoint.undial(host_name(host))
        self._dialled = needed

    def _report(self, now_ns: int) -> None:
        """Send answers, and the loads that are due, to the controller."""
        reporters = self._reporters.values()
        loads = [load for reporter in reporters if (load := reporter.report(now_ns))]
        if self._answers or loads:
            self._tell(TreeReport(tuple(self._answers), tuple(loads)))
            self._answers = []
