"""Letters: what they hold, whom they are believed, and the credits that bound them."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from whale_ray.configs.errors import CorruptedMessageError, ProtocolError
from whale_ray.transport.verbs import frames
from whale_ray.transport.verbs.frames import Credits, Memory

GOLDEN = bytes.fromhex(
    "0500000000000000"  # five letters given back
    "0100000003000000"  # BYTES, 3
    "6162630000000000"
    "0500000008000000"  # FENCE, 8
    "0900000000000000"
)


def letter_of(items: list[tuple[int, bytes]], given_back: int = 0) -> memoryview:
    buffer = memoryview(bytearray(frames.LETTER_BYTES))
    at = frames.put_header(buffer, given_back)
    for kind, content in items:
        start = frames.put_item(buffer, at, kind, len(content))
        buffer[start : start + len(content)] = content
        at = frames.behind(start + len(content))
    return buffer[:at]


def test_golden_bytes():
    letter = letter_of([(frames.BYTES, b"abc"), (frames.FENCE, frames.encode_number(9))], 5)
    assert letter.tobytes() == GOLDEN
    assert frames.given_back_by(memoryview(GOLDEN)) == 5
    (_, text), (_, number) = frames.items_of(memoryview(GOLDEN))
    assert bytes(text) == b"abc"
    assert frames.decode_number(number) == 9


ITEMS = st.lists(
    st.one_of(
        st.tuples(st.just(frames.BYTES), st.binary(min_size=1, max_size=300)),
        st.tuples(
            st.sampled_from([frames.FETCH, frames.PLACED]), st.binary(min_size=32, max_size=32)
        ),
        st.tuples(
            st.sampled_from([frames.FENCE, frames.FENCED]), st.binary(min_size=8, max_size=8)
        ),
        st.tuples(st.just(frames.MEMORY), st.binary(min_size=24, max_size=24)),
    ),
    max_size=40,
)


@given(ITEMS, st.integers(0, 1 << 62))
def test_what_is_put_in_comes_out(items, given_back):
    letter = letter_of(items, given_back)
    assert frames.given_back_by(letter) == given_back
    assert [(kind, bytes(content)) for kind, content in frames.items_of(letter)] == items


@given(st.binary(max_size=200))
def test_nonsense_is_an_error_or_stays_within_the_letter(content):
    letter = memoryview(content)
    try:
        frames.given_back_by(letter)
        found = list(frames.items_of(letter))
    except CorruptedMessageError:
        return
    assert sum(len(one) for _, one in found) <= len(content)


def test_a_memory_survives_the_wire():
    memory = Memory(7, 0xFFFF_FFFF, (1 << 64) - 4096, 1 << 30)
    assert Memory.decode(memoryview(memory.encode())) == memory


def test_credits_end_and_come_back():
    near, far = Credits(8, 8), Credits(8, 8)
    for _ in range(6):
        assert near.may_send
        near.wrote()
    assert not near.may_send, "two are kept"
    far.given_back = 3
    assert not far.should_return
    far.given_back = 4
    assert far.should_return, "half of the buffers are worth a letter"
    near.told(far.wrote())
    assert not far.should_return
    assert near.may_send
    assert near.returned == 4


def test_the_last_credits_give_credits_back():
    """Both sides have sent all they may: each still can tell the other what it has taken."""
    near, far = Credits(8, 8), Credits(8, 8)
    for side in (near, far):
        while side.may_send:
            side.wrote()
    near.given_back = far.given_back = 6
    assert near.should_return
    far.told(near.wrote())
    assert far.may_send
    near.told(far.wrote())
    assert near.may_send


@pytest.mark.parametrize("told", [-1, 2, 1 << 63])
def test_credits_that_were_never_spent_are_refused(told):
    credits = Credits(8, 8)
    credits.wrote()
    with pytest.raises(ProtocolError, match="gives .* letters back of 1 sent"):
        credits.told(told)
