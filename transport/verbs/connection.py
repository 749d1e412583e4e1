"""A link carried by queue pairs, beside the TCP connection on which its hosts met.

::

    this host                                       the peer
    link ─ messages ─► letters ══ SEND ══► receive buffers ─► link
         ─ payloads ─► ring ══ WRITE, or READ by the other pair ══► mirror
    socket ──────────── witness of life ──────────── socket

The socket carries nothing any more; it tells at once when the peer's process has ended. Methods
raise ProtocolError when the connection is of no use any more, as those of `TcpConnection` do.
"""

from __future__ import annotations

from collections import deque
from typing import Final, TypeAlias

from ...configs.errors import ProtocolError, ResourceError
from ..links.attached import Incoming
from ..links.link import Buffers, Link, LinkBrokenError
from ..links.messages import (
    CONTROL,
    DATA,
    HEADER_BYTES,
    PUSH,
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
from .equipment import Agreed, Data
from .fetching import Fetch, Fetcher
from .frames import ITEMS_MAX, LETTER_BYTES, Credits, Memory, Slots
from .payload_sender import COPY, WAIT, PayloadSender
from .pushing import Pusher
from .queue_pair import POLL_MAX, QueuePair
from .send_queue import SendQueue

TURN_BYTES: Final = 2 << 20
"""Of one connection in one poll, so that none keeps a relay from the others."""
_POLLS_MAX: Final = 8
_LAST_WORDS_POLLS_MAX: Final = 20_000
_KIND_AT: Final = 5
_WITH_PAYLOAD: Final = frozenset({DATA, CONTROL, PUSH})

_Item: TypeAlias = "Fetch | int | tuple[int, memoryview]"
"""What has its turn: a message to be fetched, the end of a letter (its buffer), or another item."""


class VerbsConnection:
    """The queue pairs that carry a link, and its witness."""

    carrier: Final = "verbs"

    def __init__(self, witness: TcpConnection, agreed: Agreed) -> None:
        """Take over both."""
        equipment = agreed.equipment
        self._witness = witness
        self._equipment = equipment
        self._sends_data, self._takes_data = agreed.sends_data, agreed.takes_data
        self._pair, self._reads = pair, reads = equipment.pair, equipment.reads
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
        self._postman = SendQueue(pair, reads, equipment.outbox, self._credits)
        self._mirror_access = library.LOCAL_WRITE
        if agreed.takes_data is Data.WRITE:
            self._mirror_access |= library.REMOTE_WRITE
        self._fetcher = Fetcher(reads, equipment.regions, self._mirror_access, pair.receives_max)
        self._lender = PayloadSender(pair, equipment.regions, agreed.sends_data)
        self._pusher = Pusher(equipment)
        self._inbox = [
            equipment.inbox.view[slot * LETTER_BYTES : (slot + 1) * LETTER_BYTES]
            for slot in range(pair.receives_max)
        ]
        self._arrived: list[tuple[int, int]] = []
        self._items: deque[_Item] = deque(maxlen=pair.receives_max * ITEMS_MAX)
        self._places: list[memoryview] = []
        self._missing = self._length = 0  # of the payload that letters bring
        self._pending: Buffers = []
        self._next = 0  # of them
        self._offset = 0  # within it
        self._body = 0  # bytes of a payload that are still to be put into letters
        self._told: dict[int, MirrorRing] = {}
        # Numbers of fences: to be asked behind what is said next, to be asked now, to be answered.
        self._fences: list[int] = []
        self._ripe: list[int] = []
        self._answers: list[int] = []
        self._fenced: dict[int, Incoming] = {}
        self._fence_number = 0
        self._look_at_socket = True
        self.needs_room, self.told_of_room = False, True  # nothing goes through the socket
        self.unfinished = False
        """Whether the last turn ended before everything was done that could be."""
        self._reads_heard = reads.completed
        self._armed = False
        self._failure: LinkBrokenError | None = None  # whoever receives is told
        self._closed = False

    def note(self, events: int) -> None:
        """Take note of what the watcher has seen at the socket."""
        if events & (READABLE | ENDED):
            self._look_at_socket = True

    def arm(self) -> bool:
        """Have the descriptor told of the next completion; False if it is told already.

        If True, what has come meanwhile must be looked for once more, by `receive`.
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
        """Take note of what the watcher has seen at the descriptor of completions."""
        self._armed = False
        self._pair.take_event()

    def establish(self, link: Link, buffer_bytes: int) -> None:
        """Carry `link` from now on."""
        del buffer_bytes  # nothing goes through the socket
        self.link = link
        link.traffic = link.peer.counters.carried_by(self.carrier)
        if self._sends_data is Data.READ:
            # What is fetched is told of when all of it is here, while more is on its way.
            link.turns.message_bytes = SLICE_BYTES
        self.host = link.peer.host

    @property
    def readable(self) -> bool:
        """Whether something may be there: nobody tells, so it is always asked."""
        return True

    @property
    def writable(self) -> bool:
        """Whether more can be sent now."""
        return self._postman.ready or self._credits.should_return

    @property
    def unsent(self) -> bool:
        """Whether bytes wait for letters."""
        return self._next < len(self._pending)

    # --- sending -------------------------------------------------------------------------------

    def send(self, link: Link, now_ns: int) -> bool:
        """Send what the link has, until it has nothing more, or letters or the turn are used up."""
        moved = self._postman.give_back()
        moved |= self._answer_fences()
        moved |= self._tell_slots(link)
        left = TURN_BYTES
        while left > 0:
            if not self.unsent and not self._ask_fences():
                if not self._postman.ready:
                    break
                self._pending.clear()
                self._next = 0
                link.outbound(self._pending, left, now_ns)
                self._ripe, self._fences = self._fences, []
                if not (self._pending or self._ripe):
                    break
                left -= sum(map(len, self._pending))
            moved |= self._pack(link)
            if self.unsent:
                link.peer.counters.socket_full += 1
                break
            if self._ask_fences():
                break
        moved = self._postman.flush() or moved
        # Who waits for letters, or for requests that are under way, hears of completions.
        self.unfinished |= left <= 0
        return moved

    def _tell_slots(self, link: Link) -> bool:
        moved = False
        while self._pusher.must_tell(link) and self._postman.room():
            slots = self._pusher.slots_to_tell(link)
            if slots is not None:
                self._postman.put(frames.SLOTS, slots.encode())
                moved = True
        return moved

    def _answer_fences(self) -> bool:
        moved = False
        while self._answers and self._postman.room():
            self._postman.put(frames.FENCED, frames.encode_number(self._answers.pop(0)))
            moved = True
        return moved

    def _ask_fences(self) -> bool:
        """Ask what must follow the farewells that went before; whether anything still waits."""
        while self._ripe and self._postman.room():
            self._postman.put(frames.FENCE, frames.encode_number(self._ripe.pop(0)))
        return bool(self._ripe)

    def _pack(self, link: Link) -> bool:
        """Put what is pending into letters, as far as there are any."""
        pending, postman = self._pending, self._postman
        moved = False
        while self._next < len(pending) and (room := postman.room()):
            piece = pending[self._next]
            if not self._body:
                if not self._pack_header(link, piece):
                    break
            else:
                start = self._offset
                stop = min(start + room, len(piece))
                postman.put(frames.BYTES, memoryview(piece)[start:stop])
                self._body -= stop - start
                self._offset = stop
                if stop == len(piece):
                    self._next, self._offset = self._next + 1, 0
            moved = True
        return moved

    def _pack_header(self, link: Link, header: bytes | memoryview) -> bool:
        """Put a message's header into a letter, and decide about its payload; False: not now."""
        kind, postman = header[_KIND_AT], self._postman
        decision, nbytes = COPY, 0
        if kind in _WITH_PAYLOAD:
            detail, stream, position, nbytes = payload_of(header)
            if kind == PUSH:
                decision = self._pusher.decide(link, stream, position, nbytes)
            if kind == DATA:
                told = self._lender.memory_to_tell(link, stream)
                if told is not None:
                    postman.put(frames.MEMORY, told.encode())
                    return True
                decision = self._lender.decide(link, stream, position, nbytes, detail)
            if decision == WAIT:
                return False
        elif kind == SUBSCRIBE and (mirror := self._mirror_to_tell(link, decode(header))):
            postman.put(frames.MEMORY, mirror.encode())
            return True
        self._next += 1
        if decision == COPY:
            postman.put(frames.BYTES, header)
            self._body = nbytes
            return True
        postman.put(decision, header)
        if decision == frames.PLACED:
            postman.signal()  # so that the ring is known to be free again
        while nbytes:
            nbytes -= len(self._pending[self._next])
            self._next += 1
        return True

    def _mirror_to_tell(self, link: Link, message: LinkHeader) -> Memory | None:
        """Return where the mirror of a stream lies, if its parent was not told yet."""
        incoming = link.peer.incoming.get(message.stream)
        if incoming is None or self._told.get(message.stream) is incoming.mirror:
            return None
        mirror = self._told[message.stream] = incoming.mirror
        try:
            region = self._equipment.regions.of(
                mirror,
                mirror.data_address,
                mirror.capacity,
                self._mirror_access,
                f"the mirror of stream {message.stream}",
            )
        except ResourceError as error:
            link.peer.failed("verbs: not registered", str(error))
            return None
        return Memory(message.stream, region.rkey, mirror.data_address, mirror.capacity)

    def say_goodbye(self, link: Link) -> None:
        """Tell the peer that this side closes on purpose, and give it time to hear so."""
        try:
            if not self.unsent:
                self._poll_until_done(self._reads)  # which a farewell must not overtake
                self._pending.clear()
                self._next = 0
                link.goodbye(self._pending)
                self._pack(link)
            self._postman.signal()
            self._postman.flush()
            # A queue pair that is destroyed takes along what is not acknowledged.
            self._poll_until_done(self._pair)
        except ProtocolError:
            return  # broken: it will find out

    def _poll_until_done(self, pair: QueuePair) -> None:
        for _ in range(_LAST_WORDS_POLLS_MAX):
            if pair.completed >= pair.posted:
                break
            self._pair.poll(self._arrived)

    # --- receiving -----------------------------------------------------------------------------

    def receive(self, link: Link, now_ns: int) -> bool:
        """Take completions and letters until there is nothing more, or the turn is full."""
        moved = False
        self.unfinished = True
        traffic = link.traffic
        turn_ends = traffic.bytes_received + TURN_BYTES
        for _ in range(_POLLS_MAX):
            if traffic.bytes_received >= turn_ends:
                return True  # others wait: readers for what has come, the parent for grants
            try:
                if self._failure is not None:
                    raise self._failure
                count = self._pair.poll(self._arrived)
            except LinkBrokenError:
                self._check_socket()  # a peer that has ended is no fault of the device
                raise
            if not count:
                break
            moved = True
            if self._arrived or self._reads.completed != self._reads_heard:
                # What was sent and written tells of the peer's device alone. Its letters may wait
                # behind READs, of which there are no more than it has asked for.
                self._reads_heard = self._reads.completed
                link.heard(now_ns)
            for slot, nbytes in self._arrived:
                self._open(slot, nbytes)
            self._arrived.clear()
            self._lender.settle()
            self._go_on(link)
            if count < POLL_MAX:
                break  # the next completion tells of itself
        else:
            return True  # there may be more, which counts before the end of the socket
        if self._items:
            moved |= self._go_on(link)
        if self._look_at_socket:
            self._check_socket()
        self.unfinished = False
        return moved

    def _go_on(self, link: Link) -> bool:
        """Fetch ahead, and do what is next; return whether anything was asked for."""
        asked = self._fetcher.fetch_ahead(link)
        self._take_turns(link)
        return self._fetcher.fetch_ahead(link) or asked

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
            msg = f"host {self.host!r} sent bytes through a socket that carries none"
            raise LinkBrokenError(msg, "protocol")
        msg = f"host {self.host!r} closed the connection"
        raise LinkBrokenError(msg, "closed by peer")

    def _open(self, slot: int, nbytes: int) -> None:
        """Sort out a letter: what it says at once, and what waits for its turn."""
        letter = self._inbox[slot][:nbytes]
        self._credits.told(frames.given_back_by(letter))
        items = self._items
        for kind, content in frames.items_of(letter):
            if kind == frames.FETCH:
                items.append(self._fetcher.await_turn(content))
            elif kind == frames.MEMORY:
                # A ring's comes before the first FETCH, a mirror's before SUBSCRIBE: both at once.
                self._take_memory(Memory.decode(content))
            elif kind == frames.SLOTS:
                slots = Slots.decode(content)
                self._pusher.targets[slots.channel] = slots
            else:
                items.append((kind, content))
        items.append(slot)

    def _take_memory(self, memory: Memory) -> None:
        (self._fetcher if self.dialled else self._lender).lies_at(memory)

    def _take_turns(self, link: Link) -> None:
        """Do what is next, in order, up to a payload that has not come."""
        items = self._items
        while items:
            item = items[0]
            if isinstance(item, Fetch):
                if not self._fetcher.finish(link, item):
                    return
            elif isinstance(item, int):
                self._pair.post_receive(item)
                self._credits.given_back += 1
            elif item[0] == frames.BYTES:
                self._take_bytes(link, item[1])
            else:
                self._take_note(link, *item)
            items.popleft()

    def _take_note(self, link: Link, kind: int, content: memoryview) -> None:
        if kind == frames.PLACED:
            link.placed(decode(content))
        elif kind == frames.FENCE:
            self._answers.append(frames.decode_number(content))
        else:
            incoming = self._fenced.pop(frames.decode_number(content), None)
            if incoming is None:
                msg = f"host {self.host!r} answers a fence that was not set"
                raise LinkBrokenError(msg, "protocol")
            incoming.lift()

    def _take_bytes(self, link: Link, content: memoryview) -> None:
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
        """Have what still comes of `stream` go to waste, and nothing new stand where it may land.

        To be called before the stream gets another parent.
        """
        places = link.divert(stream, self._missing) if self._missing else None
        if places is not None:
            self._places = list(places)
        incoming = link.peer.incoming.get(stream)
        if incoming is None:
            return
        if self._fetcher.divert(stream, incoming):
            self._postman.hold()  # the farewell must not overtake what is being read
        if self._takes_data is Data.WRITE and incoming.subscribed_now:
            self._fence_number += 1
            self._fences.append(self._fence_number)
            self._fenced[self._fence_number] = incoming
            incoming.fence()

    # --- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Destroy the queue pairs first, so that nothing is read or written here any more."""
        if self._closed:
            return
        self._closed = True
        self._equipment.hang_up()
        self._lender.close()
        self._fetcher.close()
        self._pusher.close()
        for incoming in self._fenced.values():
            incoming.lift()
        self._fenced.clear()
        self._items.clear()
        self._places.clear()
        self._pending.clear()
        self._inbox.clear()
        self._postman.close()
        self._equipment.close()
        self._witness.close()
