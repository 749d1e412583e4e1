"""Frames: encoding, decoding of invalid ones, and the credits that bound them."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from whale_ray.configs.errors import CorruptedMessageError, ProtocolError
from whale_ray.transport.verbs import frames
from whale_ray.transport.verbs.frames import Credits, RemoteMemory

GOLDEN = bytes.fromhex(
    "0500000000000000"  # five frames released
    "0100000003000000"  # BYTES, 3
    "6162630000000000"
    "0500000008000000"  # FENCE, 8
    "0900000000000000"
)


def frame_of(items: list[tuple[int, bytes]], released: int = 0) -> memoryview:
    buffer = memoryview(bytearray(frames.FRAME_BYTES))
    at = frames.put_header(buffer, released)
    for kind, content in items:
        start = frames.put_item(buffer, at, kind, len(content))
        buffer[start : start + len(content)] = content
        at = frames.padded_end(start + len(content))
    return buffer[:at]


def test_golden_bytes():
    frame = frame_of([(frames.BYTES, b"abc"), (frames.FENCE, frames.encode_number(9))], 5)
    assert frame.tobytes() == GOLDEN
    assert frames.released_by(memoryview(GOLDEN)) == 5
    (_, text), (_, number) = frames.items_of(memoryview(GOLDEN))
    assert bytes(text) == b"abc"
    assert frames.decode_number(number) == 9


ITEMS = st.lists(
    st.one_of(
        st.tuples(st.just(frames.BYTES), st.binary(min_size=1, max_size=300)),
        st.tuples(
            st.sampled_from([frames.TO_READ, frames.WRITTEN]),
            st.binary(min_size=32, max_size=32),
        ),
        st.tuples(
            st.sampled_from([frames.FENCE, frames.FENCED]), st.binary(min_size=8, max_size=8)
        ),
        st.tuples(st.just(frames.MEMORY), st.binary(min_size=24, max_size=24)),
    ),
    max_size=40,
)


@given(ITEMS, st.integers(0, 1 << 62))
def test_frames_round_trip(items, released):
    frame = frame_of(items, released)
    assert frames.released_by(frame) == released
    assert [(kind, bytes(content)) for kind, content in frames.items_of(frame)] == items


@given(st.binary(max_size=200))
def test_random_bytes_are_an_error_or_stays_within_the_frame(content):
    frame = memoryview(content)
    try:
        frames.released_by(frame)
        found = list(frames.items_of(frame))
    except CorruptedMessageError:
        return
    assert sum(len(one) for _, one in found) <= len(content)


def test_a_memory_survives_the_wire():
    memory = RemoteMemory(7, 0xFFFF_FFFF, (1 << 64) - 4096, 1 << 30)
    assert RemoteMemory.decode(memoryview(memory.encode())) == memory


def test_credits_are_used_up_and_returned():
    near, far = Credits(8, 8), Credits(8, 8)
    for _ in range(6):
        assert near.may_send
        near.frame_sent()
    assert not near.may_send, "two are kept"
    far.released = 3
    assert not far.should_send_credits
    far.released = 4
    assert far.should_send_credits, "half of the buffers are worth a frame"
    near.peer_released(far.frame_sent())
    assert not far.should_send_credits
    assert near.may_send
    assert near.returned == 4


def test_the_last_credits_return_credits():
    """Both sides have sent all they may: each can still report the frames that it released."""
    near, far = Credits(8, 8), Credits(8, 8)
    for side in (near, far):
        while side.may_send:
            side.frame_sent()
    near.released = far.released = 6
    assert near.should_send_credits
    far.peer_released(near.frame_sent())
    assert far.may_send
    near.peer_released(far.frame_sent())
    assert near.may_send


@pytest.mark.parametrize("released", [-1, 2, 1 << 63])
def test_credits_that_were_never_spent_are_refused(released):
    credits = Credits(8, 8)
    credits.frame_sent()
    with pytest.raises(ProtocolError, match="has released .* frames of 1 sent"):
        credits.peer_released(released)
