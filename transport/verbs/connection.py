"""A link over queue pairs; its TCP connection stays open to show that the peer is alive.

::

    this host                                       the peer
    link ─ messages ─► frames ══ SEND ══► receive buffers ─► link
         ─ payloads ─► ring ══ WRITE, or READ by the other pair ══► mirror
    socket ──────────── nothing but its end ──────── socket

Nothing is sent through the socket any more; its end shows at once that the peer's process has
ended. Methods raise ProtocolError when the connection is broken, as those of `TcpConnection` do.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

from ...configs.errors import ProtocolError, ResourceError
from ..links.attached import Incoming
from ..links.link import Buffers, Link, LinkBrokenError
from ..links.link_header import (
    CONTROL,
    DATA,
    HEADER_BYTES,
    SUBSCRIBE,
    LinkHeader,
    decode,
    payload_of,
)
from ..links.turns import SLICE_BYTES
from ..mirror import MirrorRing
from ..tcp.connection import TcpConnection, broken_by, fill
from ..tcp.watch import ENDED, READABLE
from . import frames
from .frames import FRAME_BYTES, ITEMS_MAX, Credits, RemoteMemory
from .link_resources import Agreement, Data
from .payload_reader import PayloadReader, ReadRequest
from .payload_sender import COPY, WAIT, PayloadSender
from .queue_pair import POLL_MAX, QueuePair
from .send_queue import SendQueue

TURN_BYTES: Final = 2 << 20
"""Bytes of one connection in one poll, so that it does not delay the others of a relay."""
_POLLS_MAX: Final = 8
_LAST_WORDS_POLLS_MAX: Final = 20_000
_KIND_AT: Final = 5
_WITH_PAYLOAD: Final = frozenset({DATA, CONTROL})

_Item: TypeAlias = "ReadRequest | int | tuple[int, memoryview]"
"""A received item: a payload to READ, the end of a frame (its buffer), or (kind, content)."""


class VerbsConnection:
    """A link's queue pairs, and the TCP connection beside them: when it ends, the peer is gone."""

    carrier: Final = "verbs"

    def __init__(self, witness: TcpConnection, agreed: Agreement) -> None:
        """Take over the TCP connection and the queue pairs."""
        resources = agreed.resources
        self._witness = witness
        self._resources = resources
        self._sends_data, self._takes_data = agreed.sends_data, agreed.takes_data
        self._pair, self._reads = pair, reads = resources.pair, resources.reads
        library = pair.device.library
        self.way: Final = f"verbs {agreed.sends_data.name} on {pair.device.name}"
        """How payloads are sent, and by which device."""
        self.sock: Final = witness.sock
        self.fd: Final = witness.fd
        self.completions_fd: Final = pair.fd
        self.dialled: Final = witness.dialled
        self.host = witness.host
        self.link: Link | None = None
        self._credits = Credits(agreed.peers_buffers, pair.receives_max)
        self._send_queue = SendQueue(pair, reads, resources.outbox, self._credits)
        self._mirror_access = library.LOCAL_WRITE
        if agreed.takes_data is Data.WRITE:
            self._mirror_access |= library.REMOTE_WRITE
        self._payload_reader = PayloadReader(
            reads, resources.regions, self._mirror_access, pair.receives_max
        )
        self._payload_sender = PayloadSender(pair, resources.regions, agreed.sends_data)
        self._inbox = [
            resources.inbox.view[slot * FRAME_BYTES : (slot + 1) * FRAME_BYTES]
            for slot in range(pair.receives_max)
        ]
        self._arrived: list[tuple[int, int]] = []
        self._items: deque[_Item] = deque(maxlen=pair.receives_max * ITEMS_MAX)
        self._places: list[memoryview] = []
        self._missing = self._length = 0  # bytes of the payload that is received in frames
        self._pending: Buffers = []  # pieces of messages to be put into frames
        self._next = 0  # index of the next piece
        self._offset = 0  # within that piece
        self._body = 0  # bytes of a payload that are still to be put into frames
        self._announced: dict[int, MirrorRing] = {}
        # Numbers of fences: to send after the link's next messages, to send now, to answer.
        self._fences: list[int] = []
        self._fences_due: list[int] = []
        self._answers: list[int] = []
        self._fenced: dict[int, Incoming] = {}
        self._fence_number = 0
        self._look_at_socket = True
        self.needs_room, self.told_of_room = False, True  # nothing is sent through the socket
        self.unfinished = False
        """Whether the last turn ended before all work was done."""
        self._reads_seen = reads.completed
        self._armed = False
        self._failure: LinkBrokenError | None = None  # raised by the next `receive`
        self._closed = False

    def note(self, events: int) -> None:
        """Handle the socket's events that the watcher reports."""
        if events & (READABLE | ENDED):
            self._look_at_socket = True

    def arm(self) -> bool:
        """Make the descriptor readable at the next completion; False if it is armed already.

        If True, call `receive` once more, for completions that came before this call.
        """
        if self._armed:
            return False
        self._armed = True
        try:
            self._pair.arm()
        except LinkBrokenError as error:
            self._failure = error
        return True

    def take_event(self) -> None:
        """Handle that the watcher reports the descriptor of completions as readable."""
        self._armed = False
        self._pair.take_event()

    def establish(self, link: Link, buffer_bytes: int) -> None:
        """Send and receive for `link` from now on."""
        del buffer_bytes  # nothing is sent through the socket
        self.link = link
        link.traffic = link.peer.counters.carried_by(self.carrier)
        if self._sends_data is Data.READ:
            # A message that is READ is handled when all of it is here: small ones overlap.
            link.turns.message_bytes = SLICE_BYTES
        self.host = link.peer.host

    @property
    def readable(self) -> bool:
        """Whether something may have come: always, as only polling shows it."""
        return True

    @property
    def writable(self) -> bool:
        """Whether more can be sent now."""
        return self._send_queue.ready or self._credits.should_send_credits

    @property
    def unsent(self) -> bool:
        """Whether pieces of messages wait to be put into frames."""
        return self._next < len(self._pending)

    # --- sending -------------------------------------------------------------------------------

    def send(self, link: Link, now_ns: int) -> bool:
        """Send the link's messages until there are none, or no frame can be opened.

        At most TURN_BYTES of them; returns whether anything was sent.
        """
        moved = self._send_queue.send_credits()
        moved |= self._answer_fences()
        left = TURN_BYTES
        while left > 0:
            if not self.unsent and not self._send_fences():
                if not self._send_queue.ready:
                    break
                self._pending.clear()
                self._next = 0
                link.outbound(self._pending, left, now_ns)
                self._fences_due, self._fences = self._fences, []
                if not (self._pending or self._fences_due):
                    break
                left -= sum(map(len, self._pending))
            moved |= self._pack(link)
            if self.unsent:
                link.peer.counters.socket_full += 1
                break
            if self._send_fences():
                break
        moved = self._send_queue.flush() or moved
        # Waiting for frames, or for requests under way, ends with a completion.
        self.unfinished |= left <= 0
        return moved

    def _answer_fences(self) -> bool:
        moved = False
        while self._answers and self._send_queue.room():
            self._send_queue.put(frames.FENCED, frames.encode_number(self._answers.pop(0)))
            moved = True
        return moved

    def _send_fences(self) -> bool:
        """Send the fences due, which must follow the messages before; whether any still wait."""
        while self._fences_due and self._send_queue.room():
            self._send_queue.put(frames.FENCE, frames.encode_number(self._fences_due.pop(0)))
        return bool(self._fences_due)

    def _pack(self, link: Link) -> bool:
        """Put pending pieces into frames while frames can be opened; whether any was."""
        pending, send_queue = self._pending, self._send_queue
        moved = False
        while self._next < len(pending) and (room := send_queue.room()):
            piece = pending[self._next]
            if not self._body:
                if not self._pack_header(link, piece):
                    break
            else:
                start = self._offset
                stop = min(start + room, len(piece))
                send_queue.put(frames.BYTES, memoryview(piece)[start:stop])
                self._body -= stop - start
                self._offset = stop
                if stop == len(piece):
                    self._next, self._offset = self._next + 1, 0
            moved = True
        return moved

    def _pack_header(self, link: Link, header: bytes | memoryview) -> bool:
        """Put a message's header into a frame, and decide how its payload is sent.

        If the peer must first know the address of a ring or mirror, that goes into the frame
        instead, and the header is next. False if the payload has to wait.
        """
        kind, send_queue = header[_KIND_AT], self._send_queue
        decision, nbytes = COPY, 0
        if kind in _WITH_PAYLOAD:
            detail, stream, position, nbytes = payload_of(header)
            if kind == DATA:
                ring = self._payload_sender.memory_to_announce(link, stream)
                if ring is not None:
                    send_queue.put(frames.MEMORY, ring.encode())
                    return True
                decision = self._payload_sender.decide(link, stream, position, nbytes, detail)
            if decision == WAIT:
                return False
        elif kind == SUBSCRIBE and (mirror := self._mirror_to_announce(link, decode(header))):
            send_queue.put(frames.MEMORY, mirror.encode())
            return True
        self._next += 1
        if decision == COPY:
            send_queue.put(frames.BYTES, header)
            self._body = nbytes
            return True
        send_queue.put(decision, header)
        if decision == frames.WRITTEN:
            send_queue.signal()  # its completion shows that the ring's bytes were written
        while nbytes:
            nbytes -= len(self._pending[self._next])
            self._next += 1
        return True

    def _mirror_to_announce(self, link: Link, message: LinkHeader) -> RemoteMemory | None:
        """Return the address of the mirror of a stream, if its parent does not know it yet."""
        incoming = link.peer.incoming.get(message.stream)
        if incoming is None or self._announced.get(message.stream) is incoming.mirror:
            return None
        mirror = self._announced[message.stream] = incoming.mirror
        try:
            region = self._resources.regions.of(
                mirror,
                mirror.data_address,
                mirror.capacity,
                self._mirror_access,
                f"the mirror of stream {message.stream}",
            )
        except ResourceError as error:
            link.peer.failed("verbs: not registered", str(error))
            return None
        return RemoteMemory(message.stream, region.rkey, mirror.data_address, mirror.capacity)

    def send_goodbye(self, link: Link) -> None:
        """Send a farewell, and wait for its acknowledgement for a bounded number of polls."""
        try:
            if not self.unsent:
                self._poll_until_done(self._reads)  # a farewell must not overtake READs
                self._pending.clear()
                self._next = 0
                link.goodbye(self._pending)
                self._pack(link)
            self._send_queue.signal()
            self._send_queue.flush()
            # Frames that are not acknowledged are lost when the queue pair is destroyed.
            self._poll_until_done(self._pair)
        except ProtocolError:
            return  # broken: the peer notices that by itself

    def _poll_until_done(self, pair: QueuePair) -> None:
        for _ in range(_LAST_WORDS_POLLS_MAX):
            if pair.completed >= pair.posted:
                break
            self._pair.poll(self._arrived)

    # --- receiving -----------------------------------------------------------------------------

    def receive(self, link: Link, now_ns: int) -> bool:
        """Handle completions and frames until there are none, or the turn is used up.

        Returns whether anything was done; `unfinished` says whether more may be there.
        """
        moved = False
        self.unfinished = True
        traffic = link.traffic
        turn_ends = traffic.bytes_received + TURN_BYTES
        for _ in range(_POLLS_MAX):
            if traffic.bytes_received >= turn_ends:
                return True  # readers wait for the bytes received, the parent for grants
            try:
                if self._failure is not None:
                    raise self._failure
                count = self._pair.poll(self._arrived)
            except LinkBrokenError:
                self._check_socket()  # if the peer's process has ended, that is the error
                raise
            if not count:
                break
            moved = True
            self._handle_completions(link, now_ns)
            if count < POLL_MAX:
                break  # none is left; the descriptor shows the next one
        else:
            return True  # more may be there, and is handled before the end of the socket
        if self._items:
            moved |= self._process_items(link)
        if self._look_at_socket:
            self._check_socket()
        self.unfinished = False
        return moved

    def _handle_completions(self, link: Link, now_ns: int) -> None:
        if self._arrived or self._reads.completed != self._reads_seen:
            # Only these show that the peer is alive: SENDs and WRITEs are acknowledged by its
            # device. A READ counts since frames may wait after READs, as many as were asked for.
            self._reads_seen = self._reads.completed
            link.heard(now_ns)
        for slot, nbytes in self._arrived:
            self._parse_frame(slot, nbytes)
        self._arrived.clear()
        self._payload_sender.settle()
        self._process_items(link)

    def _process_items(self, link: Link) -> bool:
        """READ ahead, and handle the items that are ready; return whether a READ was posted."""
        posted = self._payload_reader.read_ahead(link)
        self._handle_ready_items(link)
        return self._payload_reader.read_ahead(link) or posted

    def _check_socket(self) -> None:
        """See whether the peer's process has ended. Raises LinkBrokenError."""
        self._look_at_socket = False
        try:
            said = self.sock.recv(1)
        except BlockingIOError:
            return
        except OSError as error:
            raise broken_by(error) from error
        if said:
            msg = f"host {self.host!r} sent bytes through the socket of a link over verbs"
            raise LinkBrokenError(msg, "protocol")
        msg = f"host {self.host!r} closed the connection"
        raise LinkBrokenError(msg, "closed by peer")

    def _parse_frame(self, slot: int, nbytes: int) -> None:
        """Handle a frame's credits and addresses at once, and queue its other items."""
        frame = self._inbox[slot][:nbytes]
        self._credits.peer_released(frames.released_by(frame))
        items = self._items
        for kind, content in frames.items_of(frame):
            if kind == frames.TO_READ:
                items.append(self._payload_reader.enqueue(content))
            elif kind == frames.MEMORY:
                # A ring's comes before the first TO_READ, a mirror's before SUBSCRIBE.
                self._set_remote_memory(RemoteMemory.decode(content))
            else:
                items.append((kind, content))
        items.append(slot)

    def _set_remote_memory(self, memory: RemoteMemory) -> None:
        (self._payload_reader if self.dialled else self._payload_sender).set_remote_memory(memory)

    def _handle_ready_items(self, link: Link) -> None:
        """Handle queued items in order, up to a payload that is still being READ."""
        items = self._items
        while items:
            item = items[0]
            if isinstance(item, ReadRequest):
                if not self._payload_reader.finish(link, item):
                    return
            elif isinstance(item, int):
                self._pair.post_receive(item)
                self._credits.released += 1
            elif item[0] == frames.BYTES:
                self._receive_bytes(link, item[1])
            else:
                self._handle_control_item(link, *item)
            items.popleft()

    def _handle_control_item(self, link: Link, kind: int, content: memoryview) -> None:
        if kind == frames.WRITTEN:
            link.placed(decode(content))
        elif kind == frames.FENCE:
            self._answers.append(frames.decode_number(content))
        else:
            incoming = self._fenced.pop(frames.decode_number(content), None)
            if incoming is None:
                msg = f"host {self.host!r} answers a fence that was not sent"
                raise LinkBrokenError(msg, "protocol")
            incoming.lift()

    def _receive_bytes(self, link: Link, content: memoryview) -> None:
        at, end = 0, len(content)
        while at < end:
            if self._missing:
                here = content[at : at + self._missing]
                self._places = fill(self._places, here)
                at += len(here)
                self._missing -= len(here)
                if self._missing:
                    link.progress(self._length - self._missing)
                else:
                    link.end()
            else:
                length, places = link.begin(content[at : at + HEADER_BYTES])
                at += HEADER_BYTES
                self._missing = self._length = length
                self._places = list(places)

    def divert(self, link: Link, stream: int) -> None:
        """Discard what is still to come of `stream`, before it gets another parent.

        Until READs are done, and WRITEs have landed (the fence), the new parent is granted nothing.
        """
        places = link.divert(stream, self._missing) if self._missing else None
        if places is not None:
            self._places = list(places)
        incoming = link.peer.incoming.get(stream)
        if incoming is None:
            return
        if self._payload_reader.divert(stream, incoming):
            self._send_queue.hold()  # the farewell must not overtake the READs
        if self._takes_data is Data.WRITE and incoming.subscribed_now:
            self._fence_number += 1
            self._fences.append(self._fence_number)
            self._fenced[self._fence_number] = incoming
            incoming.fence()

    # --- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Close everything, the queue pairs first: then the peer cannot read or write here."""
        if self._closed:
            return
        self._closed = True
        self._resources.destroy_queue_pairs()
        self._payload_sender.close()
        self._payload_reader.close()
        for incoming in self._fenced.values():
            incoming.lift()
        self._fenced.clear()
        self._items.clear()
        self._places.clear()
        self._pending.clear()
        self._inbox.clear()
        self._send_queue.close()
        self._resources.close()
        self._witness.close()
