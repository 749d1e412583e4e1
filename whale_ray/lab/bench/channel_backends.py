"""Backends over this project's rings, in a host and between hosts.

Between hosts, over TCP or RDMA verbs as the settings say, the sending process is the sender's host
and reader 0 the readers' host: each polls its endpoint in the loop that sends or receives, as a
relay does. Further readers are other processes of the readers' host, which read the same mirror:
the bytes cross the network once.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count as count_up
from multiprocessing import Pipe
from typing import Final, Protocol

from ...configs.settings import TransportSettings
from ...transport.channel import Channel, Outcome
from ...transport.clock import SystemClock
from ...transport.doorbell import Doorbell, DoorbellBoard
from ...transport.links.handshake import Identity
from ...transport.mirror import MirrorRing, RingTap
from ...transport.segment import Segment
from ...transport.shm import attach_ring, create_ring
from ...transport.tcp.endpoint import TcpEndpoint
from .backends import (
    ChannelSender,
    MessageLoad,
    MessageSender,
    ReceiveAll,
    ReceivingSide,
    SendingSide,
)
from .processes import ClosedAtExit
from .ring_pair import RingPair

_TIMEOUT_NS: Final = 50_000_000
_PAGE_BYTES: Final = 4096
_STREAM: Final = 1
SENDER, READER = "sender", "reader"
_SECRET: Final = bytes(32)
ADDRESS: Final = "127.0.0.1"
OVER_TCP: Final = (TransportSettings(between_hosts="tcp"),) * 2
_CLOCK: Final = SystemClock()
_NUMBERS = count_up()


class Sides(Protocol):
    """Creates both sides of a channel, each in its own process; created before the fork."""

    def sending(self) -> SendingSide:
        """Return the sending side, ready."""
        ...

    def receiving(self, reader: int) -> ReceivingSide:
        """Return one receiving side, ready."""
        ...

    def close(self) -> None:
        """Release what was created before the fork."""
        ...


class ChannelBackend(ClosedAtExit):
    """The backend of any channel."""

    def __init__(self, make: Callable[[int, int], Sides], load: MessageLoad) -> None:
        """Create the sides for `load`; `make` takes the bytes of memory and the readers."""
        self._load = load
        self._sides = make(load.memory_bytes, load.readers)

    def close(self) -> None:
        """See `ClosedAtExit.close`."""
        self._sides.close()

    def sender(self) -> MessageSender:
        """See `Backend.sender`."""
        return ChannelSender(self._sides.sending(), self._load)

    def receiver(self, reader: int) -> ReceiveAll:
        """See `Backend.receiver`."""
        return partial(self._sides.receiving(reader).receive, self._load.consume)


class RingSides:
    """A ring in shared memory."""

    def __init__(self, memory_bytes: int, readers: int) -> None:
        """Create the ring."""
        self._pair = RingPair(readers, memory_bytes)

    def sending(self) -> SendingSide:
        """See `Sides.sending`."""
        self._pair.touch()
        return SendingSide(self._pair.producer, self._pair.wait_for_room)

    def receiving(self, reader: int) -> ReceivingSide:
        """See `Sides.receiving`."""
        consumer = self._pair.consumer(reader)
        return ReceivingSide(consumer, partial(self._pair.wait_for_frame, consumer, reader))

    def close(self) -> None:
        """See `Sides.close`."""
        self._pair.close()


class HostSides:
    """Two endpoints, one of which dials the other."""

    def __init__(
        self, memory_bytes: int, readers: int, settings: tuple[TransportSettings, ...] = OVER_TCP
    ) -> None:
        """Take the settings of the sending host and of the reading one."""
        self._memory_bytes = memory_bytes
        self._settings = settings
        self.job, self._doorbells = doorbells(readers)
        self._listens_at, self._tell = Pipe(duplex=False)

    def sending_endpoint(self) -> TcpEndpoint:
        """Return the sending host's endpoint, which listens."""
        endpoint = endpoint_of(self.job, SENDER, self._settings[0])
        self._tell.send(endpoint.listen(ADDRESS))
        return endpoint

    def reading_endpoint(self, doorbell: Doorbell | None) -> TcpEndpoint:
        """Return the reading host's endpoint."""
        return endpoint_of(self.job, READER, self._settings[1], doorbell)

    def dial(self, endpoint: TcpEndpoint) -> None:
        """Link the reading host with the sending one; returns when the link is up."""
        endpoint.dial(SENDER, self._listens_at.recv())
        wait_until_up(endpoint)

    def close(self) -> None:
        """See `Sides.close`."""
        self._tell.close()
        self._listens_at.close()


