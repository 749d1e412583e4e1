"""Makes and closes the connections of one endpoint: sockets, and the RDMA verbs beside them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from ...configs.settings import TransportSettings
from ..links.handshake import Identity
from ..links.link import Link
from ..links.reachability import ResolvedAddress
from ..verbs.carriers import Carriers
from .acceptor import Acceptor
from .connection import TcpConnection
from .descriptors import Connection, Descriptors
from .dialer import Dialer
from .sockets import prepare, within_machine_bytes
from .watch import SocketWatch


class TcpConnector:
    """What a `LinkManager` asks for connections."""

    def __init__(
        self,
        identity: Identity,
        secret: bytes,
        settings: TransportSettings,
        hosts: Collection[str] | None,
        carriers: Carriers,
        watch: SocketWatch,
    ) -> None:
        """Do not listen yet; `hosts` as of `TcpEndpoint`."""
        self._settings = settings
        self._carriers = carriers
        self._dialer = Dialer(identity, secret, settings)
        self.acceptor: Final = Acceptor(identity, secret, settings, hosts, carriers.offered)
        self.descriptors: Final = Descriptors(watch)
        self._buffer_bytes = within_machine_bytes(settings.link_buffer_bytes, len(hosts or ()))

    def connect(self, host: str, address: ResolvedAddress, now_ns: int) -> TcpConnection:
        """Begin a connection to `host`. Raises LinkBrokenError if the kernel refuses at once."""
        carriers = self._carriers.offered_to(host, now_ns)
        connection = self._dialer.dial(host, address, carriers, now_ns)
        self.watch(connection)
        return connection

    def watch(self, connection: TcpConnection) -> None:
        """Prepare the socket of a new connection, and watch it."""
        prepare(connection.sock, self._settings.silence_timeout_ms)
        self.descriptors.add(connection)

    def take_over(self, proved: TcpConnection, now_ns: int) -> Connection | None:
        """Return what carries the link; see `Carriers.take_over`."""
        return self._carriers.take_over(proved, now_ns)

    def establish(self, proved: TcpConnection, connection: Connection, link: Link) -> None:
        """Have `connection` carry `link` from now on, in the place of `proved`."""
        self.acceptor.leave(proved.fd)
        connection.establish(link, self._buffer_bytes)
        self.descriptors.taken_over(connection)

    def link_broke(self, connection: Connection, link: Link, reason: str, now_ns: int) -> None:
        """Take note why a link broke: one over verbs may have to go over TCP for a while."""
        if connection.carrier == "verbs":
            self._carriers.broken(link.peer.host, reason, now_ns)

    def drop(self, connection: Connection) -> None:
        """Close a connection."""
        self.acceptor.leave(connection.fd)
        self.descriptors.drop(connection)
        connection.close()
