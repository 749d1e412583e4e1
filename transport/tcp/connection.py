"""One TCP connection: from the first byte of the handshake to the last of the link.

Nothing here blocks: a socket that is not ready is not tried again until its watcher reports that it
is. `readable` and `writable` hold these reports; they are cleared when the kernel has refused, or
has moved fewer bytes than were asked for.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from typing import Final, Protocol

from ...configs.errors import ProtocolError
from ..links.handshake import HandshakeRefusedError, Initiator, Responder
from ..links.link import Buffers, Link, LinkBrokenError
from ..links.link_header import HEADER_BYTES
from .sockets import fit_within_machine
from .watch import ENDED, READABLE, WRITABLE

TURN_BYTES: Final = 1 << 20
"""Of one connection in one poll and direction, so that none keeps a relay from the others; more if
it has a larger buffer."""
_AHEAD_BYTES: Final = 1 << 16
_LARGE_BYTES: Final = 1 << 14
_BUFFERS_MAX: Final = 1000  # the kernel takes 1,024 in one call

ECONNECTING: Final = frozenset({errno.EINPROGRESS, errno.EALREADY, errno.ENOTCONN})


def broken_by(error: OSError) -> LinkBrokenError:
    """Return a socket's error as that of its link."""
    name = errno.errorcode.get(error.errno or 0, "EIO")
    return LinkBrokenError(f"the connection broke: {os.strerror(error.errno or 0)}", name)


def not_connected(error: OSError) -> LinkBrokenError:
    """Return the error of a socket that did not connect: "connection refused"."""
    words = os.strerror(error.errno or 0)
    return LinkBrokenError(words[0].lower() + words[1:], broken_by(error).reason)


class Step(Protocol):
    """A further exchange after the handshake, if there is one (verbs/negotiation.py)."""

    @property
    def needs(self) -> int:
        """Bytes that it waits for; 0 once it is over."""
        ...

    def receive(self, content: bytes) -> bytes:
        """Take bytes, at most `needs`; return what must be sent now. Raises ProtocolError."""
        ...

    def check_time(self, now_ns: int) -> None:
        """Raise ProtocolError if the deadline has come."""
        ...

    def ended(self) -> None:
        """Take note that the peer has closed. Raises ProtocolError."""
        ...

    def close(self) -> None:
        """Free what was not taken over."""
        ...


