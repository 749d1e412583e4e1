"""A link: the protocol of one authenticated connection, as a state machine.

Pure: no socket, no clock. Its connection asks `outbound` for buffers and sends them in that order.
It hands each received header to `begin`, puts the payload where that says, and calls `end` when all
of it is there; it may call `progress` for parts of it.

- All streams to a child share the connection round-robin, a slice each, so that none waits for
  another; a stream whose child has no room is skipped. Short messages (grants, heartbeats, control)
  go first.
- Data counts as received while its message is still coming, by lines of 64 bytes.
- Messages are numbered. A gap or a repeated number breaks the link, although TCP should let neither
  through, and streams resume on the next link where they were (streams.py). The loss of the last
  message shows at the next heartbeat.
- A link breaks when nothing at all is received for a time. A slow reader does not break it: it
  stops only its own stream, for hours if need be.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from ...configs.errors import ProtocolError
from ...configs.settings import TransportSettings
from ...configs.units import NS_PER_MS
from ..ring_layout import FRAME_ALIGNMENT
from .attached import Incoming
from .control import ControlMessage
from .link_header import (
    CAPACITY_BITS,
    CONTROL,
    DATA,
    DATA_BYTES_MAX,
    ECHO,
    FINISHED,
    GOODBYE,
    GRANT,
    HEADER_BYTES,
    HEARTBEAT,
    KIND_NAMES,
    NO_STREAM,
    POSITION_MAX,
    SEQUENCE_MASK,
    SUBSCRIBE,
    LinkHeader,
    decode,
    encode,
)
from .peer import Peer
from .turns import Turns

Buffers: TypeAlias = list["memoryview | bytes"]


class Role(enum.Enum):
    """What the peer is on this link; it is always the child that dials."""

    PARENT = "parent"
    CHILD = "child"


_CLOSED_ON_PURPOSE: Final = "closed on purpose"
"""The reason of a link that the other side has hung up, as it needs it no more, or ends."""


class LinkBrokenError(ProtocolError):
    """The link cannot continue; `reason` is a word or two, to be counted by."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message, reason)
        self.message = message
        self.reason = reason

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class LinkTimes:
    """How often a link is heard and how long it may be silent, in ns."""

    heartbeat_ns: int
    silence_ns: int

    @classmethod
    def of(cls, settings: TransportSettings) -> LinkTimes:
        """Take the times from the settings."""
        return cls(
            settings.heartbeat_interval_ms * NS_PER_MS, settings.silence_timeout_ms * NS_PER_MS
        )


