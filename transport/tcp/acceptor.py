"""Where a host listens, and the half-open connections: accepted, and not yet proved who they are.

There are a bounded number of places for them. When all are taken, the next one to come evicts the
oldest that has said nothing authentic: a host of the job needs one round trip to do so, so that a
flood of strangers evicts strangers. One that has said an authentic HELLO keeps its place until all
others are gone. That alone proves little, as a HELLO may be a recording, but strangers have none.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Collection
from typing import Final, TypeAlias

from ...configs.errors import ProtocolError
from ...configs.settings import TransportSettings
from ...configs.units import NS_PER_MS
from ..links.handshake import NONCE_BYTES, Identity, Responder
from ..links.link import LinkBrokenError
from .connection import TcpConnection
from .sockets import Address, Listener

Begin: TypeAlias = Callable[[TcpConnection], None]
"""Takes a connection over."""
Prove: TypeAlias = Callable[[TcpConnection, int], bool]
"""Carries the handshake of a connection on, at a time in ns."""
Refuse: TypeAlias = Callable[[TcpConnection, ProtocolError, int], None]
"""Closes a connection that did not get through its handshake."""

_ACCEPTS_MAX: Final = 16


class Acceptor:
    """The listening socket, and a bounded number of half-open connections."""

    def __init__(
        self,
        identity: Identity,
        secret: bytes,
        settings: TransportSettings,
        hosts: Collection[str] | None,
        carriers: int,
    ) -> None:
        """Do not listen yet; `hosts` are the names that may connect, None for all of the job.

        `carriers` as of `Responder`.
        """
        self._identity = identity
        self._secret = secret
        self._settings = settings
        self._carriers = carriers
        self._hosts = None if hosts is None else frozenset(hosts)
        self._listener: Listener | None = None
        self._unknown: dict[int, TcpConnection] = {}  # by descriptor, the oldest first
        self._introduced: dict[int, TcpConnection] = {}
        places = settings.half_open_max
        self.accepts_max: Final = max(1, min(_ACCEPTS_MAX, places // 4))
        """Connections to accept in one poll, so that the links get their turn in a flood, and a
        host of the job has several polls to say its HELLO before it could be evicted."""
        self._places = places

    def listen(self, address: str) -> int:
        """Listen at `address`; return the descriptor. See `TcpEndpoint.listen` for the errors."""
        if self._listener is not None:
            msg = "this endpoint listens already"
            raise RuntimeError(msg)
        low, high = self._settings.port_range_low, self._settings.port_range_high
        self._listener = Listener(self._identity.host, address, low, high)
        return self._listener.fileno()

    @property
    def listener(self) -> Listener:
        """The listening socket."""
        assert self._listener is not None, "listen() comes first"
        return self._listener

    @property
    def address(self) -> Address:
        """The numeric address and the port."""
        return self.listener.address

    def accept(self, now_ns: int, begin: Begin, prove: Prove, refuse: Refuse) -> bool:
        """Accept connections that wait, a few in a call; return whether there was any.

        Raises OSError if this process cannot.
        """
        for accepted in range(self.accepts_max):
            sock = self.listener.accept()
            if sock is None:
                return accepted > 0
            while self.full:
                self._make_room(now_ns, prove, refuse)
            connection = self.enter(sock, now_ns)
            begin(connection)
            _prove_unprompted(connection, now_ns, prove)  # its HELLO may have come with it
        return True

    def _make_room(self, now_ns: int, prove: Prove, refuse: Refuse) -> None:
        """Evict the half-open connection that is next, unless it has just made progress."""
        connection = self.next_to_go()
        introduced = connection.side.introduced
        _prove_unprompted(connection, now_ns, prove)
        if connection in self and connection.side.introduced == introduced:
            msg = "too many connections waited for their proof, this one the longest"
            refuse(connection, LinkBrokenError(msg, "evicted"), now_ns)

    def enter(self, sock: socket.socket, now_ns: int) -> TcpConnection:
        """Give an accepted connection a place, and a limited time to prove itself."""
        side = Responder(
            self._identity,
            self._secret,
            secrets.token_bytes(NONCE_BYTES),
            accept=self._judge,
            deadline_ns=now_ns + self._settings.handshake_timeout_ms * NS_PER_MS,
            carriers=self._carriers,
        )
        connection = TcpConnection(sock, side)
        self._unknown[connection.fd] = connection
        return connection

    def _judge(self, peer: Identity) -> str | None:
        if self._hosts is None or peer.host in self._hosts:
            return None
        return "no host of this job has that name"

    def leave(self, fd: int) -> None:
        """Free the place of the connection with that descriptor; nothing if it has none."""
        self._unknown.pop(fd, None)
        self._introduced.pop(fd, None)

    def __len__(self) -> int:
        """Return how many places are taken."""
        return len(self._unknown) + len(self._introduced)

    def __contains__(self, connection: TcpConnection) -> bool:
        """Return whether a connection has a place."""
        return connection.fd in self._unknown or connection.fd in self._introduced

    @property
    def full(self) -> bool:
        """Whether a connection has to be evicted before another gets a place."""
        return len(self) >= self._places

    def next_to_go(self) -> TcpConnection:
        """Return the oldest that has said no authentic HELLO; if all have, the oldest."""
        while self._unknown:
            fd, connection = next(iter(self._unknown.items()))
            if not connection.side.introduced:
                return connection
            self._introduced[fd] = self._unknown.pop(fd)
        return next(iter(self._introduced.values()))

    def close(self) -> None:
        """Listen no more, and free all places."""
        self._unknown.clear()
        self._introduced.clear()
        if self._listener is not None:
            self._listener.close()


def _prove_unprompted(connection: TcpConnection, now_ns: int, prove: Prove) -> None:
    """Carry a handshake on whether or not the watcher has said that something is there."""
    connection.readable = connection.writable = True
    prove(connection, now_ns)
