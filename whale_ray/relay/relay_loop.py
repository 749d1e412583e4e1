"""What a relay does in one turn of its loop, and in which order.

Pure but for its endpoint: the time is passed in, and nothing sleeps. `Relay` takes these turns over
sockets, and the simulator (tests/simulation) over a network of its own, under seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from ..multicast.tree_messages import HostUnreachable
from ..plan.hosts import host_name
from ..transport.links.statistics import Unreachable
from . import multicast_stream, watermark_exchange
from .multicast_streams import MulticastStreams
from .watermark_exchange import WATERMARK_POLL_NS, WatermarkExchange

CHECK_INTERVAL_NS: Final = 100_000_000
"""The time between two checks for unreachable hosts."""


class LoopEndpoint(Protocol):
    """What a turn asks of `TcpEndpoint`."""

    @property
    def unfinished(self) -> bool:
        """Whether `poll` has left something undone, or something was asked for since."""
        ...

    @property
    def next_due_ns(self) -> int:
        """When `poll` has to be called at the latest."""
        ...

    def poll(self, now_ns: int) -> bool:
        """Do all that can be done without waiting; return whether anything was done."""
        ...

    def arm(self, now_ns: int) -> bool:
        """Have the doorbell rung when more comes; False if it has come already: poll for it."""
        ...

    def receive_control(self) -> tuple[str, bytes] | None:
        """Return the next control message and who sent it; None if there is none."""
        ...

    def reject(self, host: str, why: str) -> None:
        """Break the links to `host`, whose control message the caller cannot read."""
        ...

    def unreachable(self, now_ns: int) -> tuple[Unreachable, ...]:
        """Return the hosts without a link that stands, for how long, and why."""
        ...


class RelayLoop:
    """The turns of the relay of host `host`, in one attempt.

    `hosts` are the names of all hosts, by number. A turn does nothing for at most
    `sleep_max_ns`. A host that is unreachable for more than `unreachable_after_ns` is reported
    with `tell`, again and again until it is reached.
    """

    def __init__(
        self,
        host: int,
        hosts: tuple[str, ...],
        endpoint: LoopEndpoint,
        streams: MulticastStreams,
        watermarks: WatermarkExchange,
        *,
        sleep_max_ns: int,
        unreachable_after_ns: int,
        tell: Callable[[HostUnreachable], None],
    ) -> None:
        self.streams: Final = streams
        self._host = host
        self._hosts = hosts
        self._endpoint = endpoint
        self._watermarks = watermarks
        self._sleep_max_ns = sleep_max_ns
        self._unreachable_after_ns = unreachable_after_ns
        self._tell = tell
        self._check_at_ns = 0

    def turn(self, now_ns: int) -> int:
        """Do what is due; return how many ns the relay may sleep, 0 if there is more to do."""
        endpoint, streams = self._endpoint, self.streams
        endpoint.poll(now_ns)
        self._take_control()
        self._turn_streams(now_ns)
        # Send at once what was asked for meanwhile; what that brings in needs another turn.
        if (endpoint.unfinished or streams.may_have_changed) and endpoint.poll(now_ns):
            return 0
        if streams.has_orders:
            return 0
        return self._timeout_ns(now_ns) if endpoint.arm(now_ns) else 0

    def take_message(self, host: str, packed: bytes) -> bool:
        """Take a control message of another relay; False if it makes no sense."""
        tag, content = packed[:1], packed[1:]
        if tag == watermark_exchange.TAG:
            return self._watermarks.receive(host, content)
        if tag == multicast_stream.TAG:
            return self.streams.receive_from(self._hosts.index(host), content)
        return False

    def _take_control(self) -> None:
        """Take the control messages of other relays."""
        while (received := self._endpoint.receive_control()) is not None:
            host, packed = received
            if not self.take_message(host, packed):
                self._endpoint.reject(host, "a control message that makes no sense")

    def _turn_streams(self, now_ns: int) -> None:
        """Do all that the endpoint does not: trees, watermarks, checks for unreachable hosts."""
        for host in self.streams.turn(now_ns):
            self._watermarks.forget(host)
        self._watermarks.share(now_ns)
        if now_ns >= self._check_at_ns:
            self._check_at_ns = now_ns + CHECK_INTERVAL_NS
            self._check_reachable(now_ns)

    def _check_reachable(self, now_ns: int) -> None:
        for lost in self._endpoint.unreachable(now_ns):
            if lost.silent_ns > self._unreachable_after_ns:
                reason = (
                    f"{lost.host} has been unreachable from {host_name(self._host)} for "
                    f"{lost.silent_ns / 1e9:.0f} s (runtime.unreachable_after_ms): {lost.why}"
                )
                self._tell(HostUnreachable(self._hosts.index(lost.host), reason))

    def _timeout_ns(self, now_ns: int) -> int:
        """Return how long the relay may sleep."""
        longest_ns = self._sleep_max_ns
        if self._watermarks.is_needed:
            longest_ns = min(longest_ns, WATERMARK_POLL_NS)
        due_ns = min(self._endpoint.next_due_ns, self.streams.next_due_ns)
        return max(0, min(longest_ns, due_ns - now_ns))
