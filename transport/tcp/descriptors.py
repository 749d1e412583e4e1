"""The file descriptors of one endpoint, by connection, and the watcher's reports on them."""

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
        """Begin without connections."""
        self._watch = watch
        self._connections: dict[int, Connection] = {}
        self._bells: dict[int, VerbsConnection] = {}

    def __contains__(self, connection: Connection) -> bool:
        """Return whether `connection` has not been dropped."""
        return connection.fd in self._connections

    def __iter__(self) -> Iterator[Connection]:
        """Iterate over connections; some may be dropped meanwhile."""
        return iter(tuple(self._connections.values()))

    @property
    def bells(self) -> tuple[VerbsConnection, ...]:
        """The connections that report completions only after they were armed."""
        return tuple(self._bells.values())

    def add(self, connection: TcpConnection) -> None:
        """Watch a new connection."""
        self._connections[connection.fd] = connection
        self._watch.add(connection.fd)

    def taken_over(self, connection: Connection) -> None:
        """Replace the connection of a socket by the one that carries its link from now on."""
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
        """Tell connections that they are ready; return whether any waits to be accepted."""
        dialled = False
        for fd, events in self._watch.ready():
            connection = self._connections.get(fd)
            if connection is not None:
                connection.note(events)
            elif fd in self._bells:
                self._bells[fd].take_event()
            else:
                dialled = True
        return dialled

    def mind_room(self, connection: Connection) -> None:
        """Have the watcher report room to send if, and only if, the connection waits for it."""
        wanted = connection.needs_room
        if wanted is not connection.told_of_room and connection in self:
            connection.told_of_room = wanted
            self._watch.watch_for_room(connection.fd, wanted=wanted)
