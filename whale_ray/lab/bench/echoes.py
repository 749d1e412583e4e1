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
from ...transport.mirror import MirrorRing, RingTap
from ...transport.segment import Bytes
from ...transport.shm import attach_ring, create_ring
from ...transport.tcp.endpoint import TcpEndpoint
from ...transport.verbs.queue_pair import WorkRequest
from .bare_verbs import BareSide
from .channel_backends import ADDRESS, READER, SENDER, doorbells, endpoint_of, wait_for_sockets
from .processes import Work, run_together
from .report import median

_CLOCK: Final = SystemClock()
_RING_BYTES, _RECEIVE_BYTES = 1 << 20, 4 << 10
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


class HostEcho:
    """Rings in both directions between two hosts, which are both this machine."""

    def __init__(self, settings: tuple[TransportSettings, ...]) -> None:
        """Take the settings of both."""
        self._settings = settings
        self._job, self._doorbells = doorbells(1)
        self._pipes = Pipe()

    def asking(self) -> Exchange:
        """See `Echo.asking`."""
        endpoint, there, back = self._side(0, SENDER, READER, _THERE, _BACK)

        def exchange(message: Bytes) -> None:
            _put(there, message, endpoint)
            _take(back, endpoint)

        return exchange

    def answering(self) -> Exchange:
        """See `Echo.answering`."""
        endpoint, back, there = self._side(1, READER, SENDER, _BACK, _THERE)

        def exchange(message: Bytes) -> None:
            _take(there, endpoint)
            _put(back, message, endpoint)

        return exchange

    def _side(
        self, number: int, name: str, peer: str, out: int, into: int
    ) -> tuple[TcpEndpoint, Channel, Channel]:
        """Return the endpoint of a side, its ring to the peer, and the mirror of the peer's."""
        endpoint = endpoint_of(self._job, name, self._settings[number])
        producer, _ = create_ring(_RING_BYTES, 1, self._job, "ring")
        offer = endpoint.offer(out, RingTap.beside(producer), [peer])
        doorbell = self._doorbells[number]
        mirror = MirrorRing.create(_RING_BYTES, 1, self._job, "mirror", [doorbell])
        consumer = attach_ring(mirror.handle, 0, doorbell)
        incoming = endpoint.subscribe(into, mirror, peer)
        self._pipes[number].send(endpoint.listen(ADDRESS))
        endpoint.dial(peer, self._pipes[number].recv())
        subscription = offer.outgoing[peer].sender

        def ready() -> bool:
            # Nobody polls from here to the start, so what the peer waits for must have been said.
            return subscription.subscribed_now and incoming.subscribed_now

        while not ready():
            wait_for_sockets(endpoint, ready)
        return endpoint, producer, consumer

    def close(self) -> None:
        """See `Echo.close`."""
        for pipe in self._pipes:
            pipe.close()


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
        side.pair.prepare_receives(side.memory.region, _RECEIVE_BYTES)
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
