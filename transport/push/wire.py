"""A push channel between two hosts: both have its slots, and a link copies them.

::

    sender ── writes ──► slots of the outlet ══ PUSH ══► slots of the receiver ◄── polls ── receiver
           ◄─ credits ──                     ◄═ CREDIT ══ inlet                 ── credits ─►

The `PushOutlet` acts as the receiver on the sender's host: it owns as many slots of the same size,
into which the sender writes as into any push channel. The `PushInlet` acts as the sender on the
receiver's host. Use u has the same slot and the same bytes on both; a slot of the outlet is free
again when the receiver has released its own. A link sends a slot from the start of its payload up
to its last word, straight from memory to memory; the inlet writes the last word, which the receiver
polls, when all others have arrived.
"""

from __future__ import annotations

from typing import Final

from ...configs.errors import CorruptedMessageError, ResourceError
from ..doorbell import Doorbell
from ..ring_layout import EXPECTED
from ..segment import Segment, SegmentKind
from . import kernels
from .channel import PushHandle, PushSendingEnd, new_end_state
from .layout import DATA_OFFSET, FOOTER_BYTES, LAP_BACK, PushLayout
from .protocol import PushReceiver, PushSender

_END_CONTENT: Final = memoryview(b"\0")  # a link sends no empty message


class PushOutlet:
    """The sender's host: its slots are sent by the link. A `PushSource` of links/peer.py."""

    def __init__(
        self, segment: Segment, layout: PushLayout, sender_doorbell: Doorbell | None = None
    ) -> None:
        """Make `segment`, zeroed and of `layout.total_bytes`, the slots of a sender."""
        layout.write(segment)
        self._segment = segment
        self._layout = self.layout = layout
        self.data_address: Final = segment.address + DATA_OFFSET
        """Where the slots begin in this process."""
        self._doorbell = sender_doorbell
        self._memory = segment.memory(DATA_OFFSET, layout.total_bytes).toreadonly()
        self._state = new_end_state(segment, layout, sender_doorbell)
        self._state_address = int(self._state.ctypes.data)
        self._protocol = PushSender(layout.slots)
        self._closed = False

    @classmethod
    def create(
        cls,
        job: str,
        label: str,
        layout: PushLayout,
        sender_doorbell: Doorbell | None = None,
        kind: SegmentKind = "memfd",
    ) -> PushOutlet:
        """Create the slots, too; raises ResourceError if there is no memory for them."""
        return cls(Segment.create(layout.total_bytes, label, job, kind), layout, sender_doorbell)

    @property
    def handle(self) -> PushHandle:
        """What the sender attaches with (`attach_push`)."""
        return PushHandle(self._segment.handle)

    def sending_end(self) -> PushSendingEnd:
        """Return the sending end for a sender in this process, open."""
        sender = PushSendingEnd(self._segment.share())
        sender.open()
        return sender

    def next_message(self) -> tuple[int, memoryview] | None:
        """Return the next word and content to send, None if there is none now.

        The content stays unchanged until its credit is returned. Raises CorruptedMessageError if
        the slots were overwritten.
        """
        if self._closed:
            return None
        protocol = self._protocol
        ends_at = kernels.closed_at(self._state_address)  # first: nothing follows it
        protocol.written = kernels.step_over_arrived(self._state_address)
        if ends_at == protocol.written:
            protocol.close()
        word = protocol.next_word()
        if word is None:
            return None
        if word & 1:
            return word, _END_CONTENT
        return word, self._content(word >> 1)

    def _content(self, use: int) -> memoryview:
        start = kernels.start_of(self._state_address, use)
        if start < 0:
            msg = f"push channel {self._segment.handle.path!r}: slot use {use} was overwritten"
            raise CorruptedMessageError(msg)
        begin = use % self._layout.slots * self._layout.slot_bytes
        return self._memory[begin + start : begin + self._layout.slot_bytes - LAP_BACK]

    def credited(self, credits_in_all: int) -> None:
        """Handle the word of a CREDIT; raises ProtocolError if it is impossible."""
        if self._closed or not self._protocol.credited(credits_in_all):
            return
        kernels.give_back(self._state_address, self._protocol.returned)
        if self._protocol.peer_closed:
            self.close()

    def reconnected(self) -> None:
        """Send again everything that is not known to have arrived."""
        self._protocol.reconnected()

    @property
    def delivered(self) -> bool:
        """Whether the receiver has got everything, the end included, or wants nothing more."""
        return self._protocol.peer_closed

    def close(self) -> None:
        """Release the slots; the sender, if it is open, sees that the receiver has closed.

        Called automatically as soon as all is `delivered`.
        """
        if self._closed:
            return
        self._closed = True
        kernels.close_receiver(self._state_address)
        self._memory = memoryview(b"")
        self._segment.close()


