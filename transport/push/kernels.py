"""The algorithms of the push channel in memory, compiled: one call moves one message.

Each end keeps a private block of words, described by the constants below, whose address all
functions take (as ring_kernels.py does, which says why). Memory order: the last word of a slot is
stored with release after everything else in it, and loaded with acquire before; *returned* is
stored with release after the receiver's last access, and loaded with acquire before the sender
overwrites. Fences stand where one side publishes and then asks whether the other sleeps.
"""

from __future__ import annotations

from typing import Final

from numba import types

from ..atomics import (
    copy,
    exchange,
    fence,
    fill,
    inner,
    kernel,
    load,
    load_acquire,
    store,
    store_release,
)
from ..doorbell import ring_line
from ..ring_kernels import LENGTH_SHIFT, POISON
from ..ring_layout import CLOSED, OPEN
from ..segment import Bytes
from .layout import (
    CLOSED_AT,
    EXTENT_BACK,
    FOOTER_BYTES,
    LAP_BACK,
    LEFT_BACK,
    PAYLOAD_ALIGNMENT,
    RECEIVER_STATE,
    RETURNED,
    SENDER_STATE,
    USE_BACK,
    WANTED,
)

# Results of the kernels in place of an offset or count.
NO_ROOM: Final = -1
ALL_CLOSED: Final = -2
EMPTY: Final = -1
NOT_A_FRAME: Final = -2
FRAGMENTED: Final = -3
"""`next_message`: the message lies in several slots, call `assemble`."""

# Both ends: byte offsets into the private block.
CHANNEL: Final = 0  # address of the segment
DATA: Final = 8  # address of slot 0
SLOTS: Final = 16
SLOT_BYTES: Final = 24
FRAMES: Final = 32  # messages sent, or delivered
PAYLOAD_BYTES: Final = 40
DOORBELL: Final = 48  # the other side's, or 0

# The sender's end.
SENT: Final = 56  # uses
RETURNED_SEEN: Final = 64
START: Final = 72  # of the payload that is reserved
BACK_PRESSURED: Final = 80

# The receiver's end.
NEXT: Final = 56  # use
OWN_RETURNED: Final = 64
POISONS: Final = 72  # 1: overwrite payloads that are released
FOUND_SLOTS: Final = 80  # of the fragmented message that was found
FOUND_BYTES: Final = 88

_LAPS = 255
_EXTENT_MASK = (1 << 32) - 1
_LAP_SHIFT = 56
_BYTE = 255

# Read-only arrays would not match the plain type.
_BYTES_IN = types.Array(types.uint8, 1, "C", readonly=True)


@inner
def _slot_end(state: int, use: int) -> int:
    """Return the address behind the slot of a use."""
    return load(state + DATA) + (use % load(state + SLOTS) + 1) * load(state + SLOT_BYTES)


@inner
def _lap(state: int, use: int) -> int:
    return use // load(state + SLOTS) % _LAPS + 1


@inner
def _is_there(state: int, use: int) -> bool:
    """Poll the last byte of a slot."""
    word = load_acquire(_slot_end(state, use) - LAP_BACK)
    return (word >> _LAP_SHIFT) & _BYTE == _lap(state, use)


# --- the sender -----------------------------------------------------------------------------


@inner
def _look_at_receiver(state: int) -> int:
    returned = load_acquire(load(state + CHANNEL) + RETURNED)
    store(state + RETURNED_SEEN, returned)
    return returned


