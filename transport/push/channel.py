"""Push channels (Slash 4.5): the sender writes into the receiver's memory, and spends credits.

For streams from one sender to one receiver, such as state deltas. The receiver creates the
channel, c slots of m bytes (layout.py), and hands its `PushHandle` to the sender. A message
that fits one slot is received in place; while views of it are alive, the credits of its slot and of
later ones are not returned. A larger message takes several slots and is received as a copy, whose
views hold no slot; beyond `max_frame_bytes` it is TOO_LARGE.
"""

from __future__ import annotations

import weakref
from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...configs.errors import CorruptedMessageError, ResourceError
from ..atomics import direct
from ..channel import (
    ChannelStatistics,
    Encode,
    Frame,
    Outcome,
    ReceivingEnd,
    SendingEnd,
    check_held_views,
)
from ..doorbell import Doorbell
from ..ring_kernels import LENGTH_SHIFT, new_state
from ..ring_layout import CLOSED, EXPECTED
from ..segment import Bytes, Segment, SegmentHandle, SegmentKind, Words
from . import kernels
from .layout import DATA_OFFSET, RECEIVER_STATE, PushLayout

_REFUSALS: Final = {kernels.NO_ROOM: Outcome.BACK_PRESSURED, kernels.ALL_CLOSED: Outcome.CLOSED}
_OFFSET_MASK: Final = (1 << LENGTH_SHIFT) - 1
_SENT: Final = Outcome.SENT
_NEXT_WORD: Final = kernels.NEXT // 8
_NOT_OPEN: Final = "the channel is not open: call open() first"
_NO_VIEW: Final[weakref.ref[Bytes]] = weakref.ref(np.empty(0, np.uint8))

# Called for every message, without numba's check of the arguments' types.
_reserve: Final = direct(kernels.reserve)
_commit: Final = direct(kernels.commit)
_next_message: Final = direct(kernels.next_message)
_has_message: Final = direct(kernels.has_message)
_give_back: Final = direct(kernels.give_back)


@dataclass(frozen=True, slots=True)
class PushHandle:
    """What the sender needs to attach a push channel; picklable."""

    segment: SegmentHandle


