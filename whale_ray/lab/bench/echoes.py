"""Latency of a small message from one process to another: half of the round trip.

One side sends a message, and the other sends it back at once. Hosts sleep until sockets or devices
wake them, as in a job; the bare loop polls, as perftest's programs do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import Pipe
from typing import Final, Protocol

import numpy as np

from ...configs.settings import TransportSettings
from ...transport.channel import Channel, Outcome
from ...transport.clock import SystemClock
from ...transport.push.channel import PushReceivingEnd
from ...transport.push.layout import PushLayout
from ...transport.push.wire import PushInlet, PushOutlet
from ...transport.segment import Bytes, Segment
from ...transport.tcp.endpoint import TcpEndpoint
from ...transport.verbs.queue_pair import WorkRequest
from .bare_verbs import BareSide
from .channel_backends import READER, SENDER, HostSides, wait_for_sockets, wait_until_up
from .processes import Work, run_together
from .report import median

_CLOCK: Final = SystemClock()
_SLOTS, _SLOT_BYTES = 8, 4 << 10
_THERE, _BACK = 1, 2


class Echo(Protocol):
    """Two sides, each prepared in its own process."""

    def asking(self) -> Exchange:
        """Return a function that sends a message and returns once its echo has arrived."""
        ...

    def answering(self) -> Exchange:
        """Return a function that receives a message and sends it back."""
        ...

    def close(self) -> None:
        """Release what was created before the fork."""
        ...


Exchange = Callable[[Bytes], None]


def one_way_us(echo: Echo, sizes: Sequence[int], count: int) -> dict[int, float]:
    """Return the median µs of messages of each size, `count` of each; closes `echo`."""
    together = run_together(
        [partial(_ask, echo, sizes, count), partial(_answer, echo, sizes, count)]
    )
    echo.close()
    medians: dict[int, float] = together.timings[0].result
    return medians


def _ask(echo: Echo, sizes: Sequence[int], count: int) -> Work:
    exchange = echo.asking()

    def work() -> dict[int, float]:
        return {nbytes: median(_trips(exchange, nbytes, count)) / 2 / 1e3 for nbytes in sizes}

    return work


def _trips(exchange: Exchange, nbytes: int, count: int) -> list[float]:
    message, trips_ns = np.zeros(nbytes, np.uint8), []
    for _ in range(count):
        start_ns = _CLOCK.monotonic_ns()
        exchange(message)
        trips_ns.append(float(_CLOCK.monotonic_ns() - start_ns))
    return trips_ns


def _answer(echo: Echo, sizes: Sequence[int], count: int) -> Work:
    exchange = echo.answering()

    def work() -> None:
        for nbytes in sizes:
            message = np.zeros(nbytes, np.uint8)
            for _ in range(count):
                exchange(message)

    return work


class HostEcho(HostSides):
    """Push channels in both directions between two hosts, which are both this machine."""

    def __init__(self, settings: tuple[TransportSettings, ...]) -> None:
        """Take the settings of both."""
        super().__init__(0, 1, settings)
        self._layout = PushLayout(_SLOTS, _SLOT_BYTES)

    def asking(self) -> Exchange:
        """See `Echo.asking`."""
        endpoint = self.sending_endpoint()
        there, back = self._channels(endpoint, READER, _THERE, _BACK)
        wait_until_up(endpoint)

        def exchange(message: Bytes) -> None:
            _put(there, message, endpoint)
            _take(back, endpoint)

        return exchange

    def answering(self) -> Exchange:
        """See `Echo.answering`."""
        endpoint = self.reading_endpoint()
        back, there = self._channels(endpoint, SENDER, _BACK, _THERE)
        self.dial(endpoint)

        def exchange(message: Bytes) -> None:
            _take(there, endpoint)
            _put(back, message, endpoint)

        return exchange

    def _channels(
        self, endpoint: TcpEndpoint, peer: str, out: int, into: int
    ) -> tuple[Channel, Channel]:
        outlet = PushOutlet.create(self.job, "outlet", self._layout)
        endpoint.push_source(peer, out, outlet)
        segment = Segment.create(self._layout.total_bytes, "push", self.job, "private")
        receiver = PushReceivingEnd(segment, self._layout)
        endpoint.push_sink(peer, into, PushInlet(segment.share()))
        return outlet.sending_end(), receiver


def _put(channel: Channel, message: Bytes, endpoint: TcpEndpoint) -> None:
    def encode(buffer: Bytes) -> int:
        buffer[:] = message
        return message.size

    def room() -> bool:
        return channel.ready_to_send(message.size) is Outcome.SENT

    while channel.put(message.size, encode) is not Outcome.SENT:
        wait_for_sockets(endpoint, room)
    endpoint.poll()


def _take(channel: Channel, endpoint: TcpEndpoint) -> None:
    while (frame := channel.get()) is None:
        wait_for_sockets(endpoint, channel.available)
    channel.release_buffer(frame)


class BareEcho:
    """SEND and RECV of pyverbs, without whale-ray."""

    def __init__(self, devices: tuple[str, str]) -> None:
        """Take the devices of both sides."""
        self._devices = devices
        self._pipes = Pipe()

    def asking(self) -> Exchange:
        """See `Echo.asking`."""
        side, send = self._side(0)

        def exchange(message: Bytes) -> None:
            send(message.size)
            side.pair.post_again(side.pair.next_arrival())

        return exchange

    def answering(self) -> Exchange:
        """See `Echo.answering`."""
        side, send = self._side(1)

        def exchange(message: Bytes) -> None:
            side.pair.post_again(side.pair.next_arrival())
            send(message.size)

        return exchange

    def _side(self, number: int) -> tuple[BareSide, Callable[[int], None]]:
        side = BareSide(self._devices[number], 1 << 20, None, self._pipes[number])
        side.pair.prepare_receives(side.memory.region, _SLOT_BYTES)
        side.connect()
        library, region = side.device.library, side.memory.region
        request = WorkRequest(side.device, library.SEND, region.lkey)
        request.element.addr, request.work.send_flags = region.address, library.SIGNALED

        def send(nbytes: int) -> None:
            request.element.length = nbytes
            side.pair.post_bare(request.work)

        return side, send

    def close(self) -> None:
        """See `Echo.close`."""
        for pipe in self._pipes:
            pipe.close()