class HostRingSides(HostSides):
    """A ring on one host and its mirror on another, both hosts being this machine."""

    def __init__(
        self, memory_bytes: int, readers: int, settings: tuple[TransportSettings, ...] = OVER_TCP
    ) -> None:
        """Create the mirror; the sender creates the ring."""
        super().__init__(memory_bytes, readers, settings)
        self._mirror = MirrorRing.create(
            memory_bytes, readers, self.job, "mirror", self._doorbells[:readers]
        )

    def sending(self) -> SendingSide:
        """See `Sides.sending`."""
        endpoint = self.sending_endpoint()
        producer, _ = create_ring(self._memory_bytes, 1, self.job, "ring")
        _touch(producer.segment)
        offer = endpoint.offer(_STREAM, RingTap.beside(producer), [READER])
        subscription = offer.outgoing[READER].sender
        while not subscription.subscribed_now:
            wait_for_sockets(endpoint, lambda: subscription.subscribed_now)
        return _sending(producer, endpoint, lambda: endpoint.delivered)

    def receiving(self, reader: int) -> ReceivingSide:
        """See `Sides.receiving`."""
        doorbell = self._doorbells[reader]
        consumer = attach_ring(self._mirror.handle, reader, self._doorbells[0])
        if reader > 0:
            return ReceivingSide(consumer, partial(doorbell.wait, _TIMEOUT_NS, consumer.available))
        _touch(self._mirror.segment)
        endpoint = self.reading_endpoint(doorbell)
        # Other readers ring this doorbell so that the endpoint grants more; this process polls it.
        alone = len(self._doorbells) == 2
        endpoint.subscribe(_STREAM, self._mirror, SENDER)
        self.dial(endpoint)
        return _polling(consumer, endpoint, None if alone else doorbell)

    def close(self) -> None:
        """See `Sides.close`."""
        super().close()
        self._mirror.close()


def doorbells(readers: int) -> tuple[str, list[Doorbell]]:
    """Return a new job's name, and the doorbells of its readers and, last, its sender."""
    # No process spins where the processes outnumber the cores.
    spin_pauses = 100 if readers < len(os.sched_getaffinity(0)) else 0
    job = f"backend{os.getpid()}-{next(_NUMBERS)}"
    board = DoorbellBoard.create(readers + 1, 0, job)
    bells = [board.doorbell(worker, spin_pauses) for worker in range(readers + 1)]
    board.close()  # its memory stays mapped as long as they exist
    return job, bells


def endpoint_of(
    job: str, host: str, settings: TransportSettings, doorbell: Doorbell | None = None
) -> TcpEndpoint:
    """Return the endpoint of one of the hosts."""
    return TcpEndpoint(
        Identity(job, 1, 1, host),
        _SECRET,
        # No process polls between getting ready and the start, nor after the end.
        replace(settings, silence_timeout_ms=600_000),
        _CLOCK.monotonic_ns,
        random.Random(host),
        doorbell,
    )


def wait_for_sockets(endpoint: TcpEndpoint, ready: Callable[[], bool] = bool) -> None:
    """Take a turn, as a relay does; then sleep until there is more to do, unless `ready`."""
    now_ns = _CLOCK.monotonic_ns()
    endpoint.poll(now_ns)
    if not ready() and not endpoint.unfinished and endpoint.arm(now_ns):
        endpoint.sockets.wait(max(0, min(_TIMEOUT_NS, endpoint.next_due_ns - now_ns)))


def readable(channel: Channel) -> bool:
    """Return whether there is a message, or the end."""
    return channel.available() or channel.closed_by_peer


def wait_until_up(endpoint: TcpEndpoint) -> None:
    """Return when a link is up."""

    def up() -> bool:
        return any(peer.up for peer in endpoint.statistics())

    while not up():
        wait_for_sockets(endpoint, up)


def _sending(channel: Channel, endpoint: TcpEndpoint, delivered: Callable[[], bool]) -> SendingSide:
    """Return the side whose process polls the endpoint regularly and while it waits."""

    def wait(nbytes: int) -> None:
        def ready() -> bool:
            return channel.ready_to_send(nbytes) is Outcome.SENT if nbytes else delivered()

        wait_for_sockets(endpoint, ready)

    return SendingSide(channel, wait, endpoint.poll, delivered)


def _polling(channel: Channel, endpoint: TcpEndpoint, doorbell: Doorbell | None) -> ReceivingSide:
    """Return the side whose process polls the endpoint when it has read everything.

    With a doorbell it sleeps on that, as a relay does; else on its sockets.
    """
    if doorbell is None:
        wait = partial(wait_for_sockets, endpoint, partial(readable, channel))
        return ReceivingSide(channel, wait, endpoint.poll)
    endpoint.watch()

    def ready() -> bool:
        return endpoint.poll() or channel.available()

    return ReceivingSide(channel, partial(doorbell.wait, _TIMEOUT_NS, ready), endpoint.poll)


def _touch(segment: Segment) -> None:
    """Map the pages of a segment in this process."""
    segment.buffer[::_PAGE_BYTES].sum()
