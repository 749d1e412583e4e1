r"""Two hosts that both offer verbs agree on queue pairs, over the connection that they proved on.

Pure but for the queue pairs themselves: bytes in, bytes out. Each side says once what it has, then
once whether it could connect to what the other has; either may decline, and then the link goes over
the connection itself. Little-endian::

    OFFER, 480 bytes                                                READY, 8 bytes
     0         8         9      10        12         16      80      0         7
     ┌─────────┬─────────┬──────┬─────────┬──────────┬───────┬─────┐ ┌─────────┬────────┐
     │"WHALEQP"│ consent │ data │ letters │ bytes of │ cards │ why │ │"WHALEQR"│consent │
     │  \0      │ 1 or 0  │      │         │ a letter │       │ not │ │         │ 1 or 0 │
     └─────────┴─────────┴──────┴─────────┴──────────┴───────┴─────┘ └─────────┴────────┘
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from ...configs.errors import ProtocolError, ResourceError
from ..links.link import LinkBrokenError
from .equipment import Agreed, Data, Equipment
from .frames import LETTER_BYTES, LETTERS
from .library import NoVerbsError
from .queue_pair import Card

_OFFER: Final = struct.Struct("<8sBBHI32s32s400s")
_READY: Final = struct.Struct("<7sB")
_OFFER_MAGIC: Final = b"WHALEQP\0"
_READY_MAGIC: Final = b"WHALEQR"
_WHY_NOT_BYTES: Final = 400
_NO_CARD: Final = bytes(Card.FORM.size)

Prepare: TypeAlias = Callable[[], Equipment]
"""Makes what a link takes; raises ResourceError."""


class Negotiation:
    """One side. `first` is sent at once; then it answers what it receives, like a handshake."""

    def __init__(self, prepare: Prepare, data: Data, deadline_ns: int) -> None:
        """Begin; `data` is how this host's payloads are to travel."""
        self.deadline_ns: Final = deadline_ns
        self._agreed: Agreed | None = None
        self.why_not = ""
        """Why there is none, in words."""
        self.done = False
        self._data = data
        self._received = b""
        self._size = _OFFER.size
        self._equipment: Equipment | None = None
        self._ready: Agreed | None = None
        try:
            self._equipment = prepare()
        except ResourceError as error:
            self.why_not = str(error)
        self.first: Final = self._offer()
        """What must be sent first."""

    def _offer(self) -> bytes:
        consent = self._equipment is not None
        cards = (_NO_CARD, _NO_CARD) if self._equipment is None else self._equipment.cards
        why_not = self.why_not.encode()[:_WHY_NOT_BYTES]
        return _OFFER.pack(
            _OFFER_MAGIC, consent, self._data.value, LETTERS, LETTER_BYTES, *cards, why_not
        )

    @property
    def needs(self) -> int:
        """Bytes of the message that is due that are still missing; 0 once it is over."""
        return 0 if self.done else self._size - len(self._received)

    def receive(self, content: bytes) -> bytes:
        """Take `content`, at most `needs` bytes; return what must be sent now, often nothing.

        Raises LinkBrokenError for what is no message of ours.
        """
        self._received += content
        if self.needs:
            return b""
        message, self._received = self._received, b""
        if self._size == _OFFER.size:
            return self._answer(message)
        magic, consent = _READY.unpack(message)
        if magic != _READY_MAGIC:
            raise _foreign()
        if self._ready is None or not consent:
            self._decline("the peer could not connect its queue pair")
        else:
            self._agreed, self._ready, self._equipment = self._ready, None, None
        self.done = True
        return b""

    def _answer(self, message: bytes) -> bytes:
        magic, consent, data, buffers, letter_bytes, pair, reads, why_not = _OFFER.unpack(message)
        if magic != _OFFER_MAGIC or letter_bytes != LETTER_BYTES:
            raise _foreign()
        equipment = self._equipment
        if equipment is None or not consent:
            said = why_not.rstrip(b"\0").decode(errors="replace")
            self._decline(f"the peer says: {said}")
            self.done = True
            return b""
        self._size = _READY.size
        try:
            equipment.connect(pair, reads)
            self._ready = Agreed(equipment, self._data, Data(data), buffers)
        except (NoVerbsError, ValueError) as error:
            self._decline(str(error))
        return _READY.pack(_READY_MAGIC, self._ready is not None)

    def _decline(self, why_not: str) -> None:
        self.why_not = self.why_not or why_not
        self.close()

    def check_time(self, now_ns: int) -> None:
        """Raise LinkBrokenError if the deadline has come."""
        if not self.done and now_ns >= self.deadline_ns:
            msg = "the peer took too long to agree on a queue pair"
            raise LinkBrokenError(msg, "late")

    def ended(self) -> None:
        """Take note that the peer has closed. Raises ProtocolError."""
        msg = "the peer closed the connection before a queue pair was agreed on"
        raise LinkBrokenError(msg, "closed by peer")

    def take_over(self) -> Agreed | None:
        """Return what carries the link, once `done`, to its new owner; None: the connection."""
        agreed, self._agreed = self._agreed, None
        return agreed

    def close(self) -> None:
        """Give back what was prepared and nobody took over."""
        agreed = self.take_over()
        if agreed is not None:
            agreed.equipment.close()
        equipment, self._equipment, self._ready = self._equipment, None, None
        if equipment is not None:
            equipment.close()


def _foreign() -> ProtocolError:
    return LinkBrokenError("the peer answers the offer of a queue pair with nonsense", "protocol")
