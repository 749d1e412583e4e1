"""Sockets for links between hosts: non-blocking, and bound to one address where they listen."""

from __future__ import annotations

import errno
import os
import socket
from typing import Final, TypeAlias

from ...configs.errors import ResourceError
from ..links.reachability import ResolvedAddress

Address: TypeAlias = tuple[str, int]
"""A numeric address, or a name that resolves to one, and a port."""

_BACKLOG: Final = 4096
"""Connections that the kernel holds until they are accepted: enough that hosts of the job find a
place in a flood of others. The kernel has a limit of its own (net.core.somaxconn)."""
NOT_SENT_BYTES_MAX: Final = 1 << 17
"""Bytes that the kernel may keep unsent to another machine: enough to keep a link busy until the
next poll, few enough that a heartbeat, or the first bytes of a stream that has just moved to this
parent, do not wait after megabytes of rows that a slow link takes a while for."""

_WITHIN_BYTES: Final = 1 << 19
_WITHIN_MANY_BYTES: Final = 1 << 21
_MANY_HOSTS: Final = 5


def within_machine_bytes(asked: int, hosts: int) -> int:
    """Return the send buffer of a connection within one machine (the kernel doubles it).

    `asked` is the setting, 0 if that is open; `hosts` those of the job. There is no distance to
    fill within a machine, and several megabytes under way leave the processor's caches: two hosts
    move 1.4 times as much with 512 KiB (`whale-ray bench transport --only tcp`). Many hosts on one
    machine take turns, and have other caches to lose: fewer and longer turns spare them 2/5 of
    their CPU.
    """
    return asked or (_WITHIN_MANY_BYTES if hosts >= _MANY_HOSTS else _WITHIN_BYTES)


def resolve(host: str, address: Address) -> ResolvedAddress:
    """Return family and numeric address of `host`.

    Asks the resolver if the address is a name, which may take its time. Raises ResourceError if
    it knows none.
    """
    name, port = address
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, OverflowError) as error:
        msg = f"host {host!r} cannot be found: {name!r} port {port} does not resolve ({error})"
        raise ResourceError(msg) from error
    family, _, _, _, numeric = found[0]
    return family, (str(numeric[0]), int(numeric[1]))


class Listener:
    """A socket that listens at one address."""

    def __init__(self, host: str, address: str, low: int, high: int) -> None:
        """Listen at `address` on the first free port from `low` to `high`; 0 to 0: on any.

        `host` is the name of this one, for messages. Raises ResourceError if the address does not
        resolve or is none of this machine, or if every port is taken or reserved.
        """
        self._sock = _listening_socket(host, address, low, high)
        numeric, port = self._sock.getsockname()[:2]
        self.address: Final[Address] = (str(numeric), int(port))
        """The numeric address and the port."""
        self._spare_fd = _any_descriptor()

    def fileno(self) -> int:
        """Return its descriptor, to be watched."""
        return self._sock.fileno()

    def accept(self) -> socket.socket | None:
        """Return a connection that waits, None if there is none. Raises OSError if it cannot."""
        try:
            return self._sock.accept()[0]
        except BlockingIOError:
            return None

    def turn_away(self) -> None:
        """Close a connection that waits, though this process may open no more descriptors.

        If it were left waiting, the watcher would report it again and again.
        """
        os.close(self._spare_fd)
        try:
            self._sock.accept()[0].close()
        except OSError:
            return  # its peer has closed it meanwhile
        finally:
            self._spare_fd = _any_descriptor()

    def close(self) -> None:
        """Listen no more."""
        self._sock.close()
        os.close(self._spare_fd)


def _any_descriptor() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _listening_socket(host: str, address: str, low: int, high: int) -> socket.socket:
    """Return a socket that listens; see `Listener`."""
    family, (numeric, _) = resolve(host, (address, 0))
    cannot = f"host {host!r} cannot listen at {address!r}"
    forbidden = 0
    for port in range(low, high + 1):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((numeric, port))
            sock.listen(_BACKLOG)
            sock.setblocking(False)
        except OSError as error:
            sock.close()
            # A port below 1024 may be forbidden; others are not.
            forbidden += error.errno == errno.EACCES
            if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
                foreign = error.errno == errno.EADDRNOTAVAIL
                remedy = "; it needs an address of the machine that it runs on" if foreign else ""
                msg = f"{cannot}: {os.strerror(error.errno or 0)}{remedy}"
                raise ResourceError(msg) from error
            continue
        return sock
    msg = f"{cannot}: {_no_port(low, high, forbidden)}"
    raise ResourceError(msg)


def _no_port(low: int, high: int, forbidden: int) -> str:
    """Say why no port could be had, and what to do; `forbidden` of them are reserved."""
    ports = f"ports {low} to {high}"
    change = "transport.port_range_low and transport.port_range_high"
    if forbidden > high - low:
        return (
            f"this process is not permitted to bind {ports} (those below 1024 are commonly "
            f"reserved); change {change}"
        )
    rest = f" or not permitted ({forbidden} of them)" if forbidden else ""
    return (
        f"{ports} are all taken{rest}; every host and every job on a machine needs a port of its "
        f"own: widen {change}"
    )


def dialling_socket(family: socket.AddressFamily, address: Address) -> socket.socket:
    """Return a socket that is connecting to a numeric address. Raises OSError if it cannot."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    result = sock.connect_ex(address)
    if result not in {0, errno.EINPROGRESS}:
        sock.close()
        raise OSError(result, os.strerror(result))
    return sock


def prepare(sock: socket.socket, silence_ms: int) -> None:
    """Set what a connection of ours needs; `silence_ms` is when a dead peer is given up.

    The sizes of the kernel's buffers are left to it: it fits them to the link, while a size that
    is set stays, too small for a fast or long link, or too large for a slow one.
    """
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, NOT_SENT_BYTES_MAX)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silence_ms)


def fit_within_machine(sock: socket.socket, buffer_bytes: int) -> bool:
    """Give a connection this send buffer if both its ends are on this machine; whether they are.

    There the kernel may also keep as much unsent: nothing is slow but the peer's process.
    """
    try:
        if sock.getpeername()[0] != sock.getsockname()[0]:
            return False
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        unsent_max = max(_WITHIN_MANY_BYTES, 2 * buffer_bytes)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, unsent_max)
    except OSError:
        return False  # already closed by the peer, which the next use of it reports
    return True
