"""Writes letters into registered memory and sends them, one after the other."""

from __future__ import annotations

from typing import Final

from . import frames
from .device import Buffer
from .equipment import SLOTS
from .frames import ITEM_HEADER_BYTES, LETTER_BYTES, Credits
from .queue_pair import QueuePair, Request

_SIGNAL_EVERY: Final = 8


class SendQueue:
    """The letters of one queue pair on their way out.

    Items are put into an open letter, which goes off when it is full or by `flush`.
    """

    def __init__(self, pair: QueuePair, reads: QueuePair, outbox: Buffer, credits: Credits) -> None:
        """Write into `outbox`; `reads` carries READs, which some letters must not overtake."""
        device = pair.device
        library = device.library
        self._pair = pair
        self._reads = reads
        self._credits = credits
        self._signaled = library.SIGNALED
        base = outbox.address
        self._addresses = [base + slot * LETTER_BYTES for slot in range(SLOTS)]
        self._views = [
            outbox.view[slot * LETTER_BYTES : (slot + 1) * LETTER_BYTES] for slot in range(SLOTS)
        ]
        self._last_use = [-1] * SLOTS  # the request that sent what was in the slot
        self._slot = 0
        self._at = 0  # where the next item goes; 0: no letter is open
        self._request = Request(device, library.SEND, outbox.region.lkey)
        self._unsignaled = 0
        self._signal_next = False
        self._held_until = 0  # READs that must be done before the next letter

    @property
    def ready(self) -> bool:
        """Whether another letter may be begun."""
        return (
            self._last_use[self._slot] < self._pair.completed
            and self._credits.may_send
            and self._pair.room > _SIGNAL_EVERY
            and self._reads.completed >= self._held_until
        )

    def room(self) -> int:
        """Return the bytes of content that the next item may have; opens a letter if need be.

        0 if no letter may be begun now.
        """
        if self._at and LETTER_BYTES - self._at < ITEM_HEADER_BYTES + 64:
            self.flush()
        if not self._at:
            if not self.ready:
                return 0
            self._at = frames.LETTER_HEADER_BYTES
        return LETTER_BYTES - self._at - ITEM_HEADER_BYTES

    def put(self, kind: int, content: bytes | memoryview) -> None:
        """Append an item for which there is `room`."""
        view = self._views[self._slot]
        start = frames.put_item(view, self._at, kind, len(content))
        end = start + len(content)
        view[start:end] = content
        self._at = frames.behind(end)

    def signal(self) -> None:
        """Have the letter that is open, or the next one, tell of its completion."""
        self._signal_next = True

    def hold(self) -> None:
        """Begin the next letter only when all READs posted by now are done."""
        self._held_until = self._reads.posted

    def flush(self) -> bool:
        """Send the open letter; return whether there was one. Raises LinkBrokenError.

        One that was opened for nothing stays where it is.
        """
        if self._at <= frames.LETTER_HEADER_BYTES:
            self._at = 0
            return False
        self._send()
        return True

    def give_back(self) -> bool:
        """Send a letter that gives credits back, if that is due."""
        if self._at or not self._credits.should_return:
            return False
        if self._last_use[self._slot] >= self._pair.completed or not self._pair.room:
            return False
        self._at = frames.LETTER_HEADER_BYTES
        self._send()
        return True

    def _send(self) -> None:
        slot = self._slot
        nbytes, self._at = self._at, 0
        frames.put_header(self._views[slot], self._credits.wrote())
        flags = 0
        self._unsignaled += 1
        if self._signal_next or self._unsignaled >= _SIGNAL_EVERY:
            flags, self._unsignaled, self._signal_next = self._signaled, 0, False
        self._last_use[slot] = self._pair.posted
        self._pair.post(self._request, self._addresses[slot], nbytes, 0, 0, flags)
        self._slot = (slot + 1) % SLOTS

    def close(self) -> None:
        """Let go of the memory; after the queue pair was closed."""
        self._request.close()
        self._views.clear()
