"""Backends of the transports that the channels are compared with: plain sockets and ZeroMQ.

Both send the prepared message as it lies in memory, to each reader over a connection of its own.
"""

from __future__ import annotations

import os
import socket
from functools import partial
from itertools import count as count_up
from itertools import cycle
from multiprocessing import Pipe
from typing import Any, Final, Literal

import numpy as np

from ...configs.settings import TransportSettings
from ...transport.segment import Bytes
from ...transport.tcp.sockets import prepare
from .backends import MessageLoad, ReceiveAll
from .peers.sockets import zmq_address, zmq_pair_socket
from .processes import ClosedAtExit

_ADDRESS: Final = "127.0.0.1"
_SILENCE_MS: Final = TransportSettings().silence_timeout_ms
_NO_COPIES_FROM_BYTES: Final = 64 << 10
_NUMBERS = count_up()


class SocketBackend(ClosedAtExit):
    """Loopback TCP sockets in a plain Python loop, with the options that links set.

    Except the send buffer, which the kernel sizes: that is fastest here. With `copies` the message
    is copied to successive places of a buffer, as in a ring, before it is sent, and received
    likewise.
    """

    def __init__(self, load: MessageLoad, *, copies: bool = False) -> None:
        """Listen."""
        self._load = load
        self._places = load.memory_bytes // load.nbytes if copies else 0
        self._listener = socket.create_server((_ADDRESS, 0), backlog=load.readers)

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def sender(self) -> PlainSender:
        """See `Backend.sender`."""
        accepted = [self._listener.accept()[0] for _ in range(self._load.readers)]
        sockets = [_prepared(sock) for sock in accepted]
        return PlainSender(sockets, self._load.content(), _places(self._places, self._load))

    def receiver(self, reader: int) -> ReceiveAll:
        """See `Backend.receiver`."""
        del reader  # all sockets are alike
        sock = socket.create_connection(self._listener.getsockname())
        places = _places(max(1, self._places), self._load)
        return partial(_receive_plainly, _prepared(sock), self._load, places)


class PlainSender:
    """One socket for each reader."""

    def __init__(self, sockets: list[socket.socket], content: Bytes, places: list[Bytes]) -> None:
        """Send `content`, copied to `places` first if there are any."""
        self._sockets = sockets
        self._content = content
        self._places = cycle(places)
        self._copies = bool(places)

    def send(self, count: int) -> None:
        """See `MessageSender.send`."""
        for _ in range(count):
            message = self._content
            if self._copies:
                message = next(self._places)
                message[:] = self._content
            for sock in self._sockets:
                sock.sendall(message.data)

    def finish(self) -> None:
        """See `MessageSender.finish`."""
        for sock in self._sockets:
            sock.shutdown(socket.SHUT_WR)


def _prepared(sock: socket.socket) -> socket.socket:
    prepare(sock, _SILENCE_MS)
    sock.setblocking(True)
    return sock


def _places(count: int, load: MessageLoad) -> list[Bytes]:
    return list(np.zeros((count, load.nbytes), np.uint8))


def _receive_plainly(sock: socket.socket, load: MessageLoad, places: list[Bytes]) -> int:
    nbytes, consume = load.nbytes, load.consume
    count = 0
    while True:
        message = places[count % len(places)]
        memory = message.data
        have = sock.recv_into(memory)
        if have == 0:
            return count
        while have < nbytes:
            have += sock.recv_into(memory[have:])
        consume(message)
        count += 1


class ZmqBackend(ClosedAtExit):
    """PAIR sockets over ipc or tcp; from 64 KiB on without copies on either side."""

    def __init__(self, over: Literal["ipc", "tcp"], load: MessageLoad) -> None:
        """Choose the address."""
        self._load = load
        self._over = over
        self._name = f"backend{os.getpid()}-{next(_NUMBERS)}"
        self._pipes = [Pipe(duplex=False) for _ in range(load.readers)]

    def close(self) -> None:
        """Close the pipes through which the sender sent its address."""
        for ends in self._pipes:
            for end in ends:
                end.close()

    def sender(self) -> ZmqBackendSender:
        """See `Backend.sender`."""
        sockets = [self._socket() for _ in self._pipes]
        for number, (sock, (_, tell)) in enumerate(zip(sockets, self._pipes, strict=True)):
            sock.bind(
                f"tcp://{_ADDRESS}:*"
                if self._over == "tcp"
                else zmq_address(f"{self._name}-{number}")
            )
            tell.send(sock.last_endpoint.rstrip(b"\0"))
        for sock in sockets:
            sock.send(b"")  # returns once the reader has connected
        return ZmqBackendSender(sockets, self._load.content())

    def receiver(self, reader: int) -> ReceiveAll:
        """See `Backend.receiver`."""
        sock = self._socket()
        sock.connect(self._pipes[reader][0].recv())
        sock.recv()
        return partial(self._receive, sock)

    def _socket(self) -> Any:
        # As many messages may wait as fit into the ring, not thousands of large ones.
        return zmq_pair_socket(max(2, min(1000, self._load.memory_bytes // self._load.nbytes)))

    def _receive(self, sock: Any) -> int:
        count, consume = 0, self._load.consume
        copies = self._load.nbytes < _NO_COPIES_FROM_BYTES
        while True:
            received = sock.recv(copy=copies)
            message = np.frombuffer(received if copies else received.buffer, np.uint8)
            if message.size == 0:
                return count
            consume(message)
            count += 1


class ZmqBackendSender:
    """One socket for each reader."""

    def __init__(self, sockets: list[Any], content: Bytes) -> None:
        """Send `content`."""
        self._sockets = sockets
        self._content = content.data
        self._copies = content.size < _NO_COPIES_FROM_BYTES

    def send(self, count: int) -> None:
        """See `MessageSender.send`."""
        for _ in range(count):
            for sock in self._sockets:
                sock.send(self._content, copy=self._copies)

    def finish(self) -> None:
        """See `MessageSender.finish`."""
        for sock in self._sockets:
            sock.send(b"")
