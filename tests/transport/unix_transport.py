"""A transport of operators for tests, over Unix sockets that keep the borders of messages.

The receiver listens at a name that the kernel chooses, and takes messages from all senders that
have connected. For each that it gives back it sends one byte the other way: a sender has no more
messages under way than its queue is long, however much the kernel would take.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Mapping

from whale_ray.transports import Receiver, Sender, Transport, TransportContext

Connection = socket.socket


class UnixSender(Sender):
    def open(self, context: TransportContext, address: bytes) -> None:
        self._room = context.queue_length
        self._bytes = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(address)
        self._socket.setblocking(False)

    def ready_to_send(self) -> bool:
        try:
            while given_back := self._socket.recv(1):
                self._room += len(given_back)
        except BlockingIOError:
            return self._room > 0
        raise ConnectionResetError("the receiver has hung up")

    def put(self, message: memoryview) -> None:
        self._socket.send(message)
        self._room -= 1
        self._bytes += len(message)

    def statistics(self) -> Mapping[str, int]:
        return {"bytes": self._bytes}

    def close(self) -> None:
        self._socket.close()


class UnixReceiver(Receiver):
    def open(self, context: TransportContext) -> bytes:
        self._connections: dict[int, Connection] = {}
        self._taken: deque[Connection] = deque(maxlen=context.queue_length * len(context.senders))
        self._message_bytes = context.message_bytes
        self._poll = select.poll()
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._door.bind("")
        self._door.listen(len(context.senders))
        self._poll.register(self._door, select.POLLIN)
        return self._door.getsockname()

    def available(self) -> bool:
        return bool(self._ready())

    def get(self) -> bytes | None:
        for number in self._ready():
            connection = self._connections.pop(number)
            message = connection.recv(self._message_bytes)
            if message:
                self._connections[number] = connection  # the last one in turn
                self._taken.append(connection)
                return message
            self._poll.unregister(connection)
            connection.close()
        return None

    def _ready(self) -> list[int]:
        """Let in who knocks; return the connections with messages, in turn."""
        ready = {number for number, _ in self._poll.poll(0)}
        if self._door.fileno() in ready:
            connection, _ = self._door.accept()
            connection.setblocking(False)
            self._connections[connection.fileno()] = connection
            self._poll.register(connection, select.POLLIN)
            return self._ready()
        return [number for number in self._connections if number in ready]

    def release_buffer(self, buffer: object) -> None:
        self._taken.popleft().send(b"1", socket.MSG_NOSIGNAL)

    def close(self) -> None:
        self._door.close()
        for connection in self._connections.values():
            connection.close()


def unix_transport(message_bytes: int = 4096, queue_length: int = 16, **options) -> Transport:
    """Return the transport; `options` are those of `Transport`."""
    return Transport(
        "unix-sockets",
        UnixSender,
        UnixReceiver,
        message_bytes=message_bytes,
        queue_length=queue_length,
        **options,
    )


def context(transport: Transport, sender: int | None, senders: int = 1) -> TransportContext:
    """Return the context of a sender, or of the receiver, of edge 0 to the last worker."""
    return TransportContext(
        transport=transport.name,
        job_id="test",
        attempt=0,
        edge=0,
        source_operator="a",
        target_operator="b",
        senders=tuple(range(senders)),
        sender=sender,
        receiver=senders,
        message_bytes=transport.message_bytes,
        queue_length=transport.queue_length,
    )