def new_end_state(segment: Segment, layout: PushLayout, doorbell: Doorbell | None) -> Words:
    """Return the private block of either end: what the functions of kernels.py take."""
    state = new_state()
    for field, value in (
        (kernels.CHANNEL, segment.address),
        (kernels.DATA, segment.address + DATA_OFFSET),
        (kernels.SLOTS, layout.slots),
        (kernels.SLOT_BYTES, layout.slot_bytes),
        (kernels.DOORBELL, 0 if doorbell is None else doorbell.line),
    ):
        state[field // 8] = value
    return state


class PushSendingEnd(SendingEnd):
    """The sending end, the only writer of the slots."""

    def __init__(self, segment: Segment, doorbell: Doorbell | None = None) -> None:
        """Take over an attached segment, closed with this end; `open` begins.

        `doorbell` is the receiver's, rung when a message was sent.
        """
        self._segment = segment
        self._layout = PushLayout.read(segment)
        self._doorbell = doorbell  # whose memory the kernels reach by its address
        self._data: Bytes = segment.buffer[DATA_OFFSET:]
        self._large = np.empty(0, np.uint8)
        self._last_lag: int | None = None
        self._ready = False  # open, and not closed
        self._closed = False
        self._limit = self._layout.max_frame_bytes
        self._state = new_end_state(segment, self._layout, doorbell)
        self._state_address = int(self._state.ctypes.data)

    @property
    def layout(self) -> PushLayout:
        """The channel's sizes."""
        return self._layout

    @property
    def max_frame_bytes(self) -> int:
        """The largest payload that `put` takes."""
        return self._layout.max_frame_bytes

    @property
    def state_address(self) -> int:
        """The argument `state` of the functions of kernels.py, for compiled senders.

        Valid as long as this object lives and is not closed.
        """
        return self._state_address

    def open(self) -> None:
        """Take the sender's place; ResourceError if there is a sender, or was one."""
        if self._ready or self._closed:
            return
        if kernels.take_place(self._state_address) != EXPECTED:
            msg = f"push channel {self._segment.handle.path!r} has, or had, another sender"
            raise ResourceError(msg)
        self._ready = True

    def ready_to_send(self, nbytes: int) -> Outcome:
        """See `Channel.ready_to_send`."""
        if nbytes > self._limit or not self._ready:
            return self._cannot()
        count = max(1, -(-nbytes // self._layout.room))
        refusal = kernels.reserve_slots(self._state_address, count)
        return _SENT if refusal >= 0 else _REFUSALS[refusal]

    def put(self, nbytes: int, encode: Encode) -> Outcome:
        """See `Channel.put`."""
        if nbytes > self._limit or not self._ready:
            return self._cannot()
        if nbytes > self._layout.room:
            return self._put_large(nbytes, encode)
        offset = _reserve(self._state_address, nbytes)
        if offset < 0:
            return _REFUSALS[offset]
        used = _encoded(encode, self._data[offset : offset + nbytes])
        _commit(self._state_address, used)
        return _SENT

    def _put_large(self, nbytes: int, encode: Encode) -> Outcome:
        """Let `encode` write into memory of our own, then cut that into slots."""
        outcome = self.ready_to_send(nbytes)
        if outcome is not _SENT:
            return outcome
        if self._large.size == 0:
            self._large = np.empty(self._layout.max_frame_bytes, np.uint8)
        used = _encoded(encode, self._large[:nbytes])
        kernels.commit_fragments(self._state_address, int(self._large.ctypes.data), used)
        return _SENT

    def put_copy(self, payload: Bytes) -> Outcome:
        """Send a copy of `payload`, contiguous uint8 (n,), in one call of compiled code."""
        if payload.size > self._limit or not self._ready:
            return self._cannot()
        result = kernels.put_copy(self._state_address, payload)
        return _SENT if result >= 0 else _REFUSALS[result]

    def _cannot(self) -> Outcome:
        """Return why this end cannot send a message of this size."""
        if self._closed:
            return Outcome.CLOSED
        if not self._ready:
            raise RuntimeError(_NOT_OPEN)
        return Outcome.TOO_LARGE

    def peer_died(self) -> None:
        """Handle that the receiver is dead; callable from any thread."""
        # The view keeps the memory mapped if another thread closes this end meanwhile.
        mapped = self._segment.buffer
        if mapped.size > 0:
            mapped[RECEIVER_STATE : RECEIVER_STATE + 8].view(np.int64)[0] = CLOSED

    @property
    def closed_by_peer(self) -> bool:
        """Whether the receiver has closed or is known to be dead."""
        return not self._closed and bool(kernels.receiver_closed(self._state_address))

    def statistics(self) -> ChannelStatistics:
        """See `Channel.statistics`."""
        state = self._state
        return ChannelStatistics(
            frames=int(state[kernels.FRAMES // 8]),
            payload_bytes=int(state[kernels.PAYLOAD_BYTES // 8]),
            padding_bytes=0,
            back_pressured=int(state[kernels.BACK_PRESSURED // 8]),
            capacity_bytes=self._layout.capacity,
            lag_bytes=(self._last_lag if self._closed else self._lag(),),
            held_bytes=0,
        )

    def _lag(self) -> int | None:
        if kernels.receiver_closed(self._state_address):
            return None
        return int(kernels.uses_out(self._state_address)) * self._layout.slot_bytes

    def close(self) -> None:
        """End the stream: the receiver still gets every message sent."""
        if self._closed:
            return
        self._last_lag = self._lag()
        self._closed = True
        if self._ready:
            kernels.close_sender(self._state_address)
        self._ready = False
        self._data = self._large = np.empty(0, np.uint8)
        self._segment.close()


def _encoded(encode: Encode, target: Bytes) -> int:
    used = encode(target)
    if not 0 <= used <= target.size:
        msg = f"encode used {used} of {target.size} reserved bytes"
        raise ValueError(msg)
    return used


class PushReceivingEnd(ReceivingEnd):
    """The receiving end, which owns the memory."""

    def __init__(
        self,
        segment: Segment,
        layout: PushLayout,
        doorbell: Doorbell | None = None,
        *,
        poison_released: bool = False,
        held_fraction: float = 0.5,
    ) -> None:
        """Make `segment`, fresh and of `layout.total_bytes`, a push channel that this end owns.

        `doorbell` is the sender's, rung when it waits for credits. With `poison_released`
        payloads are overwritten as soon as they are released.
        """
        layout.write(segment)
        self._segment = segment
        self._layout = layout
        self._doorbell = doorbell
        self._held_limit = int(held_fraction * layout.capacity)
        self._held_bytes = 0
        self._next = 0
        self._peer_dead = False
        self._closed = False
        self._last_lag = 0
        # An array made of this memoryview has it as its base, not another array: it is the root
        # of all views of the frame, and its life tells whether any of them is left.
        self._memory = segment.memory(DATA_OFFSET, layout.total_bytes).toreadonly()
        # Oldest first; each takes a slot at least.
        self._frames: deque[Frame] = deque(maxlen=layout.slots)
        self._state = new_end_state(segment, layout, doorbell)
        self._state[kernels.POISONS // 8] = int(poison_released)
        self._state_address = int(self._state.ctypes.data)
        self._words = self._state.data  # whose items are Python ints

    @property
    def layout(self) -> PushLayout:
        """The channel's sizes."""
        return self._layout

    @property
    def segment(self) -> Segment:
        """The channel's memory, which this end owns."""
        return self._segment

    @property
    def state_address(self) -> int:
        """The argument `state` of the functions of kernels.py, for compiled receivers.

        Valid as long as this object lives and is not closed. Such a receiver must not mix its own
        `next_message` with `get`.
        """
        return self._state_address

    def open(self) -> None:
        """Do nothing: a push channel can be received from before its sender attaches."""

    def available(self) -> bool:
        """See `Channel.available`."""
        if self._closed:
            return False
        if self._frames:
            self._reclaim()
        # If too much is held, no message may ever come for want of credits: `get` then raises.
        return self._held_bytes > self._held_limit or bool(_has_message(self._state_address))

    def get(self) -> Frame | None:
        """See `Channel.get`."""
        if self._closed:
            return None
        if self._held_bytes:
            self._check_held()
        word = _next_message(self._state_address)
        if word >= 0:
            # Not np.ndarray(buffer=...), which would refer to the mapping without keeping it
            # mapped.
            data = np.frombuffer(self._memory, np.uint8, word >> LENGTH_SHIFT, word & _OFFSET_MASK)
        elif word == kernels.EMPTY:
            return None
        elif word == kernels.FRAGMENTED:
            data = np.empty(self._words[kernels.FOUND_BYTES // 8], np.uint8)
            kernels.assemble(self._state_address, data)
            data.flags.writeable = False
        else:
            raise self._corrupted()
        position, self._next = self._next, self._words[_NEXT_WORD]
        slot_bytes = self._layout.slot_bytes
        frame = Frame(data, position * slot_bytes, self._next * slot_bytes)
        self._frames.append(frame)
        return frame

    def release_buffer(self, frame: Frame) -> None:
        """See `Channel.release_buffer`."""
        if self._closed:
            return
        frame.release()
        if frame.size > self._layout.slot_bytes:
            frame.view = _NO_VIEW  # a copy: views of it hold no slot
        self._held_bytes += frame.size
        self._reclaim()

    def _reclaim(self) -> None:
        """Return the credits of the oldest messages of which no view is alive."""
        frames = self._frames
        end = -1
        while frames:
            frame = frames[0]
            if frame.view is None or frame.view() is not None:
                break
            frames.popleft()
            end = frame.end
            self._held_bytes -= frame.size
        if end >= 0:
            _give_back(self._state_address, end // self._layout.slot_bytes)

    def _check_held(self) -> None:
        self._reclaim()
        if self._held_bytes > self._held_limit:
            check_held_views(
                self._still_held_bytes, self._held_limit, self._layout.capacity, "push channel"
            )

    def _still_held_bytes(self) -> int:
        self._reclaim()
        return self._held_bytes

    def _corrupted(self) -> CorruptedMessageError:
        msg = (
            f"push channel {self._segment.handle.path!r} holds no message at slot use "
            f"{self._next}: its memory was overwritten"
        )
        return CorruptedMessageError(msg)

    def peer_died(self) -> None:
        """Handle that the sender is dead; callable from any thread.

        The messages that it sent can still be received; `closed_by_peer` is true after them.
        """
        self._peer_dead = True

    @property
    def closed_by_peer(self) -> bool:
        """Whether the sender has closed, or is dead, and every message was received."""
        if self._closed:
            return False
        if self._peer_dead:
            return not _has_message(self._state_address)
        return bool(kernels.is_drained(self._state_address))

    def statistics(self) -> ChannelStatistics:
        """See `Channel.statistics`."""
        state = self._state
        if not self._closed:
            self._last_lag = int(kernels.uses_in(self._state_address)) * self._layout.slot_bytes
        return ChannelStatistics(
            frames=int(state[kernels.FRAMES // 8]),
            payload_bytes=int(state[kernels.PAYLOAD_BYTES // 8]),
            padding_bytes=0,
            back_pressured=0,
            capacity_bytes=self._layout.capacity,
            lag_bytes=(self._last_lag,),
            held_bytes=self._held_bytes,
        )

    def close(self) -> None:
        """Stop receiving, and release the memory; the sender sees that the receiver has closed."""
        if self._closed:
            return
        self.statistics()
        self._closed = True
        kernels.close_receiver(self._state_address)
        self._frames.clear()
        self._memory = memoryview(b"")
        self._segment.close()


def create_push(
    job: str,
    label: str,
    sender_doorbell: Doorbell | None = None,
    *,
    slots: int,
    slot_bytes: int,
    kind: SegmentKind = "memfd",
    poison_released: bool = False,
    held_fraction: float = 0.5,
) -> tuple[PushReceivingEnd, PushHandle]:
    """Create a push channel; return its receiving end and handle.

    `slots` and `slot_bytes` are the settings push_slots and push_slot_bytes (layout.py).
    `label` must be unique in the job and process. The sender must have attached before the
    receiver closes. Raises ResourceError if there is no room, ValueError for impossible sizes.
    """
    layout = PushLayout(slots, slot_bytes)
    segment = Segment.create(layout.total_bytes, label, job, kind)
    receiver = PushReceivingEnd(
        segment,
        layout,
        sender_doorbell,
        poison_released=poison_released,
        held_fraction=held_fraction,
    )
    return receiver, PushHandle(segment.handle)


def attach_push(handle: PushHandle, receiver_doorbell: Doorbell | None = None) -> PushSendingEnd:
    """Attach a push channel and return its sending end, open.

    `receiver_doorbell` is rung when a message was sent. Raises ResourceError if the channel has
    vanished, is another one, or has a sender already.
    """
    segment = Segment.attach(handle.segment)
    try:
        sender = PushSendingEnd(segment, receiver_doorbell)
        sender.open()
    except BaseException:
        segment.close()
        raise
    return sender
