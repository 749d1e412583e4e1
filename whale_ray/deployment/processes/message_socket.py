"""Messages over a stream socket, between a driver and the process of a member.

A message is its length, 8 bytes little-endian, and its bytes.
"""

from __future__ import annotations

import socket
import struct
from collections import deque
from contextlib import suppress
from typing import Final

_LENGTH: Final = struct.Struct("<Q")
_UNSENT_MAX: Final = 8192
"""Lengths and messages that wait for a peer that does not read; an event causes a few at most."""


class MessageSocket:
    """Blocks until the peer sends or takes; one thread may send while another one receives."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._socket = connection

    def send(self, message: bytes) -> None:
        """Send a message; raises OSError if the peer is gone."""
        # In one call: else the peer wakes for the length, and takes this thread's processor.
        self._socket.sendall(_LENGTH.pack(len(message)) + message)

    def receive(self) -> bytearray:
        """Return the next message; raises EOFError, or OSError, if the peer is gone."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        return self._exactly(length)

    def _exactly(self, nbytes: int) -> bytearray:
        found = bytearray(nbytes)
        rest = memoryview(found)
        while rest:
            count = self._socket.recv_into(rest)
            if count == 0:
                raise EOFError
            rest = rest[count:]
        return found

    def close(self) -> None:
        """Close the socket, and end waits on both sides. A second call does nothing."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # closing alone would not end a wait
        self._socket.close()


class PatientSocket:
    """Never blocks: what the peer does not take is kept here, in order, until it does."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._unsent: deque[memoryview] = deque(maxlen=_UNSENT_MAX)
        self._length: int | None = None  # of the message that is being read, once it is known
        self._begin(_LENGTH.size)

    def _begin(self, nbytes: int) -> None:
        """Read this many bytes next."""
        self._incoming = bytearray(nbytes)
        self._rest = memoryview(self._incoming)

    def fileno(self) -> int:
        """Return the descriptor, to poll for reading, and for writing while `has_unsent`."""
        return self._socket.fileno()

    @property
    def has_unsent(self) -> bool:
        """Whether bytes wait here for the peer."""
        return bool(self._unsent)

    def send(self, message: bytes) -> None:
        """Send a message, now or by `flush`; nothing is sent to a peer that is gone."""
        assert len(self._unsent) < _UNSENT_MAX - 1, (
            "messages that are repeated must not be sent while this waits"
        )
        self._unsent += (memoryview(_LENGTH.pack(len(message))), memoryview(message))
        self.flush()

    def flush(self) -> None:
        """Send what waits, as far as the peer takes it."""
        try:
            while self._unsent:
                first = self._unsent[0]
                sent = self._socket.send(first)
                if sent < len(first):
                    self._unsent[0] = first[sent:]
                else:
                    self._unsent.popleft()
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()  # `receive` reports that the peer is gone

    def receive(self) -> bytearray | None:
        """Return the next message, None while it is incomplete.

        Raises EOFError, or OSError, if the peer is gone. More messages may follow: the descriptor
        is readable then.
        """
        if self._length is None:
            header = self._whole()
            if header is None:
                return None
            (self._length,) = _LENGTH.unpack(header)
            self._begin(self._length)
        message = self._whole()
        if message is not None:
            self._length = None
            self._begin(_LENGTH.size)
        return message

    def _whole(self) -> bytearray | None:
        """Continue to read; return what is being read once it is complete."""
        while self._rest:
            try:
                count = self._socket.recv_into(self._rest)
            except BlockingIOError:
                return None
            if count == 0:
                raise EOFError
            self._rest = self._rest[count:]
        return self._incoming

    def close(self) -> None:
        """Close the socket; a second call does nothing."""
        self._socket.close()
