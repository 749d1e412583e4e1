"""The transports that the ring is compared with, as sender and receiver roles.

Each function returns the two sides of a measurement for `processes.run_together`. ZeroMQ is used
as its guide advises for one host: PAIR sockets over ipc, messages sent whole.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, cast

from ....configs.extras import require_extra
from ..processes import Role, Work

_HELLO = b""
_RECONNECT_MS = 2


def pipe_roles(
    connections: tuple[Connection, Connection], message: bytes, count: int
) -> list[Role]:
    """Send `count` messages through a `multiprocessing.Pipe`."""
    receiving, sending = connections

    def send() -> Work:
        def work() -> None:
            for _ in range(count):
                sending.send_bytes(message)

        return work

    def receive() -> Work:
        def work() -> None:
            for _ in range(count):
                receiving.recv_bytes()

        return work

    return [send, receive]


def zmq_address(name: str) -> str:
    """Return an address in the abstract namespace, which leaves no file."""
    return f"ipc://@whale-ray-bench-{os.getpid()}-{name}"


class ZmqSender:
    """One PAIR socket for each receiver; made in the process that sends."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._sockets = [zmq_pair_socket() for _ in addresses]
        for socket, address in zip(self._sockets, addresses, strict=True):
            socket.bind(address)
        self.send(_HELLO)  # returns once every receiver has connected

    def send(self, message: Any) -> None:
        """Send the same message to each receiver."""
        for socket in self._sockets:
            socket.send(message)

    def send_each(self, make: Callable[[], bytes]) -> None:
        """Create a message for each receiver and send it."""
        for socket in self._sockets:
            socket.send(make())


def zmq_receiver(address: str) -> Callable[[], bytes]:
    """Return a function that waits for the next message; made in the process that receives."""
    socket = zmq_pair_socket()
    socket.connect(address)
    socket.recv()  # the first message: connecting is not measured
    return cast("Callable[[], bytes]", socket.recv)


def load_zmq() -> Any:
    """Import pyzmq, before processes are forked; ResourceError if it is not installed."""
    require_extra("bench", "the peer ZeroMQ")
    return import_module("zmq")


def zmq_pair_socket(messages_max: int = 1000) -> Any:
    """Return a socket that queues at most `messages_max` on each side (default: ZeroMQ's)."""
    zmq = load_zmq()
    # The context of this process; none is created before the fork.
    socket = zmq.Context.instance().socket(zmq.PAIR)
    socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
    socket.set_hwm(messages_max)
    return socket


def zmq_roles(
    name: str, messages: Sequence[Any], count: int, consume: Callable[[bytes], object]
) -> list[Role]:
    """Send `count` messages, taken in turn from `messages`, to one receiver."""
    address = zmq_address(name)

    def send() -> Work:
        sender = ZmqSender([address])

        def work() -> None:
            for number in range(count):
                sender.send(messages[number % len(messages)])

        return work

    def receive() -> Work:
        receive_one = zmq_receiver(address)

        def work() -> None:
            for _ in range(count):
                consume(receive_one())

        return work

    return [send, receive]


def pickled(value: object) -> bytes:
    """Return `value` as instance-oriented systems send it."""
    return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