@kernel("int64(int64, int64)")
def reserve_slots(state: int, count: int) -> int:
    """Find credits for `count` slots: 0, NO_ROOM (and ask to be woken) or ALL_CLOSED."""
    channel = load(state + CHANNEL)
    if load_acquire(channel + RECEIVER_STATE) == CLOSED:
        return ALL_CLOSED
    needed = load(state + SENT) + count - load(state + SLOTS)
    if needed > load(state + RETURNED_SEEN) and needed > _look_at_receiver(state):
        store(channel + WANTED, needed)
        # Either this look sees what a receiver gives back now, or that receiver, which fences
        # between giving and its look at the wanted count, sees that it must ring.
        fence()
        if load_acquire(channel + RECEIVER_STATE) == CLOSED:
            return ALL_CLOSED
        if needed > _look_at_receiver(state):
            store(state + BACK_PRESSURED, load(state + BACK_PRESSURED) + 1)
            return NO_ROOM
    if load(channel + WANTED) != 0:
        store(channel + WANTED, 0)
    return 0


@kernel("int64(int64, int64)")
def reserve(state: int, nbytes: int) -> int:
    """Find a slot for a message that fits one: the payload's offset in the data, or a refusal.

    Nothing is visible before `commit`; a reservation that is not committed is forgotten.
    """
    refusal = reserve_slots(state, 1)
    if refusal < 0:
        return refusal
    slot_bytes = load(state + SLOT_BYTES)
    start = (slot_bytes - FOOTER_BYTES - nbytes) & -PAYLOAD_ALIGNMENT
    store(state + START, start)
    return load(state + SENT) % load(state + SLOTS) * slot_bytes + start


@inner
def _publish_slot(state: int, start: int, nbytes: int, left: int) -> None:
    """Write the footer of the next use, its last byte last: the slot is the receiver's."""
    use = load(state + SENT)
    end = _slot_end(state, use)
    store(end - USE_BACK, use)
    store(end - EXTENT_BACK, start | (nbytes << LENGTH_SHIFT))
    store(end - LEFT_BACK, left)
    store_release(end - LAP_BACK, _lap(state, use) << _LAP_SHIFT)
    store(state + SENT, use + 1)


@inner
def _count_and_ring(state: int, nbytes: int) -> None:
    store(state + FRAMES, load(state + FRAMES) + 1)
    store(state + PAYLOAD_BYTES, load(state + PAYLOAD_BYTES) + nbytes)
    doorbell = load(state + DOORBELL)
    if doorbell != 0:
        fence()
        ring_line(doorbell)


@kernel("void(int64, int64)")
def commit(state: int, nbytes: int) -> None:
    """Send the reserved slot with the first `nbytes` of its payload."""
    _publish_slot(state, load(state + START), nbytes, 0)
    _count_and_ring(state, nbytes)


