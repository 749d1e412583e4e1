"""The descriptors of one endpoint: whose they are, and what the watcher has seen at them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from ..verbs.connection import VerbsConnection
from .connection import TcpConnection
from .watch import SocketWatch

Connection: TypeAlias = TcpConnection | VerbsConnection


class Descriptors:
    """Sockets, and the completions of queue pairs."""

    def __init__(self, watch: SocketWatch) -> None:
        """Have none yet."""
        self._watch = watch
        self._connections: dict[int, Connection] = {}
        self._bells: dict[int, VerbsConnection] = {}

    def __contains__(self, connection: Connection) -> bool:
        """Return whether it has not been dropped."""
        return connection.fd in self._connections

    def __iter__(self) -> Iterator[Connection]:
        """Iterate over connections; some may be dropped meanwhile."""
        return iter(tuple(self._connections.values()))

    @property
    def bells(self) -> tuple[VerbsConnection, ...]:
        """Those that must be armed to tell of completions."""
        return tuple(self._bells.values())

    def add(self, connection: TcpConnection) -> None:
        """Watch a new connection."""
        self._connections[connection.fd] = connection
        self._watch.add(connection.fd)

    def taken_over(self, connection: Connection) -> None:
        """Take note of what carries the link behind a socket from now on."""
        self._connections[connection.fd] = connection
        if isinstance(connection, VerbsConnection):
            self._bells[connection.completions_fd] = connection
            self._watch.add(connection.completions_fd)

    def drop(self, connection: Connection) -> None:
        """Watch a connection no more; before it is closed."""
        del self._connections[connection.fd]
        self._watch.remove(connection.fd)
        if isinstance(connection, VerbsConnection):
            del self._bells[connection.completions_fd]
            self._watch.remove(connection.completions_fd)

    def collect(self) -> bool:
        """Note what is ready; return whether somebody waits at a listening socket."""
        somebody_waits = False
        for fd, events in self._watch.ready():
            connection = self._connections.get(fd)
            if connection is not None:
                connection.note(events)
            elif fd in self._bells:
                self._bells[fd].take_event()
            else:
                somebody_waits = True
        return somebody_waits

    def mind_room(self, connection: Connection) -> None:
        """Have the watcher tell of room in a socket to who waits for it, and to nobody else."""
        wanted = connection.needs_room
        if wanted is not connection.told_of_room and connection in self:
            connection.told_of_room = wanted
            self._watch.tell_of_room(connection.fd, wanted=wanted)
