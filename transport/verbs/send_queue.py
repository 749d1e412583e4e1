"""Writes frames into registered memory and sends them, one after another."""

from __future__ import annotations

from typing import Final

from . import frames
from .device import Buffer
from .frames import FRAME_BYTES, ITEM_HEADER_BYTES, Credits
from .link_resources import SLOTS
from .queue_pair import QueuePair, WorkRequest

_SIGNAL_EVERY: Final = 8


class SendQueue:
    """The outgoing frames of one queue pair.

    Items are put into an open frame, which is sent when it is full or by `flush`.
    """

    def __init__(self, pair: QueuePair, reads: QueuePair, outbox: Buffer, credits: Credits) -> None:
        """Write into `outbox`; `reads` is the queue pair of READs, which `hold` waits for."""
        device = pair.device
        library = device.library
        self._pair = pair
        self._reads = reads
        self._credits = credits
        self._signaled = library.SIGNALED
        base = outbox.address
        self._addresses = [base + slot * FRAME_BYTES for slot in range(SLOTS)]
        self._views = [
            outbox.view[slot * FRAME_BYTES : (slot + 1) * FRAME_BYTES] for slot in range(SLOTS)
        ]
        self._last_use = [-1] * SLOTS  # the request that sent what was in the slot
        self._slot = 0
        self._at = 0  # where the next item goes; 0: no frame is open
        self._request = WorkRequest(device, library.SEND, outbox.region.lkey)
        self._unsignaled = 0
        self._signal_next = False
        self._held_until = 0  # READs that must be done before the next frame

    @property
    def ready(self) -> bool:
        """Whether another frame can be opened: a slot, a credit and a request are free."""
        return (
            self._last_use[self._slot] < self._pair.completed
            and self._credits.may_send
            and self._pair.room > _SIGNAL_EVERY
            and self._reads.completed >= self._held_until
        )

    def room(self) -> int:
        """Return the largest content of the next item; opens a frame if none is open.

        0 if no frame can be opened now.
        """
        if self._at and FRAME_BYTES - self._at < ITEM_HEADER_BYTES + 64:
            self.flush()
        if not self._at:
            if not self.ready:
                return 0
            self._at = frames.FRAME_HEADER_BYTES
        return FRAME_BYTES - self._at - ITEM_HEADER_BYTES

    def put(self, kind: int, content: bytes | memoryview) -> None:
        """Append an item for which there is `room`."""
        view = self._views[self._slot]
        start = frames.put_item(view, self._at, kind, len(content))
        end = start + len(content)
        view[start:end] = content
        self._at = frames.padded_end(end)

    def signal(self) -> None:
        """Ask for a completion of the open frame, or of the next one."""
        self._signal_next = True

    def hold(self) -> None:
        """Open the next frame only when all READs posted by now are done."""
        self._held_until = self._reads.posted

    def flush(self) -> bool:
        """Send the open frame; return whether there was one. Raises LinkBrokenError.

        One without items is not sent, and its slot stays free.
        """
        if self._at <= frames.FRAME_HEADER_BYTES:
            self._at = 0
            return False
        self._send()
        return True

    def send_credits(self) -> bool:
        """Send a frame that only returns credits, if one is due."""
        if self._at or not self._credits.should_send_credits:
            return False
        if self._last_use[self._slot] >= self._pair.completed or not self._pair.room:
            return False
        self._at = frames.FRAME_HEADER_BYTES
        self._send()
        return True

    def _send(self) -> None:
        slot = self._slot
        nbytes, self._at = self._at, 0
        frames.put_header(self._views[slot], self._credits.frame_sent())
        flags = 0
        self._unsignaled += 1
        if self._signal_next or self._unsignaled >= _SIGNAL_EVERY:
            flags, self._unsignaled, self._signal_next = self._signaled, 0, False
        self._last_use[slot] = self._pair.posted
        self._pair.post(self._request, self._addresses[slot], nbytes, 0, 0, flags)
        self._slot = (slot + 1) % SLOTS

    def close(self) -> None:
        """Release the memory; after the queue pair was closed."""
        self._request.close()
        self._views.clear()
