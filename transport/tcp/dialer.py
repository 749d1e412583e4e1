"""Dialling a host: a socket that connects, and this host's side of the handshake on it."""

from __future__ import annotations

import secrets

from ...configs.settings import TransportSettings
from ...configs.units import NS_PER_MS
from ..links.handshake import NONCE_BYTES, Identity, Initiator
from ..links.reachability import ResolvedAddress
from .connection import TcpConnection, not_connected
from .sockets import dialling_socket


class Dialer:
    """Dials other hosts in the name of this one."""

    def __init__(self, identity: Identity, secret: bytes, settings: TransportSettings) -> None:
        """Dial as `identity`, and prove it by the job's `secret`."""
        self._identity = identity
        self._secret = secret
        self._timeout_ns = settings.handshake_timeout_ms * NS_PER_MS

    def dial(
        self, host: str, address: ResolvedAddress, carriers: int, now_ns: int
    ) -> TcpConnection:
        """Begin a connection to `host`; `carriers` as of `Initiator`.

        Raises LinkBrokenError if the kernel refuses at once.
        """
        family, numeric = address
        side = Initiator(
            self._identity,
            self._secret,
            secrets.token_bytes(NONCE_BYTES),
            expects=host,
            deadline_ns=now_ns + self._timeout_ns,
            carriers=carriers,
        )
        try:
            sock = dialling_socket(family, numeric)
        except OSError as error:
            raise not_connected(error) from error
        return TcpConnection(sock, side, host)
