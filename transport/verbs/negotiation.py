r"""Two hosts that both offer verbs agree on queue pairs, over their authenticated TCP connection.

Pure except for the queue pairs: bytes in, bytes out. Each side sends one OFFER with the addresses
of its queue pairs, then one READY that says whether it could connect to the peer's. Either may
decline; the link then uses the TCP connection. Little-endian::

    OFFER, 480 bytes                                                     READY, 8 bytes
     0         8         9      10        12        16          80    480  0         7
     ┌─────────┬─────────┬──────┬─────────┬─────────┬───────────┬──────┐  ┌─────────┬─────────┐
     │"WHALEQP"│ consent │ data │ receive │ bytes   │ addresses │ why  │  │"WHALEQR"│ consent │
     │  \0     │ 1 or 0  │      │ buffers │ of each │ of both   │ not  │  │         │ 1 or 0  │
     └─────────┴─────────┴──────┴─────────┴─────────┴───────────┴──────┘  └─────────┴─────────┘
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from ...configs.errors import ProtocolError, ResourceError
from ..links.link import LinkBrokenError
from .frames import FRAME_BYTES, RECEIVE_BUFFERS
from .library import NoVerbsError
from .link_resources import Agreement, Data, LinkResources
from .queue_pair import QueuePairAddress

_OFFER: Final = struct.Struct("<8sBBHI32s32s400s")
_READY: Final = struct.Struct("<7sB")
_OFFER_MAGIC: Final = b"WHALEQP\0"
_READY_MAGIC: Final = b"WHALEQR"
_WHY_NOT_BYTES: Final = 400
_NO_ADDRESS: Final = bytes(QueuePairAddress.FORM.size)

Prepare: TypeAlias = Callable[[], LinkResources]
"""Creates the resources of a link; raises ResourceError."""


class Negotiation:
    """One side. `first` is sent at once; then it answers the messages received, as a handshake."""

    def __init__(self, prepare: Prepare, data: Data, deadline_ns: int) -> None:
        """Create the resources; `data` is how this host sends payloads."""
        self.deadline_ns: Final = deadline_ns
        self._agreed: Agreement | None = None
        self.why_not = ""
        """Why the link does not use verbs, in words; empty if it does."""
        self.done = False
        self._data = data
        self._received = b""
        self._size = _OFFER.size
        self._resources: LinkResources | None = None
        self._ready: Agreement | None = None
        try:
            self._resources = prepare()
        except ResourceError as error:
            self.why_not = str(error)
        self.first: Final = self._offer()
        """The OFFER, to be sent first."""

    def _offer(self) -> bytes:
        consent = self._resources is not None
        addresses = (
            (_NO_ADDRESS, _NO_ADDRESS) if self._resources is None else self._resources.addresses
        )
        why_not = self.why_not.encode()[:_WHY_NOT_BYTES]
        return _OFFER.pack(
            _OFFER_MAGIC,
            consent,
            self._data.value,
            RECEIVE_BUFFERS,
            FRAME_BYTES,
            *addresses,
            why_not,
        )

    @property
    def needs(self) -> int:
        """Bytes still missing of the message that is due; 0 once the negotiation is over."""
        return 0 if self.done else self._size - len(self._received)

    def receive(self, content: bytes) -> bytes:
        """Take `content`, at most `needs` bytes; return what must be sent now, often nothing.

        Raises LinkBrokenError for bytes that are no such message.
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
            self._agreed, self._ready, self._resources = self._ready, None, None
        self.done = True
        return b""

    def _answer(self, message: bytes) -> bytes:
        magic, consent, data, buffers, frame_bytes, pair, reads, why_not = _OFFER.unpack(message)
        if magic != _OFFER_MAGIC or frame_bytes != FRAME_BYTES:
            raise _foreign()
        resources = self._resources
        if resources is None or not consent:
            said = why_not.rstrip(b"\0").decode(errors="replace")
            self._decline(f"the peer says: {said}")
            self.done = True
            return b""
        self._size = _READY.size
        try:
            resources.connect(pair, reads)
            self._ready = Agreement(resources, self._data, Data(data), buffers)
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
        """Handle that the peer has closed the connection. Raises ProtocolError."""
        msg = "the peer closed the connection before a queue pair was agreed on"
        raise LinkBrokenError(msg, "closed by peer")

    def take_over(self) -> Agreement | None:
        """Return the agreement, once `done`, and with it the resources; None to use TCP."""
        agreed, self._agreed = self._agreed, None
        return agreed

    def close(self) -> None:
        """Release the resources that were not taken over."""
        agreed = self.take_over()
        if agreed is not None:
            agreed.resources.close()
        resources, self._resources, self._ready = self._resources, None, None
        if resources is not None:
            resources.close()


def _foreign() -> ProtocolError:
    msg = "the peer answers the offer of a queue pair with invalid bytes"
    return LinkBrokenError(msg, "protocol")
