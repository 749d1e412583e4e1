"""The Python time of a slice over RDMA verbs: everything but the library's calls.

`Reads` and `Writes` measure the work for one payload. For a READ: check that the message is the
next one and granted, fill in the request, count it as under way; then process its completion, count
it as done and pass it on. For a WRITE: look up the memory on both sides, fill in and count the
request; then process its completion and release the ring. The library's calls are functions in C
that do nothing.

`WholeLink` is both hosts together, from a ring that holds slices to the mirror that shows them to
readers: headers, frames, credits, grants. The library is that of idle_verbs.py, whose time is
    subtracted.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count as count_up
from time import perf_counter_ns
from types import SimpleNamespace
from typing import Any, Final, cast

from ...configs.settings import TransportSettings
from ...transport.channel import Outcome
from ...transport.links.link import Link, LinkTimes, Role
from ...transport.links.link_header import DATA, encode
from ...transport.links.neighbours import Neighbours
from ...transport.links.streams import Grant
from ...transport.mirror import MirrorRing, RingTap
from ...transport.ring import RingProducer
from ...transport.segment import Bytes
from ...transport.shm import create_ring
from ...transport.tcp.connection import TcpConnection
from ...transport.verbs import library as pyverbs
from ...transport.verbs.connection import VerbsConnection
from ...transport.verbs.device import Device
from ...transport.verbs.frames import RECEIVE_BUFFERS, RemoteMemory
from ...transport.verbs.library import Library
from ...transport.verbs.link_resources import Agreement, Data, LinkResources
from ...transport.verbs.payload_reader import PayloadReader
from ...transport.verbs.payload_sender import PayloadSender
from ...transport.verbs.queue_pair import QueuePair
from ...transport.verbs.regions import Regions
from .idle_verbs import Completion, IdleFabric
from .report import Aim, BenchRow, median

SLICE_BYTES: Final = 256 << 10
BATCH: Final = 4
"""Slices under way at a time."""
AIM_NS: Final = 1000
_RING_BYTES: Final = 4 << 20
_STREAM: Final = 1
_PEER: Final = "peer"
_NUMBER: Final = 0
_STREAMS: Final = 4
"""Of the child's subscription."""
_clock_ns = perf_counter_ns  # itself: one more call would be measured
_numbers = count_up()


