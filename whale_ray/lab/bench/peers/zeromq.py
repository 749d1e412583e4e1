"""ZeroMQ: PUB/SUB to all, PUSH to each destination, and a fan-out of whale-ray messages.

- *publish*: a SUB socket for every instance; ZeroMQ copies the message. The publisher waits for
  slow subscribers (XPUB_NODROP), since nothing may be lost.
- *push*: a PUSH socket for every instance, the same prepared bytes sent to each.
- *fan-out*: instance-oriented addressing written by hand: a PUSH socket for every destination
  process; each slice is encoded once per instance, and decoded there.

Up to 16 instances have a process each and are reached over ipc; more share 30 processes, which
stand for hosts and are reached over tcp. Received bytes are read in place, in compiled code.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, ClassVar

import numpy as np

from ....transport.clock import SystemClock
from ..processes import Role, Work, run_together
from .base import (
    NOT_INSTALLED,
    TUPLE_BYTES,
    Command,
    PeerOutput,
    PeerSystem,
    end_with_parent,
    has_package,
    processes_for,
    python_path,
    python_program,
    shares,
)
from .reading import read_rows, warm_up
from .sockets import load_zmq, zmq_address

ENVIRONMENT = "zeromq"
SLICE = 2621
"""Tuples in a slice of 256 KiB."""
LARGE_SLICE = 32_768

_QUEUE_BYTES = 1 << 19
"""Bytes that may wait on each side of a connection: with 480 of them, 500 MB in all."""
_NO_COPIES_FROM_BYTES = 64 << 10
_CLOCK = SystemClock()


class _ZeroMq(PeerSystem):
    """The common part of the three."""

    def missing(self) -> str | None:
        """See `PeerSystem.missing`."""
        return None if has_package(ENVIRONMENT, "zmq") else NOT_INSTALLED

    def command(self, instances: int, seconds: float, batch: int) -> Command:
        """See `PeerSystem.command`."""
        argv = python_program("zeromq", self.name, instances, seconds, batch)
        return Command(argv, python_path(ENVIRONMENT))


class ZeroMqFanOut(_ZeroMq):
    """Messages of whale-ray, one for each instance, over ZeroMQ."""

    name: ClassVar[str] = "zeromq-fan-out"
    what: ClassVar[str] = "slices encoded anew for each instance, pushed to its process"
    batches: ClassVar[tuple[int, ...]] = (SLICE, LARGE_SLICE)


class ZeroMqPush(_ZeroMq):
    """The same bytes pushed to each instance."""

    name: ClassVar[str] = "zeromq-push"
    what: ClassVar[str] = "one PUSH socket for each instance, prepared bytes"
    batches: ClassVar[tuple[int, ...]] = (100, SLICE)


class ZeroMqPublish(_ZeroMq):
    """The same bytes published to all instances."""

    name: ClassVar[str] = "zeromq-publish"
    what: ClassVar[str] = "PUB/SUB, one SUB socket for each instance, prepared bytes"
    batches: ClassVar[tuple[int, ...]] = (100, SLICE)


Send = Callable[[], None]
"""Sends the next batch to every instance."""


class _Meeting:
    """Connects sockets: those of the source are bound, and send their addresses through pipes."""

    def __init__(self, count: int, nbytes: int, over: str) -> None:
        self._over = over
        self._nbytes = nbytes
        self.pipes = [Pipe(duplex=False) for _ in range(count)]

    def socket(self, kind: str, queues: int = 1) -> Any:
        """Return a socket of this process' own context; `queues` share the bytes that may wait."""
        zmq = load_zmq()
        context = zmq.Context.instance()
        context.set(zmq.MAX_SOCKETS, 4096)
        socket = context.socket(getattr(zmq, kind))
        socket.set_hwm(max(2, _QUEUE_BYTES * queues // self._nbytes))
        socket.setsockopt(zmq.LINGER, 0)
        return socket

    def bind(self, socket: Any, number: int, tell: list[Connection]) -> None:
        """Bind a socket and send its address to those who are to connect."""
        name = f"peer-{number}"
        socket.bind("tcp://127.0.0.1:*" if self._over == "tcp" else zmq_address(name))
        for connection in tell:
            connection.send(socket.last_endpoint.rstrip(b"\0"))

    def connect(self, socket: Any, place: int) -> None:
        """Connect a socket to the address that comes through the pipe of `place`."""
        socket.connect(self.pipes[place][0].recv())


def _paced(seconds: float, send: Send, finish: Callable[[], object]) -> int:
    """Send for some seconds, then an end marker to all; return how many batches were sent."""
    end_ns = _CLOCK.monotonic_ns() + int(seconds * 1e9)
    batches = 0
    while not batches or _CLOCK.monotonic_ns() < end_ns:  # at least once
        send()
        batches += 1
    finish()
    return batches


def _received(sockets: list[Any], consume: Callable[[np.ndarray], object]) -> int:
    """Read from all sockets until each has an empty message; return the number of others."""
    zmq = load_zmq()
    poller, count = zmq.Poller(), 0
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    waiting = len(sockets)
    while waiting:
        ready = sockets if len(sockets) == 1 else [socket for socket, _ in poller.poll()]
        for socket in ready:
            frame = socket.recv(copy=False)
            message = np.frombuffer(frame.buffer, np.uint8)
            if message.size == 0:
                waiting -= 1
                poller.unregister(socket)
                continue
            consume(message)
            count += 1
    return count


def push_roles(instances: int, seconds: float, batch: int, over: str) -> list[Role]:
    """One connection for each instance."""
    nbytes = batch * TUPLE_BYTES
    meeting = _Meeting(instances, nbytes, over)

    def source() -> Work:
        sockets = [meeting.socket("PUSH") for _ in range(instances)]
        for number, socket in enumerate(sockets):
            meeting.bind(socket, number, [meeting.pipes[number][1]])
        for socket in sockets:
            socket.send(b"")  # returns once a peer has connected
        content, copies = bytes(nbytes), nbytes < _NO_COPIES_FROM_BYTES

        def send() -> None:
            for socket in sockets:
                socket.send(content, copy=copies)

        return partial(_paced, seconds, send, lambda: [s.send(b"") for s in sockets])

    return [source, *_readers(meeting, instances, "PULL")]


def publish_roles(instances: int, seconds: float, batch: int, over: str) -> list[Role]:
    """One publisher, one subscriber for each instance."""
    nbytes = batch * TUPLE_BYTES
    meeting = _Meeting(instances, nbytes, over)

    def source() -> Work:
        zmq = load_zmq()
        socket = meeting.socket("XPUB")  # a PUB socket that shows its subscribers
        socket.setsockopt(zmq.XPUB_NODROP, 1)
        # Report every subscriber, although all subscribe to the same topic.
        socket.setsockopt(zmq.XPUB_VERBOSE, 1)
        meeting.bind(socket, 0, [tell for _, tell in meeting.pipes])
        for _ in range(instances):
            socket.recv()
        socket.send(b"")
        content, copies = bytes(nbytes), nbytes < _NO_COPIES_FROM_BYTES
        return partial(
            _paced,
            seconds,
            lambda: socket.send(content, copy=copies),
            lambda: socket.send(b""),
        )

    return [source, *_readers(meeting, instances, "SUB")]


def _readers(meeting: _Meeting, instances: int, kind: str) -> list[Role]:
    """Return the processes that serve the instances, each of which has a socket of its own."""

    def reader(first: int, count: int) -> Work:
        sockets = [meeting.socket(kind) for _ in range(count)]
        for place, socket in enumerate(sockets, first):
            if kind == "SUB":
                socket.setsockopt(load_zmq().SUBSCRIBE, b"")
            meeting.connect(socket, place)
        for socket in sockets:
            socket.recv()  # the hello: connecting is not part of what is measured
        return partial(_received, sockets, read_rows)

    roles: list[Role] = []
    first = 0
    for count in shares(instances):
        roles.append(partial(reader, first, count))
        first += count
    return roles


def fan_out_roles(instances: int, seconds: float, batch: int, over: str) -> list[Role]:
    """One connection for each process; a whale-ray message for each of its instances."""
    from ....transport.wire import codec
    from ....transport.wire.messages import WorkerMessage
    from ....transport.wire.types import Schema
    from ..fan_out import slice_batch

    codec.warm_up()
    rows = slice_batch(batch)
    schemas: dict[int, Schema] = {rows.schema.schema_id: rows.schema}
    nbytes = codec.message_size(rows, 1)
    served = shares(instances)
    meeting = _Meeting(len(served), nbytes, over)

    def source() -> Work:
        sockets = [meeting.socket("PUSH", queues) for queues in served]
        for number, socket in enumerate(sockets):
            meeting.bind(socket, number, [meeting.pipes[number][1]])
        for socket in sockets:
            socket.send(b"")
        targets = [socket for socket, count in zip(sockets, served, strict=True)
                   for _ in range(count)]  # fmt: skip
        pairs = [np.array([[number, batch]], np.uint32) for number in range(instances)]
        copies, sequence = nbytes < _NO_COPIES_FROM_BYTES, 0

        def send() -> None:
            nonlocal sequence
            for socket, pair in zip(targets, pairs, strict=True):
                buffer = np.empty(nbytes, np.uint8)
                codec.encode_into(
                    buffer,
                    rows,
                    stream=1,
                    source=0,
                    attempt=0,
                    sequence=sequence,
                    destinations=pair,
                )
                socket.send(buffer.data, copy=copies)
            sequence += batch

        return partial(_paced, seconds, send, lambda: [s.send(b"") for s in sockets])

    def reader(place: int) -> Work:
        socket = meeting.socket("PULL", served[place])
        meeting.connect(socket, place)
        socket.recv()

        def consume(frame: np.ndarray) -> None:
            message = codec.decode(_aligned(frame), schemas)
            assert isinstance(message, WorkerMessage)
            for column in message.batch.columns:
                read_rows(column.data.view(np.uint8))

        return partial(_received, [socket], consume)

    return [source, *(partial(reader, place) for place in range(len(served)))]


def _aligned(frame: np.ndarray) -> np.ndarray:
    """Return a message without a copy if it is aligned to 8 bytes, else an aligned copy."""
    return frame if frame.ctypes.data % 8 == 0 else frame.copy()


_ROLES = {
    ZeroMqFanOut.name: fan_out_roles,
    ZeroMqPush.name: push_roles,
    ZeroMqPublish.name: publish_roles,
}


def main(arguments: list[str]) -> None:
    """Measure; arguments: mode, instances, seconds, tuples per message."""
    mode, instances, seconds, batch = (
        arguments[0],
        int(arguments[1]),
        float(arguments[2]),
        int(arguments[3]),
    )
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    end_with_parent()
    warm_up()
    processes = processes_for(instances)
    over = "ipc" if processes == instances else "tcp"
    together = run_together(_ROLES[mode](instances, seconds, batch, over))
    source, *readers = together.timings
    received = sum(timing.result for timing in readers)
    if received != source.result * instances:
        msg = f"{source.result * instances - received} messages were lost"
        raise RuntimeError(msg)
    PeerOutput(
        tuples=source.result * batch,
        wall_s=together.wall_ns / 1e9,
        source_cpu_s=source.cpu_ns / 1e9,
        cpu_s=sum(timing.cpu_ns for timing in together.timings) / 1e9,
        note=f"{batch} tuples a message, {processes} processes, {over}; touch in numba",
    ).print()


if __name__ == "__main__":
    main(sys.argv[1:])