class Link:
    """One side of one connection to a peer."""

    def __init__(
        self, peer: Peer, role: Role, times: LinkTimes, now_ns: int, *, primary: bool = True
    ) -> None:
        """Begin on a fresh connection; `role` is the peer's.

        `primary`: whether control messages go this way, where two links lead to one peer. Without
        a primary link, they take the other one.
        """
        self.peer: Final = peer
        self.role: Final = role
        self.traffic = peer.counters.carried_by("")
        """Where it is counted what the link carries; its connection names the carrier."""
        self._times = times
        self._sent = 0  # messages
        self._received = 0
        self._heard_ns = now_ns
        self._heartbeat_ns = now_ns  # when the next one is due
        self._echo: int | None = None
        self._acknowledged_taken = -1
        self.turns = Turns()
        self._header: LinkHeader | None = None
        self._counted = 0  # bytes of its payload that are counted as received
        self._content = bytearray()
        self._incoming: Incoming | None = None  # whose data they are
        self._waste = memoryview(b"")
        self.wasted = False
        """Whether the payload that is being received will be dropped."""
        self.over = False
        """Whether the connection is gone: nothing may be sent or received any more."""
        peer.counters.connections += 1
        if primary:
            self._speak()

    def _speak(self) -> None:
        """Send control messages by this link from now on, first those that may not have arrived."""
        self.peer.speaker = self
        self.peer.outbox.reconnected()

    # --- time ----------------------------------------------------------------------------------

    def heard(self, now_ns: int) -> None:
        """Take note that bytes of any kind arrived."""
        self._heard_ns = now_ns

    def check_silence(self, now_ns: int) -> None:
        """Raise LinkBrokenError if nothing was heard for too long."""
        silent_ns = now_ns - self._heard_ns
        if silent_ns >= self._times.silence_ns:
            msg = f"host {self.peer.host!r} has been silent for {silent_ns // NS_PER_MS:,} ms"
            raise LinkBrokenError(msg, "silent")

    @property
    def silent_at_ns(self) -> int:
        """When the link will be broken unless something is heard."""
        return self._heard_ns + self._times.silence_ns

    @property
    def next_due_ns(self) -> int:
        """When `outbound` or `check_silence` will have something to do at the latest."""
        due_ns = min(self._heartbeat_ns, self.silent_at_ns)
        if self.role is Role.PARENT:
            for incoming in self.peer.incoming.values():
                waiting_ns = incoming.due_ns
                if waiting_ns is not None and waiting_ns < due_ns:
                    due_ns = waiting_ns
        return due_ns

    # --- sending -------------------------------------------------------------------------------

    def outbound(self, buffers: Buffers, max_bytes: int, now_ns: int) -> None:
        """Append what is to be sent now, headers and memory of rings, about `max_bytes`.

        What was appended counts as sent: if it cannot be sent, the link is broken. Raises
        CorruptedMessageError if a ring's memory holds no frames, which is not the link's fault;
        another ProtocolError, after which the link is broken, if the peer wants what is not held.
        """
        if self.role is Role.PARENT:
            self._send_to_parent(buffers, now_ns)
        self._send_heartbeat(buffers, now_ns)
        self._send_control(buffers)
        if self.role is Role.CHILD:
            self._send_data(buffers, max_bytes)

    def goodbye(self, buffers: Buffers) -> None:
        """Append the last message: this side closes on purpose."""
        self._append(buffers, GOODBYE, NO_STREAM)

    def _append(
        self,
        buffers: Buffers,
        kind: int,
        stream: int = 0,
        position: int = 0,
        extra: int = 0,
        length: int = 0,
        detail: int = 0,
    ) -> None:
        buffers.append(encode(kind, self._sent, stream, position, extra, length, detail))
        self._sent += 1
        self.traffic.messages_sent += 1
        self.traffic.bytes_sent += HEADER_BYTES + length

    def _send_to_parent(self, buffers: Buffers, now_ns: int) -> None:
        """Tell the parent which streams this host leaves, subscribes, and has room for."""
        for stream in self.peer.farewells:
            self._append(buffers, GOODBYE, stream)
        self.peer.farewells.clear()
        for incoming in self.peer.incoming.values():
            if not incoming.subscribed_now:
                self._begin_stream(buffers, incoming)
            elif not incoming.left:
                grant = incoming.grant_due(now_ns)  # also finds whether all readers have left
                if incoming.leaving:
                    incoming.left = True
                    self._append(buffers, GOODBYE, incoming.stream)
                elif grant is not None:
                    window = grant.limit - grant.received
                    self._append(buffers, GRANT, incoming.stream, grant.received, window)

    def _begin_stream(self, buffers: Buffers, incoming: Incoming) -> None:
        """Say on this link that the stream is subscribed, or that it was left."""
        incoming.subscribed_now = True
        if incoming.left:
            # Said on each new link, as the former one may have broken before it arrived.
            self._append(buffers, GOODBYE, incoming.stream)
            return
        received, limit = incoming.subscription()
        exponent = incoming.mirror.capacity.bit_length() - 1
        detail = exponent | incoming.number << CAPACITY_BITS
        self._append(buffers, SUBSCRIBE, incoming.stream, received, limit - received, detail=detail)

    def _send_heartbeat(self, buffers: Buffers, now_ns: int) -> None:
        """Send a heartbeat if one is due, or to answer one, or to acknowledge control messages."""
        inbox = self.peer.inbox
        taken = inbox.taken & SEQUENCE_MASK
        if self._echo is not None:
            self._append(buffers, HEARTBEAT, inbox.mark, self._echo, taken, detail=ECHO)
            self._echo = None
        elif now_ns >= self._heartbeat_ns or taken != self._acknowledged_taken:
            self._append(buffers, HEARTBEAT, inbox.mark, now_ns & POSITION_MAX, taken)
            self._heartbeat_ns = now_ns + self._times.heartbeat_ns
        self._acknowledged_taken = taken

    def _send_control(self, buffers: Buffers) -> None:
        outbox = self.peer.outbox
        if self.peer.speaker is None and not outbox.empty:
            self._speak()
        if self.peer.speaker is not self:
            return
        while (message := outbox.next_message()) is not None:
            size = len(message.content)
            self._append(buffers, CONTROL, 0, message.number, outbox.mark, size)
            buffers.append(message.content)

    def _send_data(self, buffers: Buffers, max_bytes: int) -> None:
        """Send of all streams in turn until none has more, or about `max_bytes`."""
        for outgoing, start, stop in self.turns.plan(self.peer.outgoing, max_bytes):
            number = outgoing.number
            if start == stop:
                self._append(buffers, FINISHED, outgoing.stream, stop, detail=number)
            else:
                self._append(buffers, DATA, outgoing.stream, start, 0, stop - start, number)
                buffers += outgoing.offer.pieces(start, stop)

    # --- receiving -----------------------------------------------------------------------------

    def begin(self, header: bytes | bytearray | memoryview) -> tuple[int, tuple[memoryview, ...]]:
        """Take a header: return how many bytes of payload follow it, and where they go.

        `end` must be called once they are there; not if there are none. Raises ProtocolError,
        after which the link is broken.
        """
        return self.begin_with(decode(header))

    def begin_with(self, message: LinkHeader) -> tuple[int, tuple[memoryview, ...]]:
        """Take a header that was decoded; otherwise as `begin`."""
        self._number(message)
        self._header = message
        self._counted = 0
        if message.kind == DATA:
            return message.length, self._place_data(message)
        if message.kind == CONTROL:
            self._content = bytearray(message.length)
            return message.length, (memoryview(self._content),)
        self._TAKE[message.kind](self, message)
        return 0, ()

    def placed(self, message: LinkHeader) -> None:
        """Take a message whose payload is where it belongs. Raises ProtocolError as `begin`."""
        if message.kind != DATA:
            if self.begin_with(message)[0]:
                self.end()
            return
        self._number(message)
        incoming = self._sent_to(message)
        if incoming is None:
            return
        if not incoming.expects(message.position, message.length):
            self.peer.counters.duplicates += 1
            return
        incoming.arrived(message.length)
        self.peer.changed[message.stream] = incoming

    def _number(self, message: LinkHeader) -> None:
        """Count a message, which must be the next one."""
        if message.sequence != self._received & SEQUENCE_MASK:
            msg = (
                f"host {self.peer.host!r} sent message {message.sequence:,} where "
                f"{self._received & SEQUENCE_MASK:,} is due"
            )
            raise LinkBrokenError(msg, "lost or repeated message")
        self._received += 1
        traffic = self.traffic
        traffic.messages_received += 1
        traffic.bytes_received += HEADER_BYTES + message.length

    def _place_data(self, message: LinkHeader) -> tuple[memoryview, ...]:
        incoming = self._incoming = self._sent_to(message)
        if incoming is None:
            return self._wasted_places(message.length)
        places = incoming.writable(message.position, message.length)
        if places is not None:
            self.wasted = False
            return places
        self.peer.counters.duplicates += 1
        return self._wasted_places(message.length)

    def _sent_to(self, message: LinkHeader) -> Incoming | None:
        """Return the stream that a parent's message is about; None if it is stale."""
        if self.role is not Role.PARENT or not self.peer.has_sent(message.stream):
            raise self._misplaced(message)
        return self.peer.sends(message.stream, message.detail)

    def divert(self, stream: int, missing: int) -> tuple[memoryview, ...] | None:
        """Return where the last `missing` bytes of the payload that is coming go instead.

        None if no data of `stream` is coming. To be called before the stream gets another parent.
        """
        message = self._header
        if message is None or (message.kind, message.stream) != (DATA, stream) or self.wasted:
            return None
        self.peer.counters.stale += 1
        return self._wasted_places(missing)

    def _wasted_places(self, length: int) -> tuple[memoryview, ...]:
        self.wasted = True
        if len(self._waste) < length:
            self._waste = memoryview(bytearray(max(length, DATA_BYTES_MAX)))
        return (self._waste[:length],)

    def progress(self, nbytes: int) -> None:
        """Take note that the first `nbytes` of the payload are in place. Raises ProtocolError."""
        message = self._header
        if message is not None and message.kind == DATA and not self.wasted:
            self._count_data(message, nbytes & -FRAME_ALIGNMENT)

    def _count_data(self, message: LinkHeader, nbytes: int) -> None:
        fresh = nbytes - self._counted
        incoming = self._incoming
        if fresh > 0 and incoming is not None:
            self._counted = nbytes
            incoming.arrived(fresh)
            self.peer.changed[message.stream] = incoming

    def end(self) -> None:
        """Take note that the payload is where `begin` said. Raises ProtocolError."""
        message, self._header = self._header, None
        assert message is not None, "end() without begin()"
        if message.kind == CONTROL:
            content = ControlMessage(message.position, bytes(self._content))
            if not self.peer.inbox.arrived(message.extra, content):
                self.peer.counters.duplicates += 1
        elif not self.wasted:
            self._count_data(message, message.length)

    def _misplaced(self, message: LinkHeader) -> ProtocolError:
        kind = KIND_NAMES[message.kind]
        msg = f"host {self.peer.host!r}, a {self.role.value}, sent {kind} for {message.stream}"
        return ProtocolError(msg)

    def _take_subscribe(self, message: LinkHeader) -> None:
        self._expect(message, Role.CHILD)
        limit = message.position + message.extra
        capacity = 1 << (message.detail & ((1 << CAPACITY_BITS) - 1))
        number = message.detail >> CAPACITY_BITS
        self.peer.subscribed(message.stream, message.position, limit, capacity, number)

    def _take_grant(self, message: LinkHeader) -> None:
        self._expect(message, Role.CHILD)
        self.peer.granted(message.stream, message.position, message.position + message.extra)

    def _take_finished(self, message: LinkHeader) -> None:
        incoming = self._sent_to(message)
        if incoming is not None:
            incoming.finished(message.position)
            self.peer.changed[message.stream] = incoming

    def _take_heartbeat(self, message: LinkHeader) -> None:
        self.peer.outbox.acknowledged(message.stream, message.extra)
        if message.detail != ECHO:
            self._echo = message.position
            return
        # The echoed time is of this host's clock; one that lies in the future is ignored.
        rtt_ns = (self._heard_ns & POSITION_MAX) - message.position
        if rtt_ns >= 0:
            self.peer.counters.rtt_ns = rtt_ns

    def _take_goodbye(self, message: LinkHeader) -> None:
        if message.stream == NO_STREAM:
            msg = f"host {self.peer.host!r} closed the link on purpose"
            raise LinkBrokenError(msg, _CLOSED_ON_PURPOSE)
        self._expect(message, Role.CHILD)
        self.peer.left(message.stream)

    def _expect(self, message: LinkHeader, role: Role) -> None:
        if self.role is not role:
            raise self._misplaced(message)

    _TAKE: Final[dict[int, Callable[[Link, LinkHeader], None]]] = {
        SUBSCRIBE: _take_subscribe,
        GRANT: _take_grant,
        FINISHED: _take_finished,
        HEARTBEAT: _take_heartbeat,
        GOODBYE: _take_goodbye,
    }

    # --- the end -------------------------------------------------------------------------------

    def broken(self, reason: str) -> None:
        """Take note that the connection is gone: what was under way is to be sent anew."""
        self.peer.counters.failures[reason] += 1
        self.ended()

    def ended(self) -> None:
        """Take note that the connection was closed on purpose; the same."""
        self.over = True
        if self.peer.speaker is self:
            self.peer.speaker = None
        if self.role is Role.CHILD:
            self.peer.child_disconnected()
        else:
            self.peer.parent_disconnected()
