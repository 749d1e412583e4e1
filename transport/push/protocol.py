"""A push channel whose two ends share no memory: what to send, what to take, when to forget.

Pure state machines without memory, clock or socket; wire.py joins them to slots and a link, a
simulator to a wire of its own. Both sides have c slots, and use u takes slot u mod c on both: the
sender's copy stays in its slot until the credit for it comes back, so whatever the wire loses can
be sent again.

Two kinds of messages carry one word each::

    PUSH    use * 2            and what stands in the slot
            uses * 2 + 1       the end: that many uses in all
    CREDIT  returned * 2       uses before `returned` are given back
            returned * 2 + 1   and nothing more is wanted: all is received, or the receiver closed

Both kinds can be repeated, reordered or lost and sent again without harm: a use is taken once,
credits only grow, and what the sender must repeat (`PushSender.reconnected`) is what has not come
back. A link says when: after each new connection. On a wire without connections both sides repeat
themselves after a while: the sender calls `reconnected`, the receiver sends `credit_word` again.
What no honest peer can have sent is a ProtocolError.
"""

from __future__ import annotations

from typing import Final

from ...configs.errors import ProtocolError

_END: Final = 1


class PushSender:
    """Spends credits: what it has written goes out, in order, and again where it got lost."""

    def __init__(self, slots: int) -> None:
        """Begin with `slots` credits."""
        self.slots: Final = slots
        self.written = 0
        """Uses that have something in their slot."""
        self.sent = 0
        """Uses that were sent, since the last reconnection at the latest."""
        self.returned = 0
        """Uses that were given back: their slots are free."""
        self.closed = False
        """Whether nothing more will be written."""
        self.peer_closed = False
        """Whether the receiver wants nothing more."""
        self._told_end = False

    @property
    def credits(self) -> int:
        """Slots that may be written now."""
        return self.slots - (self.written - self.returned)

    @property
    def delivered(self) -> bool:
        """Whether the receiver has got, and given back, everything up to the end."""
        return self.closed and self.peer_closed and self.returned == self.written

    def slot(self, use: int) -> int:
        """Return the slot of a use."""
        return use % self.slots

    def spend(self, count: int = 1) -> int | None:
        """Take `count` credits: return the first use, None if there are too few or it is over."""
        if count > self.credits or self.closed or self.peer_closed:
            return None
        first = self.written
        self.written += count
        return first

    def close(self) -> None:
        """Let the end follow what has been written."""
        self.closed = True

    def next_word(self) -> int | None:
        """Return the next word to send, None if there is none; what was sent may get lost."""
        if self.peer_closed:
            return None
        if self.sent < self.written:
            self.sent += 1
            return (self.sent - 1) << 1
        if self.closed and not self._told_end:
            self._told_end = True
            return self.written << 1 | _END
        return None

    def credited(self, word: int) -> bool:
        """Take a CREDIT; return whether it said anything new.

        Raises ProtocolError if it gives back what was never sent.
        """
        returned, ends = word >> 1, bool(word & _END)
        # What an earlier connection carried may come back on this one before it is sent again.
        if not 0 <= returned <= self.written:
            msg = f"{returned} slots of a push channel are given back, {self.written} were used"
            raise ProtocolError(msg)
        new = returned > self.returned or (ends and not self.peer_closed)
        self.returned = max(self.returned, returned)
        self.sent = max(self.sent, self.returned)
        self.peer_closed = self.peer_closed or ends
        return new

    def reconnected(self) -> None:
        """Send again whatever has not come back: nobody knows what of it arrived."""
        self.sent = self.returned
        self._told_end = False


class PushReceiver:
    """Takes every use once, and gives credits back in order."""

    def __init__(self, slots: int) -> None:
        """Expect use 0."""
        self.slots: Final = slots
        self.received = 0
        """Uses that have arrived without a gap."""
        self.delivered = 0
        """Uses that `next_message` has handed out."""
        self.returned = 0
        """Uses that were given back."""
        self.end: int | None = None
        """How many uses there will be in all, once known."""
        self.closed = False
        """Whether nothing more is wanted."""
        self.repeated = 0
        """Messages that were here before."""
        self._left: list[int | None] = [None] * slots  # per slot; None: nothing there

    @property
    def finished(self) -> bool:
        """Whether everything up to the end has arrived."""
        return self.end is not None and self.received == self.end

    @property
    def credit_word(self) -> int:
        """What a CREDIT says now; it should be sent whenever it has changed."""
        over = self.closed or (self.end is not None and self.returned == self.end)
        return self.returned << 1 | over

    def slot_for(self, word: int) -> int | None:
        """Return the slot into which the content of a PUSH goes; None if it is to be dropped.

        Counts what was there before. Raises ProtocolError for a use without a credit, or beyond
        the end.
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
        """Take note that the content of a PUSH that `slot_for` accepted is in its slot.

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
        """Hand out the uses of the next message, if it is there as a whole."""
        left = self._left[self.delivered % self.slots]
        if self.delivered >= self.received or left is None:
            return None
        stop = self.delivered + left + 1
        if stop > self.received:
            return None
        message, self.delivered = range(self.delivered, stop), stop
        return message

    def give_back(self, returned: int) -> None:
        """Free the slots of all uses before `returned`.

        Raises ProtocolError if they have not all arrived: somebody overwrote the count.
        """
        if returned > self.received:
            msg = f"{returned} slots of a push channel are given back, {self.received} have come"
            raise ProtocolError(msg)
        for use in range(self.returned, returned):
            self._left[use % self.slots] = None
        self.returned = max(self.returned, returned)
        self.delivered = max(self.delivered, self.returned)

    def close(self) -> None:
        """Want nothing more: whatever comes is dropped."""
        self.closed = True