class PushInlet:
    """The receiver's host: the link writes into its slots. A `PushSink` of links/peer.py."""

    def __init__(self, segment: Segment, receiver_doorbell: Doorbell | None = None) -> None:
        """Take the sender's place in an attached channel, closed with this object.

        Raises ResourceError if the place is taken, or was.
        """
        self._segment = segment
        self._layout = self.layout = PushLayout.read(segment)
        self.data_address: Final = segment.address + DATA_OFFSET
        """Where the slots begin in this process."""
        self._doorbell = receiver_doorbell
        self._memory = segment.memory(DATA_OFFSET, self._layout.total_bytes)
        self._state = new_end_state(segment, self._layout, receiver_doorbell)
        self._state_address = int(self._state.ctypes.data)
        self._protocol = PushReceiver(self._layout.slots)
        self._scratch = memoryview(bytearray(1))
        self._closed = False
        if kernels.take_place(self._state_address) != EXPECTED:
            msg = f"push channel {segment.handle.path!r} has, or had, another sender"
            raise ResourceError(msg)

    @classmethod
    def attach(cls, handle: PushHandle, receiver_doorbell: Doorbell | None = None) -> PushInlet:
        """Attach the receiver's channel; raises ResourceError as `attach_push` does."""
        segment = Segment.attach(handle.segment)
        try:
            return cls(segment, receiver_doorbell)
        except BaseException:
            segment.close()
            raise

    def writable(self, word: int, nbytes: int) -> memoryview | None:
        """Return the memory for the `nbytes` of a PUSH; None to drop them.

        Raises ProtocolError for an impossible word or size.
        """
        if not self._closed:
            self._check_receiver()
        if self._closed:
            return None
        slot = self._protocol.slot_for(word)
        slot_bytes = self._layout.slot_bytes
        low, high = FOOTER_BYTES - LAP_BACK, slot_bytes - LAP_BACK
        if word & 1:
            low = high = len(_END_CONTENT)
        if not low <= nbytes <= high:
            msg = f"{nbytes} bytes for a slot of {slot_bytes} of a push channel, or for its end"
            raise CorruptedMessageError(msg)
        if word & 1:
            return self._scratch
        if slot is None:
            return None
        stop = (slot + 1) * slot_bytes - LAP_BACK
        return self._memory[stop - nbytes : stop]

    def arrived(self, word: int, nbytes: int) -> None:
        """Make the content of a PUSH, now in the memory of `writable`, visible to the receiver.

        Raises ProtocolError if it is not the content of this use.
        """
        del nbytes  # the footer has it as well, and the receiver checks that
        use = word >> 1
        ends = bool(word & 1)
        if not ends and not kernels.publish_arrived(self._state_address, use):
            msg = f"slot use {use} of push channel {self._segment.handle.path!r} is another's"
            raise CorruptedMessageError(msg)
        self._protocol.arrived(word)
        if self._protocol.finished:
            kernels.close_at(self._state_address, self._protocol.received)

    def _check_receiver(self) -> None:
        self._protocol.give_back(kernels.returned_by_receiver(self._state_address))
        if kernels.receiver_closed(self._state_address):
            self._protocol.close()
            self._release_memory()

    @property
    def credits_in_all(self) -> int:
        """The word of a CREDIT, see protocol.py."""
        if not self._closed:
            self._check_receiver()
        return self._protocol.credit_word

    @property
    def finished(self) -> bool:
        """Whether everything up to the sender's end was received."""
        return self._protocol.finished

    def close(self) -> None:
        """Stop, without ending the stream for the receiver: it did not end.

        Called automatically as soon as the receiver has closed.
        """
        if not self._closed:
            self._check_receiver()
        self._release_memory()

    def _release_memory(self) -> None:
        self._closed = True
        self._memory = memoryview(b"")
        self._segment.close()