class TcpConnection:
    """A connected (or connecting) socket, the handshake on it, then the link.

    Methods raise ProtocolError (HandshakeRefusedError, LinkBrokenError among them) when the
    connection is of no use any more; the caller then closes it.
    """

    carrier: Final = "tcp"
    way: Final = "tcp"

    def __init__(self, sock: socket.socket, side: Initiator | Responder, host: str = "") -> None:
        """Take over a socket. `host` is whom we dialled."""
        self.sock: Final = sock
        self.fd: Final = sock.fileno()
        self.side: Final = side
        self.host = host
        """The peer: whom we dialled, or, once it has proved it, who dialled us."""
        self.step: Step | None = None
        """The exchange after the handshake, if there is one (`go_on`)."""
        self.link: Link | None = None
        """The link, once the handshake is done (`establish`)."""
        self.readable = False
        self.writable = False
        self.told_of_room = True
        """Whether the watcher reports when there is room to send."""
        self.ended = False
        """Whether the watcher reported that the peer has closed: no further report follows."""
        self.unfinished = False
        """Whether the last turn, of receiving and sending, ended before all was done."""
        self.connected = isinstance(side, Responder)
        self._pending: Buffers = []
        self._ahead = memoryview(b"")
        self._filled = 0  # bytes of `_ahead` that are received and not looked at
        self._places: list[memoryview] = []  # of the payload that is being received
        self._missing = 0  # bytes of it that are still to come
        self._length = 0  # bytes of it in all
        self._large = False
        self._turn_bytes = TURN_BYTES
        if isinstance(side, Initiator):
            self._pending.append(side.hello)

    @property
    def dialled(self) -> bool:
        """Whether this side dialled: the peer is a parent."""
        return isinstance(self.side, Initiator)

    @property
    def needs_room(self) -> bool:
        """Whether the watcher is to say when there is room to send."""
        return not self.writable

    def note(self, events: int) -> None:
        """Take note of a report of the watcher."""
        if events & READABLE:
            self.readable = True
        if events & WRITABLE:
            self.writable = True
        if events & ENDED:
            self.ended = True

    def establish(self, link: Link, buffer_bytes: int) -> None:
        """Carry `link` from now on; `buffer_bytes` as of `within_machine_bytes`."""
        self.link = link
        link.traffic = link.peer.counters.carried_by(self.carrier)
        self.host = link.peer.host
        if fit_within_machine(self.sock, buffer_bytes):
            self._turn_bytes = max(TURN_BYTES, 2 * buffer_bytes)
        self._ahead = memoryview(bytearray(_AHEAD_BYTES))

    # --- handshake -----------------------------------------------------------------------------

    def go_on(self, step: Step, first: bytes) -> None:
        """Begin a further exchange after the handshake; `first` is sent now."""
        self.step = step
        self._pending.append(first)

    def prove(self, now_ns: int) -> bool:
        """Continue the handshake or the exchange after it; return whether anything happened."""
        step = self.step or self.side
        step.check_time(now_ns)
        if not self.connected and not self._finish_connecting():
            return False
        moved = self._flush() > 0
        while self.readable and step.needs:
            try:
                data = self.sock.recv(step.needs)
            except BlockingIOError:
                self.readable = False
                break
            except OSError as error:
                raise broken_by(error) from error
            if not data:
                step.ended()
            moved = True
            try:
                answer = step.receive(data)
            except HandshakeRefusedError as refusal:
                self._send_last(refusal.farewell)
                raise
            if answer:
                self._pending.append(answer)
                self._flush()
        return moved

    def _finish_connecting(self) -> bool:
        if not self.writable:
            return False
        code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            raise not_connected(OSError(code, os.strerror(code)))
        try:
            self.sock.getpeername()
        except OSError as error:
            if error.errno in ECONNECTING:
                self.writable = False
                return False
            raise not_connected(error) from error
        self.connected = True
        return True

    def _send_last(self, content: bytes) -> None:
        """Try once to send `content`, which is not needed for anything."""
        if content and not self._pending:
            try:
                self.sock.send(content)
            except OSError:
                return  # the peer will find out by the end of the connection

    # --- sending -------------------------------------------------------------------------------

    def send(self, link: Link, now_ns: int) -> bool:
        """Send what the link has, until it has nothing more, or the socket or the turn is full."""
        moved = 0
        while self.writable and moved < self._turn_bytes:
            if not self._pending:
                link.outbound(self._pending, self._turn_bytes - moved, now_ns)
                if not self._pending:
                    break
            sent = self._flush()
            moved += sent
            if self._pending and not self.writable:
                link.peer.counters.socket_full += 1
        self.unfinished = self.readable or (self.writable and moved >= self._turn_bytes)
        return moved > 0

    def _flush(self) -> int:
        """Send what is pending as far as the socket takes it; return how many bytes."""
        moved = 0
        while self._pending and self.writable:
            try:
                sent = self.sock.sendmsg(
                    self._pending
                    if len(self._pending) <= _BUFFERS_MAX
                    else self._pending[:_BUFFERS_MAX]
                )
            except BlockingIOError:
                self.writable = False
                break
            except OSError as error:
                raise broken_by(error) from error
            moved += sent
            self._drop_sent(sent)
        return moved

    def _drop_sent(self, sent: int) -> None:
        """Drop from the pending buffers what was sent; not writable if the kernel took less."""
        pending = self._pending
        offered = min(len(pending), _BUFFERS_MAX)
        whole = 0
        while whole < offered and sent >= (size := len(pending[whole])):
            sent -= size
            whole += 1
        if whole < offered:
            pending[whole] = memoryview(pending[whole])[sent:]
            self.writable = False
        del pending[:whole]

    @property
    def unsent(self) -> bool:
        """Whether bytes wait for the socket."""
        return bool(self._pending)

    @property
    def settled(self) -> bool:
        """Whether everything that precedes a link is sent and received."""
        over = self.side.done if self.step is None else not self.step.needs
        return over and not self._pending

    def send_goodbye(self, link: Link) -> None:
        """Tell the peer that this side closes on purpose, if that can be done at once."""
        try:
            if self._flush() >= 0 and not self._pending:
                link.goodbye(self._pending)
                self._flush()
        except ProtocolError:
            return  # broken: it will find out

    # --- receiving -----------------------------------------------------------------------------

    def receive(self, link: Link, now_ns: int) -> bool:
        """Receive until there is nothing more, or the turn is full; payloads go in place."""
        moved = 0
        while self.readable and moved < self._turn_bytes:
            # A large payload is most likely followed by another one, which is to be received in its
            # ring without a copy: then only a header is read ahead. Small messages come many at a
            # time.
            room = HEADER_BYTES if self._large else _AHEAD_BYTES
            ahead = self._ahead[self._filled : max(room, self._filled + HEADER_BYTES)]
            self._places.append(ahead)
            wanted = self._missing + len(ahead)
            try:
                count = self.sock.recvmsg_into(self._places)[0]
            except BlockingIOError:
                self._places.pop()
                self.readable = False
                break
            except OSError as error:
                raise broken_by(error) from error
            self._places.pop()
            if count == 0:
                msg = f"host {self.host!r} closed the connection"
                raise LinkBrokenError(msg, "closed by peer")
            if count < wanted:
                self.readable = self.ended  # else the watcher will say when there is more
            moved += count
            link.heard(now_ns)
            self._take(link, count)
        return moved > 0

    def _take(self, link: Link, count: int) -> None:
        """Handle `count` received bytes: first those of the payload, then those read ahead."""
        if self._missing:
            if count < self._missing:
                self._missing -= count
                self._places = behind(self._places, count)
                link.progress(self._length - self._missing)
                return
            count -= self._missing
            self._missing = 0
            self._places = []
            link.end()
        self._filled += count
        start = 0
        while self._filled - start >= HEADER_BYTES:
            length, places = link.begin(self._ahead[start : start + HEADER_BYTES])
            start += HEADER_BYTES
            self._large = length >= _LARGE_BYTES
            if length == 0:
                continue
            here = min(length, self._filled - start)
            rest = fill(places, self._ahead[start : start + here])
            start += here
            if here < length:
                self._places, self._missing, self._length = rest, length - here, length
                break
            link.end()
        left = self._filled - start
        if start and left:
            self._ahead[:left] = bytes(self._ahead[start : self._filled])
        self._filled = left

    def divert(self, link: Link, stream: int) -> None:
        """Have the rest of a payload of `stream`, if one is coming, go to waste."""
        places = link.divert(stream, self._missing) if self._missing else None
        if places is not None:
            self._places = list(places)

    def close(self) -> None:
        """Close the socket; again does nothing."""
        if self.step is not None:
            self.step.close()
        self._pending.clear()
        self._places.clear()
        self.sock.close()


def behind(places: Sequence[memoryview], count: int) -> list[memoryview]:
    """Return what is left of `places` after their first `count` bytes."""
    rest = []
    for place in places:
        if count >= len(place):
            count -= len(place)
        else:
            rest.append(place[count:])
            count = 0
    return rest


def fill(places: Sequence[memoryview], content: memoryview) -> list[memoryview]:
    """Copy `content` into the first of `places`; return what is left of them."""
    done = 0
    for place in places:
        part = content[done : done + len(place)]
        if not part:
            break
        place[: len(part)] = part
        done += len(part)
    return behind(places, done)
