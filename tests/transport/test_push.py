"""What the push channel adds to the contract of channels: slots, deaths, doorbells, bad memory."""

from __future__ import annotations

import contextlib
import gc
import pickle
import threading

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from tests.transport.frames import payload, receive, receive_all, send, writer
from tests.transport.push_ends import create_inproc_push
from whale_ray.configs.errors import CorruptedMessageError, HeldViewsError, ResourceError
from whale_ray.configs.settings import TransportSettings
from whale_ray.transport.channel import Outcome
from whale_ray.transport.doorbell import Doorbell
from whale_ray.transport.push.channel import (
    PushSendingEnd,
    attach_push,
    create_push,
)
from whale_ray.transport.push.layout import PushLayout
from whale_ray.transport.segment import Segment
from whale_ray.transport.shm import create_ring

FOREVER_NS = 60_000_000_000
SLOT_BYTES = 256
ROOM = SLOT_BYTES - 32


@pytest.fixture
def push():
    """Return a function that makes channels, which are closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(slots: int = 8, **options):
            ends = create_inproc_push("test", slots=slots, slot_bytes=SLOT_BYTES, **options)
            for end in ends:
                stack.callback(end.close)
            return ends

        yield make


# The memory


def test_golden_slots():
    """The bytes of a message of two slots, laid out by hand."""
    sender, receiver = create_inproc_push("golden", slots=4, slot_bytes=128)
    receiver_memory = receiver.segment.buffer
    content = bytes(range(1, 101))
    assert send(sender, content) is Outcome.SENT
    slots = receiver_memory[4096:].tobytes()
    first = content[:96]
    first += (0).to_bytes(8, "little")  # use
    first += (0).to_bytes(4, "little") + (96).to_bytes(4, "little")  # start, length
    first += (1).to_bytes(8, "little")  # one more follows
    first += bytes(7) + b"\1"  # lap
    second = bytes(64) + content[96:] + bytes(28)
    second += (1).to_bytes(8, "little")
    second += (64).to_bytes(4, "little") + (4).to_bytes(4, "little")
    second += (0).to_bytes(8, "little")
    second += bytes(7) + b"\1"
    assert slots == first + second + bytes(256)
    constants = receiver_memory[128:160].view(np.int64).tolist()
    mark = int.from_bytes(b"PUSH\1\0\0\0", "little")
    assert constants == [mark, 4, 128, 4096]
    assert receive(receiver) == content
    words = receiver_memory[256:512].view(np.int64)
    assert words[:2].tolist() == [2, 1], "returned, receiver open"
    assert words[16:19].tolist() == [0, 0, 1], "wanted, closed at, sender open"
    sender.close()
    assert words[16:19].tolist() == [0, 3, 2]
    receiver.close()
    assert words[:2].tolist() == [2, 2]


def test_the_lap_differs_from_use_to_use_of_a_slot_and_is_never_0():
    sender, receiver = create_inproc_push("laps", slots=2, slot_bytes=128)
    laps = []
    for number in range(2 * 600):
        assert send(sender, payload(number, number % 90)) is Outcome.SENT
        assert receive(receiver) == payload(number, number % 90)
        laps.append(int(receiver.segment.buffer[4096 + (number % 2 + 1) * 128 - 1]))
    assert laps[::2] == laps[1::2] == [number % 255 + 1 for number in range(600)]
    sender.close()
    receiver.close()


@pytest.mark.parametrize(
    ("slots", "slot_bytes", "explanation"),
    [
        (1, 256, "a push channel of 1 slots: from 2 to 4096 may be"),
        (5000, 256, "a push channel of 5000 slots"),
        (8, 64, "slots of 64 bytes: it must be a multiple of 64 from 128 to 1048576"),
        (8, 200, "slots of 200 bytes"),
        (8, 1 << 21, "slots of 2097152 bytes"),
    ],
)
def test_impossible_sizes_are_refused(slots, slot_bytes, explanation):
    with pytest.raises(ValueError, match=explanation):
        PushLayout(slots, slot_bytes)


def test_the_papers_sizes_are_the_default():
    settings = TransportSettings()
    sender, receiver = create_inproc_push(
        "default", slots=settings.push_slots, slot_bytes=settings.push_slot_bytes
    )
    layout = receiver.layout
    assert (layout.slots, layout.slot_bytes, layout.capacity) == (8, 65536, 524288)
    assert sender.max_frame_bytes == 4 * (65536 - 32)
    sender.close()
    receiver.close()


def test_a_segment_that_is_no_push_channel_is_refused():
    producer, handle = create_ring(4096, 1, "test", "no-push")
    segment = Segment.attach(handle.segment)
    with pytest.raises(ResourceError, match="holds no push channel of layout version 1"):
        PushSendingEnd(segment)
    segment.close()
    producer.close()


def test_the_handle_travels():
    receiver, handle = create_push("test", "travels", slots=2, slot_bytes=256)
    sender = attach_push(pickle.loads(pickle.dumps(handle)))
    send(sender, b"x")
    assert receive(receiver) == b"x"
    sender.close()
    receiver.close()


def test_an_end_must_be_open():
    receiver, handle = create_push("test", "not-open", slots=2, slot_bytes=256)
    sender = PushSendingEnd(Segment.attach(handle.segment))
    for call in (lambda: sender.ready_to_send(1), lambda: send(sender, b"x")):
        with pytest.raises(RuntimeError, match="the channel is not open"):
            call()
    sender.open()
    sender.open()
    assert send(sender, b"x") is Outcome.SENT
    sender.close()
    sender.open()
    assert send(sender, b"x") is Outcome.CLOSED
    receiver.close()


# Messages of several slots


@given(size=st.integers(0, 4 * ROOM), slack=st.integers(0, 300), copy=st.booleans())
def test_messages_of_any_size_arrive_whole(size, slack, copy):
    sender, receiver = create_inproc_push("sizes", slots=8, slot_bytes=SLOT_BYTES)
    content = payload(size, size)
    for _ in range(3):
        if copy:
            outcome = sender.put_copy(np.frombuffer(content, np.uint8))
        else:
            outcome = sender.put(min(size + slack, 4 * ROOM), writer(content))
        assert outcome is Outcome.SENT
        assert sender.statistics().lag_bytes == (max(1, -(-size // ROOM)) * SLOT_BYTES,)
        assert receive(receiver) == content
    sender.close()
    receiver.close()


def test_a_message_of_several_slots_is_a_copy_of_its_own(push):
    sender, receiver = push()
    send(sender, payload(0, 2 * ROOM))
    frame = receiver.get()
    view = frame.data[5:]
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    receiver.release_buffer(frame)
    assert receiver.statistics().held_bytes == 0
    with pytest.raises(ValueError, match="already released"):
        receiver.release_buffer(frame)
    for number in range(20):
        send(sender, payload(number, 3 * ROOM))
        assert receive(receiver) == payload(number, 3 * ROOM)
    assert view.tobytes() == payload(0, 2 * ROOM)[5:]


def test_a_message_of_one_slot_is_received_in_place(push):
    sender, receiver = push()
    send(sender, payload(0, ROOM))
    frame = receiver.get()
    memory = receiver.segment.buffer
    assert np.shares_memory(frame.data, memory)
    assert frame.data.ctypes.data % 64 == 0
    send(sender, payload(1, ROOM + 1))
    second = receiver.get()
    assert not np.shares_memory(second.data, memory)


def test_slots_behind_a_held_view_count_as_held(push):
    sender, receiver = push()
    send(sender, b"held")
    frame = receiver.get()
    view = frame.data[:]
    receiver.release_buffer(frame)
    send(sender, payload(1, 4 * ROOM))
    assert receive(receiver) == payload(1, 4 * ROOM)
    assert receiver.statistics().held_bytes == 5 * SLOT_BYTES
    with pytest.raises(HeldViewsError, match="1,280 of the 2,048 bytes of their push channel"):
        receiver.get()
    del view, frame
    assert receiver.get() is None
    assert receiver.statistics().held_bytes == 0


def test_credits_are_needed_for_all_slots_of_a_message(push):
    sender, receiver = push()
    for number in range(3):
        assert send(sender, payload(number, 2 * ROOM)) is Outcome.SENT
    assert sender.ready_to_send(3 * ROOM) is Outcome.BACK_PRESSURED
    assert sender.ready_to_send(2 * ROOM) is Outcome.SENT
    assert send(sender, payload(3, 3 * ROOM)) is Outcome.BACK_PRESSURED
    assert receive(receiver) == payload(0, 2 * ROOM)
    assert send(sender, payload(3, 3 * ROOM)) is Outcome.SENT
    assert [len(content) for content in receive_all(receiver)] == [448, 448, 672]


# Deaths


def test_messages_of_a_dead_sender_are_received_before_the_end(push):
    sender, receiver = push()
    send(sender, b"last")
    receiver.peer_died()
    assert not receiver.closed_by_peer
    assert receive(receiver) == b"last"
    assert receiver.closed_by_peer


def test_a_partial_message_of_a_dead_sender_is_not_received(push):
    sender, receiver = push()
    send(sender, b"whole")
    send(sender, payload(1, 3 * ROOM))
    # As if it had died before the last byte of the third slot.
    receiver.segment.buffer[4096 + 4 * SLOT_BYTES - 1] = 0
    receiver.peer_died()
    assert receive_all(receiver) == [b"whole"]
    assert not receiver.available()
    assert receiver.closed_by_peer


def test_a_sender_learns_of_the_receivers_death(push):
    sender, _receiver = push()
    send(sender, b"x")
    sender.peer_died()
    assert sender.closed_by_peer
    assert send(sender, b"y") is Outcome.CLOSED
    assert sender.statistics().lag_bytes == (None,)
    sender.close()
    sender.peer_died()


def test_the_sender_outlives_the_memory_of_its_receiver():
    receiver, handle = create_push("test", "outlives", slots=2, slot_bytes=256)
    sender = attach_push(handle)
    receiver.close()
    gc.collect()
    assert send(sender, b"y") is Outcome.CLOSED
    assert sender.closed_by_peer
    sender.close()


# Doorbells


def test_a_sleeping_receiver_is_woken_by_messages_and_the_end():
    doorbell = Doorbell.private()
    sender, receiver = create_inproc_push("bells", doorbell, slots=8, slot_bytes=SLOT_BYTES)
    got: list[bytes] = []

    def consume() -> None:
        while not receiver.closed_by_peer:
            assert doorbell.wait(
                FOREVER_NS, lambda: receiver.available() or receiver.closed_by_peer
            )
            got.extend(receive_all(receiver))

    thread = threading.Thread(target=consume)
    thread.start()
    for number in range(50):
        for size in (number, ROOM + number):
            while send(sender, payload(number, size)) is not Outcome.SENT:
                pass
    sender.close()
    thread.join(30)
    assert not thread.is_alive()
    assert len(got) == 100
    receiver.close()


@pytest.mark.parametrize("closes", [False, True])
def test_a_sleeping_sender_is_woken_by_credits_or_the_end(closes):
    doorbell = Doorbell.private()
    sender, receiver = create_inproc_push("bells", None, doorbell, slots=4, slot_bytes=SLOT_BYTES)
    while send(sender, bytes(ROOM)) is Outcome.SENT:
        pass
    outcomes: list[Outcome] = []

    def wait() -> None:
        def ready() -> bool:
            return sender.ready_to_send(2 * ROOM) is not Outcome.BACK_PRESSURED

        assert doorbell.wait(FOREVER_NS, ready)
        outcomes.append(sender.ready_to_send(2 * ROOM))

    thread = threading.Thread(target=wait)
    thread.start()
    if closes:
        receiver.close()
    else:
        assert len(receive_all(receiver)) == 4
    thread.join(30)
    assert outcomes == [Outcome.CLOSED if closes else Outcome.SENT]
    sender.close()
    receiver.close()


# Memory that somebody overwrote


@pytest.mark.parametrize(
    ("word", "value"),
    [
        (-32, 7),  # another use
        (-24, (1 << 40) | 5),  # longer than a slot
        (-24, (200 << 32) | 100),  # reaches into the footer
        (-24, -1),
        (-16, 4),  # a message of more than half of the slots
        (-16, -1),
    ],
)
def test_an_invalid_footer_is_an_error(push, word, value):
    sender, receiver = push()
    send(sender, b"x")
    place = 4096 + SLOT_BYTES + word
    receiver.segment.buffer[place : place + 8].view(np.int64)[0] = value
    assert receiver.available()
    with pytest.raises(CorruptedMessageError) as caught:
        receiver.get()
    assert str(caught.value) == (
        f"push channel {receiver.segment.handle.path!r} holds no message at slot use 0: "
        "its memory was overwritten"
    )


def test_fragments_that_do_not_belong_together_are_an_error(push):
    sender, receiver = push()
    send(sender, payload(0, 2 * ROOM))
    place = 4096 + 2 * SLOT_BYTES - 16
    receiver.segment.buffer[place : place + 8].view(np.int64)[0] = 1
    with pytest.raises(CorruptedMessageError):
        receiver.get()


@given(noise=st.binary(min_size=32, max_size=32), slot=st.integers(0, 3))
def test_random_footers_do_not_crash(noise, slot):
    sender, receiver = create_inproc_push("noise", slots=4, slot_bytes=128)
    for number in range(4):
        send(sender, payload(number, 90))
    end = 4096 + (slot + 1) * 128
    receiver.segment.buffer[end - 32 : end] = np.frombuffer(noise, np.uint8)
    contents = []
    with contextlib.suppress(CorruptedMessageError):
        contents = receive_all(receiver)
    assert contents == [payload(number, 90) for number in range(len(contents))]
    sender.close()
    receiver.close()


# Poison


def test_poison_leaves_the_footers_alone(push):
    sender, receiver = push(slots=2, poison_released=True)
    for number in range(600):
        assert send(sender, payload(number, ROOM)) is Outcome.SENT
        assert receive(receiver) == payload(number, ROOM)
        assert receiver.get() is None
    used = receiver.segment.buffer[4096 : 4096 + ROOM]
    assert set(used.tobytes()) == {0xDB}
