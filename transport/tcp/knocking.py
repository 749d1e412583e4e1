"""Dialling a host: a socket that connects, and our side of the handshake on it."""

from __future__ import annotations

import secrets
from typing import Final

from ...configs.settings import TransportSettings
from ..links.handshake import NONCE_BYTES, Identity, Initiator
from .connection import TcpConnection, not_connected
from .sockets import Numeric, dialling_socket

_MS: Final = 1_000_000


class Knocker:
    """Knocks at other hosts' doors as one host."""

    def __init__(self, identity: Identity, secret: bytes, settings: TransportSettings) -> None:
        """Know who we are."""
        self._identity = identity
        self._secret = secret
        self._timeout_ns = settings.handshake_timeout_ms * _MS

    def knock(self, host: str, at: Numeric, carriers: int, now_ns: int) -> TcpConnection:
        """Begin a connection to `host`; `carriers` as of `Initiator`.

        Raises LinkBrokenError if the kernel refuses at once.
        """
        family, address = at
        side = Initiator(
            self._identity,
            self._secret,
            secrets.token_bytes(NONCE_BYTES),
            expects=host,
            deadline_ns=now_ns + self._timeout_ns,
            carriers=carriers,
        )
        try:
            sock = dialling_socket(family, address)
        except OSError as error:
            raise not_connected(error) from error
        return TcpConnection(sock, side, host)