@inner
def _slots_of(state: int, nbytes: int) -> int:
    room = load(state + SLOT_BYTES) - FOOTER_BYTES
    return max(1, (nbytes + room - 1) // room)


@kernel("void(int64, int64, int64)")
def commit_fragments(state: int, source: int, nbytes: int) -> None:
    """Send `nbytes` from address `source` in as many slots as they take; credits are there."""
    room = load(state + SLOT_BYTES) - FOOTER_BYTES
    left = _slots_of(state, nbytes)
    sent = 0
    while left > 0:
        left -= 1
        size = min(room, nbytes - sent)
        start = (room - size) & -PAYLOAD_ALIGNMENT
        end = _slot_end(state, load(state + SENT))
        copy(end - load(state + SLOT_BYTES) + start, source + sent, size)
        _publish_slot(state, start, size, left)
        sent += size
    _count_and_ring(state, nbytes)


@kernel(types.int64(types.int64, _BYTES_IN))
def put_copy(state: int, payload: Bytes) -> int:
    """Send a copy of `payload`: a non-negative number, NO_ROOM or ALL_CLOSED."""
    refusal = reserve_slots(state, _slots_of(state, payload.size))
    if refusal < 0:
        return refusal
    commit_fragments(state, payload.ctypes.data, payload.size)
    return 0


@kernel("int64(int64)")
def take_place(state: int) -> int:
    """Become the channel's sender: what the sender state was before."""
    return exchange(load(state + CHANNEL) + SENDER_STATE, OPEN)


@kernel("void(int64)")
def close_sender(state: int) -> None:
    """End the stream: the receiver sees that nothing follows."""
    channel = load(state + CHANNEL)
    store(channel + SENDER_STATE, CLOSED)
    store_release(channel + CLOSED_AT, load(state + SENT) + 1)
    doorbell = load(state + DOORBELL)
    if doorbell != 0:
        fence()
        ring_line(doorbell)


@kernel("boolean(int64)")
def receiver_closed(state: int) -> bool:
    """Return whether the receiver has closed."""
    return load_acquire(load(state + CHANNEL) + RECEIVER_STATE) == CLOSED


@kernel("int64(int64)")
def uses_out(state: int) -> int:
    """Return how many uses were sent and not returned."""
    return load(state + SENT) - _look_at_receiver(state)


# --- the receiver ---------------------------------------------------------------------------


@inner
def _extent(state: int, use: int, left: int) -> int:
    """Return the extent word of a slot that is there, NOT_A_FRAME if it cannot be right."""
    # Checked although only a faulty sender could write others: the code after this relies on them.
    end = _slot_end(state, use)
    extent = load(end - EXTENT_BACK)
    stop = (extent & _EXTENT_MASK) + (extent >> LENGTH_SHIFT)
    room = load(state + SLOT_BYTES) - FOOTER_BYTES
    if load(end - USE_BACK) != use or load(end - LEFT_BACK) != left or extent < 0 or stop > room:
        return NOT_A_FRAME
    return extent


@inner
def _find(state: int) -> int:
    """Return how many slots the next message takes, 0 if it is not there as a whole."""
    first = load(state + NEXT)
    slots = load(state + SLOTS)
    # A slot that was not released still has the lap before, so it is not taken twice.
    if not _is_there(state, first):
        return 0
    left = load(_slot_end(state, first) - LEFT_BACK)
    if left < 0 or left >= slots // 2:
        return NOT_A_FRAME
    total = 0
    for index in range(left + 1):
        use = first + index
        if not _is_there(state, use):
            return 0
        extent = _extent(state, use, left - index)
        if extent < 0:
            return NOT_A_FRAME
        total += extent >> LENGTH_SHIFT
    store(state + FOUND_SLOTS, left + 1)
    store(state + FOUND_BYTES, total)
    return left + 1


@inner
def _deliver(state: int) -> None:
    store(state + NEXT, load(state + NEXT) + load(state + FOUND_SLOTS))
    store(state + FRAMES, load(state + FRAMES) + 1)
    store(state + PAYLOAD_BYTES, load(state + PAYLOAD_BYTES) + load(state + FOUND_BYTES))


@kernel("int64(int64)")
def next_message(state: int) -> int:
    """Step over the next message, if it lies in one slot: its offset | length << LENGTH_SHIFT.

    Otherwise EMPTY, NOT_A_FRAME, or FRAGMENTED, which steps over nothing. Its bytes stay as they
    are until `give_back` moves past them.
    """
    count = _find(state)
    if count == 0:
        return EMPTY
    if count < 0:
        return NOT_A_FRAME
    if count > 1:
        return FRAGMENTED
    use = load(state + NEXT)
    extent = load(_slot_end(state, use) - EXTENT_BACK)
    _deliver(state)
    return use % load(state + SLOTS) * load(state + SLOT_BYTES) + extent


@kernel("void(int64, uint8[::1])")
def assemble(state: int, target: Bytes) -> None:
    """Copy the fragmented message that was found, FOUND_BYTES long, and step over it."""
    address = target.ctypes.data
    first = load(state + NEXT)
    for use in range(first, first + load(state + FOUND_SLOTS)):
        end = _slot_end(state, use)
        extent = load(end - EXTENT_BACK)
        size = extent >> LENGTH_SHIFT
        copy(address, end - load(state + SLOT_BYTES) + (extent & _EXTENT_MASK), size)
        address += size
    _deliver(state)


@kernel("boolean(int64)")
def has_message(state: int) -> bool:
    """Return whether `next_message` would answer anything but EMPTY."""
    return _find(state) != 0


@kernel("boolean(int64)")
def is_drained(state: int) -> bool:
    """Return whether the sender has closed and every message has been received."""
    return load_acquire(load(state + CHANNEL) + CLOSED_AT) - 1 == load(state + NEXT)


@kernel("int64(int64)")
def uses_in(state: int) -> int:
    """Return how many uses have arrived and were not released."""
    use = load(state + NEXT)
    returned = load(state + OWN_RETURNED)
    while use - returned < load(state + SLOTS) and _is_there(state, use):
        use += 1
    return use - returned


@inner
def _poison(state: int, use: int) -> None:
    slot_bytes = load(state + SLOT_BYTES)
    # Not the footer: its last byte is being polled.
    fill(_slot_end(state, use) - slot_bytes, slot_bytes - FOOTER_BYTES, POISON)


@kernel("void(int64, int64)")
def give_back(state: int, returned: int) -> None:
    """Return the credits of all uses before `returned`, and wake the sender if it waits."""
    before = load(state + OWN_RETURNED)
    if load(state + POISONS) != 0:
        for use in range(before, returned):
            _poison(state, use)
    store(state + OWN_RETURNED, returned)
    channel = load(state + CHANNEL)
    store_release(channel + RETURNED, returned)
    doorbell = load(state + DOORBELL)
    if doorbell != 0:
        fence()
        wanted = load_acquire(channel + WANTED)
        if before < wanted <= returned:
            ring_line(doorbell)


@kernel("void(int64)")
def close_receiver(state: int) -> None:
    """Mark the receiver as closed, and wake the sender if it waits."""
    channel = load(state + CHANNEL)
    store_release(channel + RECEIVER_STATE, CLOSED)
    doorbell = load(state + DOORBELL)
    if doorbell != 0:
        fence()
        if load_acquire(channel + WANTED) != 0:
            ring_line(doorbell)


# --- between hosts (wire.py) -------------------------------------------------------------------


@kernel("int64(int64)")
def step_over_arrived(state: int) -> int:
    """Step over all uses that have arrived, whole messages or not; return the next one."""
    use = load(state + NEXT)
    while use - load(state + OWN_RETURNED) < load(state + SLOTS) and _is_there(state, use):
        use += 1
    store(state + NEXT, use)
    return use


@kernel("int64(int64, int64)")
def start_of(state: int, use: int) -> int:
    """Return the offset of an arrived use's payload in its slot, or NOT_A_FRAME."""
    end = _slot_end(state, use)
    extent = _extent(state, use, load(end - LEFT_BACK))
    return NOT_A_FRAME if extent < 0 else extent & _EXTENT_MASK


@kernel("boolean(int64, int64)")
def publish_arrived(state: int, use: int) -> bool:
    """Write the last word of a slot whose other bytes came over a link; False if not its own."""
    end = _slot_end(state, use)
    if load(end - USE_BACK) != use:
        return False
    store_release(end - LAP_BACK, _lap(state, use) << _LAP_SHIFT)
    doorbell = load(state + DOORBELL)
    if doorbell != 0:
        fence()
        ring_line(doorbell)
    return True


@kernel("void(int64, int64)")
def close_at(state: int, uses: int) -> None:
    """End the stream after the first `uses` uses."""
    store(state + SENT, uses)
    close_sender(state)


@kernel("int64(int64)")
def closed_at(state: int) -> int:
    """Return how many uses there are in all, -1 while the sender has not closed."""
    return load_acquire(load(state + CHANNEL) + CLOSED_AT) - 1


@kernel("int64(int64)")
def returned_by_receiver(state: int) -> int:
    """Return how many uses the receiver has released."""
    return load_acquire(load(state + CHANNEL) + RETURNED)
