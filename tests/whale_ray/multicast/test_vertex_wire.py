"""Messages between vertices: golden bytes, there and back, and nothing else is let through."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import (
    CorruptedMessageError,
    ForeignMessageError,
    ProtocolError,
    TruncatedMessageError,
)
from whale_ray.multicast.floors import Acknowledgement
from whale_ray.multicast.switch_messages import Fetch, Leave, Left
from whale_ray.multicast.vertex_wire import MESSAGE_BYTES, pack, unpack

numbers = st.integers(0, 2**32 - 1)
terms = st.integers(0, 2**64 - 1)
positions = st.integers(0, 2**62 - 1)
messages = st.one_of(
    st.builds(Leave, terms, positions, numbers, positions),
    st.builds(Left, terms, positions, numbers),
    st.builds(Fetch, terms, positions, numbers, positions),
    st.builds(Acknowledgement, st.integers(-1, 2**62 - 1), positions),
)

GOLDEN = [
    (Leave(2, 0x300, 4, 5), "57484d43 01 01 0000 07000000 04000000", (2, 0x300, 5)),
    (Left(2, 0x300, 4), "57484d43 01 02 0000 07000000 04000000", (2, 0x300, 0)),
    (Fetch(2, 0x300, 4, 0x500), "57484d43 01 03 0000 07000000 04000000", (2, 0x300, 0x500)),
    (Acknowledgement(-1, 0x500), "57484d43 01 04 0000 07000000 00000000", (0, -1, 0x500)),
]


@pytest.mark.parametrize(("message", "head", "tail"), GOLDEN)
def test_golden_bytes(message, head, tail):
    content = bytes.fromhex(head) + struct.pack("<Qqq", *tail)
    assert pack(7, message) == content
    assert unpack(content) == (7, message)


@given(numbers, messages)
def test_there_and_back(stream, message):
    content = pack(stream, message)
    assert len(content) == MESSAGE_BYTES
    assert unpack(content) == (stream, message)


@given(numbers, messages, st.integers(0, 8 * MESSAGE_BYTES - 1))
def test_a_flipped_bit_is_refused_or_another_message(stream, message, bit):
    content = bytearray(pack(stream, message))
    content[bit // 8] ^= 1 << bit % 8
    try:
        found = unpack(bytes(content))
    except ProtocolError:
        return
    assert pack(*found) == content


@given(st.binary(max_size=2 * MESSAGE_BYTES))
def test_whatever_comes_is_refused_with_a_protocol_error(content):
    with pytest.raises(ProtocolError):
        unpack(content)


@given(st.binary(min_size=MESSAGE_BYTES - 6, max_size=MESSAGE_BYTES - 6))
def test_what_begins_well_and_is_taken_is_what_would_be_sent(rest):
    content = bytes.fromhex("57484d430104") + rest
    try:
        found = unpack(content)
    except ProtocolError:
        return
    assert pack(*found) == content


@pytest.mark.parametrize(
    ("place", "value", "error"),
    [
        (0, 0, ForeignMessageError),
        (4, 2, ForeignMessageError),
        (5, 0, CorruptedMessageError),
        (5, 5, CorruptedMessageError),
        (6, 1, CorruptedMessageError),
        (31, 0x80, CorruptedMessageError),  # an epoch below 0
        (39, 0x80, CorruptedMessageError),  # a position below 0
        (32, 1, CorruptedMessageError),  # a position where none belongs
    ],
)
def test_invalid_messages_are_refused_by_name(place, value, error):
    content = bytearray(pack(7, Left(2, 0x300, 4)))
    content[place] = value
    with pytest.raises(error):
        unpack(bytes(content))
    with pytest.raises(TruncatedMessageError, match="has 40 bytes, not 39"):
        unpack(bytes(content[:-1]))
