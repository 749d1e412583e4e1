"""A parent that serves a child, and plain sockets that connect to it, for tests."""

from __future__ import annotations

import contextlib
import secrets
import socket

from tests.transport.links import SECRET, Hosts, Source
from whale_ray.transport.links import handshake
from whale_ray.transport.links.handshake import Identity, Initiator


class Service:
    """A parent that serves a child; `goes_on` checks that it still does."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self.parent = hosts.add("parent")
        hosts.add("child", listens=False)
        hosts.dial("child", "parent")
        self._source = Source(400, lambda n: n * 37 % 1000)
        (self._target,) = hosts.stream(self._source, "parent", ["child"])

    def step(self) -> None:
        self._source.step()
        self._target.step()

    def goes_on(self) -> None:
        self._hosts.until(lambda: self._target.over, self.step)
        assert self._target.received == self._source.all


class Stranger:
    """A plain socket connected to the parent."""

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self.sock = socket.create_connection(hosts.addresses["parent"])
        self.sock.setblocking(False)
        self.got = b""
        self.ended = False

    def send(self, content: bytes) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            self.sock.send(content)

    def hear(self) -> None:
        """Read all available bytes."""
        try:
            while content := self.sock.recv(1 << 16):
                self.got += content
            self.ended = True
        except BlockingIOError:
            return
        except ConnectionError:
            self.ended = True

    def until_ended(self) -> None:
        """Go on until the parent has closed the connection."""
        self._hosts.until(lambda: self.ended, self.hear)
        self.sock.close()

    def introduce(self, host: str = "child-2", secret: bytes = SECRET) -> None:
        """Complete the handshake."""
        side = Initiator(
            Identity("job", 1, 1, host), secret, secrets.token_bytes(handshake.NONCE_BYTES)
        )
        self.send(side.hello)

        def answer() -> None:
            self.hear()
            part, self.got = self.got[: side.needs], self.got[side.needs :]
            self.send(side.receive(part))

        self._hosts.until(lambda: side.done, answer)
