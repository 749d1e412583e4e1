"""The protocol of a push channel whose two ends share no memory.

Pure state machines without memory, clock or socket; wire.py joins them to slots and a link, a
simulator to a wire of its own. Both sides have c slots, and use u takes slot u mod c on both: the
sender's copy stays in its slot until the credit for it is returned, so that it can be sent again.

Two kinds of messages, with one word each::

    PUSH    use * 2            with the content of the slot
            uses * 2 + 1       the end of the stream, after that many uses
    CREDIT  returned * 2       the slots of uses before `returned` are free
            returned * 2 + 1   the same, and it wants no more: all is received, or it has closed

Both kinds can be repeated, reordered or lost and sent again: a use is accepted once, credits only
grow, and the sender repeats the uses whose credits were not returned (`PushSender.reconnected`). A
link does so after each new connection. On a wire without connections both sides repeat after a
timeout: the sender calls `reconnected`, the receiver sends `credit_word` again. A word that no
correct peer can send is a ProtocolError.
"""

from __future__ import annotations

from typing import Final

from ...configs.errors import ProtocolError

_END: Final = 1


class PushSender:
    """The sender's side: sends written slots in order, and again where they were lost."""

    def __init__(self, slots: int) -> None:
        """Begin with `slots` credits."""
        self.slots: Final = slots
        self.written = 0
        """Uses whose slots were written."""
        self.sent = 0
        """Uses that were sent, since the last reconnection at the latest."""
        self.returned = 0
        """Uses whose credits were returned: their slots are free."""
        self.closed = False
        """Whether nothing more will be written."""
        self.peer_closed = False
        """Whether the receiver wants no more messages."""
        self._sent_end = False

    @property
    def credits(self) -> int:
        """Slots that may be written now."""
        return self.slots - (self.written - self.returned)

    @property
    def delivered(self) -> bool:
        """Whether the receiver has received, and returned the credits of, everything."""
        return self.closed and self.peer_closed and self.returned == self.written

    def slot(self, use: int) -> int:
        """Return the slot of a use."""
        return use % self.slots

    def close(self) -> None:
        """End the stream after the slots written so far."""
        self.closed = True

    def next_word(self) -> int | None:
        """Return the next word to send, None if there is none; it may be lost on the wire."""
        if self.peer_closed:
            return None
        if self.sent < self.written:
            self.sent += 1
            return (self.sent - 1) << 1
        if self.closed and not self._sent_end:
            self._sent_end = True
            return self.written << 1 | _END
        return None

    def credited(self, word: int) -> bool:
        """Handle a CREDIT; return whether it changed anything.

        Raises ProtocolError if it returns credits that were never spent.
        """
        returned, ends = word >> 1, bool(word & _END)
        # Credits of uses sent over an earlier connection may come before these are sent again.
        if not 0 <= returned <= self.written:
            msg = f"{returned} slots of a push channel are given back, {self.written} were used"
            raise ProtocolError(msg)
        new = returned > self.returned or (ends and not self.peer_closed)
        self.returned = max(self.returned, returned)
        self.sent = max(self.sent, self.returned)
        self.peer_closed = self.peer_closed or ends
        return new

    def reconnected(self) -> None:
        """Send again every use whose credit was not returned, as it may not have arrived."""
        self.sent = self.returned
        self._sent_end = False


class PushReceiver:
    """The receiver's side: accepts every use once, and returns credits in order."""

    def __init__(self, slots: int) -> None:
        """Expect use 0."""
        self.slots: Final = slots
        self.received = 0
        """Uses that have arrived without a gap."""
        self.delivered = 0
        """Uses that `next_message` has returned."""
        self.returned = 0
        """Uses whose credits were returned."""
        self.end: int | None = None
        """How many uses there will be in all, once known."""
        self.closed = False
        """Whether further messages are dropped."""
        self.repeated = 0
        """Messages received more than once."""
        self._left: list[int | None] = [None] * slots  # per slot; None: nothing there

    @property
    def finished(self) -> bool:
        """Whether everything up to the end has arrived."""
        return self.end is not None and self.received == self.end

    @property
    def credit_word(self) -> int:
        """The word of a CREDIT, to be sent whenever it has changed."""
        over = self.closed or (self.end is not None and self.returned == self.end)
        return self.returned << 1 | over

    def slot_for(self, word: int) -> int | None:
        """Return the slot for the content of a PUSH; None if it is to be dropped.

        Counts repeated ones. Raises ProtocolError for a use without a credit, or after the end.
        """
        use, ends = word >> 1, bool(word & _END)
        if ends:
            self._check_end(use)
            return None
        if use >= self.returned + self.slots or (self.end is not None and use >= self.end):
            msg = f"slot use {use} of a push channel came without a credit, or after the end"
            raise ProtocolError(msg)
        if self.closed:
            return None
        if use < self.received or self._left[use % self.slots] is not None:
            self.repeated += 1
            return None
        return use % self.slots

    def arrived(self, word: int, left: int = 0) -> None:
        """Record that the content of a PUSH that `slot_for` accepted is in its slot.

        `left` slots of the same message follow this one. Raises ProtocolError for an impossible
        end.
        """
        use, ends = word >> 1, bool(word & _END)
        if ends:
            self._check_end(use)
            self.end = use
            return
        self._left[use % self.slots] = left
        while (
            self.received < self.returned + self.slots
            and self._left[self.received % self.slots] is not None
        ):
            self.received += 1

    def _check_end(self, uses: int) -> None:
        window = range(self.received, self.returned + self.slots)
        here = [use + 1 for use in window if self._left[use % self.slots] is not None]
        highest = max(here, default=self.received)
        if uses < highest or self.end not in {None, uses} or uses > self.returned + self.slots:
            msg = f"a push channel ends after {uses} slot uses, {highest} have come"
            raise ProtocolError(msg)

    def next_message(self) -> range | None:
        """Return the uses of the next message, if all of it has arrived."""
        left = self._left[self.delivered % self.slots]
        if self.delivered >= self.received or left is None:
            return None
        stop = self.delivered + left + 1
        if stop > self.received:
            return None
        message, self.delivered = range(self.delivered, stop), stop
        return message

    def give_back(self, returned: int) -> None:
        """Return the credits of all uses before `returned`.

        Raises ProtocolError if they have not all arrived: the count in memory was overwritten.
        """
        if returned > self.received:
            msg = f"{returned} slots of a push channel are given back, {self.received} have come"
            raise ProtocolError(msg)
        for use in range(self.returned, returned):
            self._left[use % self.slots] = None
        self.returned = max(self.returned, returned)
        self.delivered = max(self.delivered, self.returned)

    def close(self) -> None:
        """Drop all further messages."""
        self.closed = True