def python_rows(batches: int, emulated: dict[str, object]) -> list[BenchRow]:
    """Measure each of them `batches` times; the median limits the effect of pauses.

    `emulated` is added to the parameters; there is no aim for an emulated processor.
    """
    library, requests = request_library()
    rows = []
    for how, way in (("READ", Reads(library)), ("WRITE", Writes(library))):
        nanoseconds = median([way.batch() for _ in range(batches)]) / BATCH
        what = {"how": how, "requests of": requests, **emulated}
        aim = None if emulated else Aim("value", "at most", AIM_NS)
        rows.append(BenchRow("Python side of a slice", what, nanoseconds, "ns", aim=aim))
    for data in (Data.READ, Data.WRITE):
        link = WholeLink(data)
        nanoseconds = median([link.batch() for _ in range(batches // 4)]) / link.slices
        what = {"how": f"{data.name}, whole link, both hosts", **emulated}
        rows.append(BenchRow("Python side of a slice", what, nanoseconds, "ns"))
        link.close()
    return rows


def request_library() -> tuple[Library, str]:
    """Return a library whose calls do nothing but whose work requests can be filled in."""
    quiet = SimpleNamespace(post_send=deque[Any](maxlen=0).append, qp_num=0, to_rts=lambda _: None)
    library = replace(
        IdleFabric().library, QP=lambda *_: quiet, CQ=lambda *_: SimpleNamespace(poll=None)
    )
    with suppress(pyverbs.NoVerbsError):
        real = pyverbs.load()
        works = {name: getattr(real, name) for name in ("SGE", "SendWR", "READ", "WRITE")}
        return replace(library, SIGNALED=real.SIGNALED, **works), "pyverbs"
    return library, "stand-ins"


class _Pair(QueuePair):
    """A queue pair whose completions are those of the last batch."""

    def __init__(self, device: Device) -> None:
        super().__init__(device, device.best_gid, 128, RECEIVE_BUFFERS)
        self.connect(self.own_address)
        self._completions = [Completion(0) for _ in range(BATCH)]
        # A dictionary's method, since it is in C, as the library's is.
        self._queue.poll = {16: (BATCH, self._completions)}.get

    def complete(self) -> None:
        """Complete the requests that were posted last."""
        for number, completion in enumerate(self._completions, self.posted - BATCH):
            completion.wr_id = number


class Reads:
    """The child's side of a stream over READ."""

    def __init__(self, library: Library) -> None:
        """Create an empty mirror."""
        device = Device(library, "idle")
        self._pair = _Pair(device)
        mirror = MirrorRing.create(_RING_BYTES, 1, _job(), "mirror", kind="private")
        hosts = _neighbours()
        self._incoming = hosts.subscribe(_STREAM, mirror, _PEER)
        self._incoming.subscribed_now = True
        self._payload_reader = PayloadReader(self._pair, Regions(device), 1, RECEIVE_BUFFERS)
        self._payload_reader.set_remote_memory(
            RemoteMemory(_STREAM, 1, mirror.data_address, _RING_BYTES)
        )
        # Messages are not part of this measurement; they belong to the link.
        link = SimpleNamespace(peer=hosts.peers[_PEER], placed=deque[Any](maxlen=0).append)
        self._link = cast("Link", link)
        self._position = 0
        self._arrived: list[tuple[int, int]] = []

    def batch(self) -> int:
        """Transfer `BATCH` slices; return how many ns that took."""
        reader, link, pair, receiver = (
            self._payload_reader, self._link, self._pair, self._incoming.receiver
        )  # fmt: skip
        start = self._position
        receiver.received = start
        receiver.granted = Grant(start, start + _RING_BYTES)
        reads = [
            reader.enqueue(_header(position, self._incoming.number))
            for position in range(start, start + BATCH * SLICE_BYTES, SLICE_BYTES)
        ]
        self._position += BATCH * SLICE_BYTES
        began_ns = _clock_ns()
        reader.read_ahead(link)
        posted_ns = _clock_ns()
        pair.complete()
        polls_ns = _clock_ns()
        pair.poll(self._arrived)
        for read in reads:
            done = reader.finish(link, read)
        took_ns = _clock_ns() - polls_ns + posted_ns - began_ns
        assert done, "every slice is here"
        return took_ns


class Writes:
    """The parent's side of a stream over WRITE."""

    def __init__(self, library: Library) -> None:
        """Create a ring and a remote mirror."""
        device = Device(library, "idle")
        self._pair = _Pair(device)
        self._producer, _ = create_ring(_RING_BYTES, 1, _job(), "ring")
        hosts = _neighbours()
        hosts.offer(_STREAM, RingTap.beside(self._producer), [_PEER])
        hosts.peers[_PEER].subscribed(_STREAM, 0, _RING_BYTES, _RING_BYTES, _NUMBER)
        self._payload_sender = PayloadSender(self._pair, Regions(device), Data.WRITE)
        self._payload_sender.set_remote_memory(RemoteMemory(_STREAM, 1, 1 << 20, _RING_BYTES))
        self._link = cast("Link", SimpleNamespace(peer=hosts.peers[_PEER]))
        self._position = 0
        self._arrived: list[tuple[int, int]] = []

    def batch(self) -> int:
        """Transfer `BATCH` slices; return how many ns that took."""
        sender, link, pair, start = self._payload_sender, self._link, self._pair, self._position
        self._position += BATCH * SLICE_BYTES
        began_ns = _clock_ns()
        for position in range(start, self._position, SLICE_BYTES):
            sender.decide(link, _STREAM, position, SLICE_BYTES, _NUMBER)
        posted_ns = _clock_ns()
        pair.complete()
        polls_ns = _clock_ns()
        pair.poll(self._arrived)
        sender.settle()
        return _clock_ns() - polls_ns + posted_ns - began_ns


class WholeLink:
    """Two hosts in one process, and several streams from one to the other."""

    def __init__(self, data: Data) -> None:
        """Connect them."""
        self._fabric = IdleFabric()
        device = Device(self._fabric.library, "idle")
        both = [LinkResources.of(Regions(device), device.best_gid) for _ in range(2)]
        for ours, theirs in (both, both[::-1]):
            ours.connect(*theirs.addresses)
        parent, child = socket.socketpair()
        self._hosts = [_neighbours(), _neighbours()]
        self._parent, self._child = (
            VerbsConnection(
                _witness(sock, dialled), Agreement(resources, data, data, RECEIVE_BUFFERS)
            )
            for sock, dialled, resources in zip((parent, child), (False, True), both, strict=True)
        )
        self._producers = [self._stream(number) for number in range(_STREAMS)]
        self._consumers = [
            incoming.mirror.consumer(0) for incoming in self._hosts[1].incoming.values()
        ]
        times = LinkTimes.of(TransportSettings())
        for connection, hosts, role in zip(
            (self._parent, self._child), self._hosts, (Role.CHILD, Role.PARENT), strict=True
        ):
            connection.establish(Link(hosts.peer(_PEER), role, times, 0), 0)
        self.slices = BATCH * _STREAMS
        """Of a batch."""

    def _stream(self, number: int) -> RingProducer:
        parent, child = self._hosts
        producer, _ = create_ring(_RING_BYTES, 1, _job(), "ring")
        parent.offer(number, RingTap.beside(producer), [_PEER])
        mirror = MirrorRing.create(_RING_BYTES, 1, _job(), "mirror", kind="private")
        child.subscribe(number, mirror, _PEER)
        return producer

    def batch(self) -> int:
        """Transfer `slices` from rings to readers; return how many ns the two links took."""
        for producer in self._producers:
            for _ in range(BATCH):
                outcome = producer.put(SLICE_BYTES - 64, _as_it_lies)
                assert outcome is Outcome.SENT, "what was read was given back"
        took_ns, read = 0, 0
        while read < self.slices:
            took_ns += self._time(self._carry)
            for consumer in self._consumers:
                while (frame := consumer.get()) is not None:
                    consumer.release_buffer(frame)
                    read += 1
        return took_ns + self._time(self._carry)

    def _carry(self) -> None:
        """Run one round of both hosts' endpoints."""
        for connection, hosts in zip((self._child, self._parent), self._hosts[::-1], strict=True):
            link = connection.link
            assert link is not None, "it was established"
            connection.receive(link, 0)
            connection.send(link, 0)
            hosts.tend()
            hosts.publish()

    def _time(self, work: Callable[[], None]) -> int:
        spent_ns, began_ns = self._fabric.spent_ns, _clock_ns()
        work()
        return _clock_ns() - began_ns - (self._fabric.spent_ns - spent_ns)

    def close(self) -> None:
        """Close both ends."""
        self._parent.close()
        self._child.close()


def _witness(sock: socket.socket, dialled: bool) -> TcpConnection:
    sock.setblocking(False)
    found = SimpleNamespace(
        sock=sock, fd=sock.fileno(), dialled=dialled, host=_PEER, close=sock.close
    )
    return cast("TcpConnection", found)


def _neighbours() -> Neighbours:
    return Neighbours(64, 1_000_000, lambda: 1)


def _header(position: int, subscription: int) -> memoryview:
    return memoryview(encode(DATA, 0, _STREAM, position, 0, SLICE_BYTES, subscription))


def _as_it_lies(buffer: Bytes) -> int:
    return buffer.size


def _job() -> str:
    return f"side{next(_numbers)}"
