"""The 32 bytes of link messages: golden bytes, and a parser that believes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import (
    CorruptedMessageError,
    ForeignMessageError,
    ProtocolError,
    TruncatedMessageError,
)
from whale_ray.transport.links import link_header
from whale_ray.transport.links.link_header import LinkHeader, decode, encode

GOLDEN = {
    encode(link_header.DATA, 1, 7, 64, 0, 128): (
        "57484c4b 03 01 0000 01000000 07000000 4000000000000000 00000000 80000000"
    ),
    encode(link_header.SUBSCRIBE, 2, 7, 64, 4096, detail=12): (
        "57484c4b 03 02 0c00 02000000 07000000 4000000000000000 00100000 00000000"
    ),
    encode(link_header.SUBSCRIBE, 2, 7, 64, 4096, detail=12 | 3 << link_header.CAPACITY_BITS): (
        "57484c4b 03 02 6c00 02000000 07000000 4000000000000000 00100000 00000000"
    ),
    encode(link_header.DATA, 1, 7, 64, 0, 128, detail=3): (
        "57484c4b 03 01 0300 01000000 07000000 4000000000000000 00000000 80000000"
    ),
    encode(link_header.GRANT, 3, 7, 1 << 40, 4096): (
        "57484c4b 03 03 0000 03000000 07000000 0000000000010000 00100000 00000000"
    ),
    encode(link_header.FINISHED, 4, 7, 192): (
        "57484c4b 03 04 0000 04000000 07000000 c000000000000000 00000000 00000000"
    ),
    encode(link_header.HEARTBEAT, 5, 0xABCD, 123, 9, detail=1): (
        "57484c4b 03 05 0100 05000000 cdab0000 7b00000000000000 09000000 00000000"
    ),
    encode(link_header.CONTROL, 6, 0, 11, 0xABCD, 3): (
        "57484c4b 03 06 0000 06000000 00000000 0b00000000000000 cdab0000 03000000"
    ),
    encode(link_header.GOODBYE, -1, link_header.NO_STREAM): (
        "57484c4b 03 07 0000 ffffffff ffffffff 0000000000000000 00000000 00000000"
    ),
}


@pytest.mark.parametrize(("encoded", "golden"), GOLDEN.items())
def test_golden_bytes(encoded, golden):
    assert encoded == bytes.fromhex(golden)
    header = decode(encoded)
    again = encode(
        header.kind,
        header.sequence,
        header.stream,
        header.position,
        header.extra,
        header.length,
        header.detail,
    )
    assert again == encoded


def test_every_kind_has_golden_bytes():
    assert {decode(encoded).kind for encoded in GOLDEN} == set(link_header.KIND_NAMES)


@pytest.mark.parametrize("encoded", GOLDEN)
def test_truncated(encoded):
    for size in range(len(encoded)):
        with pytest.raises(TruncatedMessageError, match=f"of {size} bytes: .* takes 32"):
            decode(encoded[:size])


REFUSED = [
    (CorruptedMessageError, encode(link_header.DATA, 0, 1, 0, 0, 0), "data message of 0 bytes"),
    (CorruptedMessageError, encode(link_header.CONTROL, 0, 0, 0, 0, 0), "control message of 0"),
    (
        CorruptedMessageError,
        encode(link_header.DATA, 0, 1, 0, 0, 0xFFFFFFC0),
        "4,294,967,232 bytes",
    ),
    (
        CorruptedMessageError,
        encode(link_header.DATA, 0, 1, 0, 0, (1 << 20) + 64),
        "1,048,640 bytes",
    ),
    (CorruptedMessageError, encode(link_header.CONTROL, 0, 0, 0, 0, 65537), "65,537 bytes"),
    (CorruptedMessageError, encode(link_header.GRANT, 0, 1, 0, 0, 1), "grant message of 1 bytes"),
    (CorruptedMessageError, encode(link_header.DATA, 0, 1, 32, 0, 64), "at position 32"),
    (CorruptedMessageError, encode(link_header.DATA, 0, 1, 64, 0, 65), "65 bytes at position 64"),
    (CorruptedMessageError, encode(link_header.GRANT, 0, 1, 1 << 63), "at position 9,223,372"),
    (CorruptedMessageError, encode(link_header.GRANT, 0, 1, 64, (1 << 30) + 1), "cannot have"),
    (CorruptedMessageError, encode(link_header.SUBSCRIBE, 0, 1, 0, 0, detail=31), "cannot have"),
    (CorruptedMessageError, encode(link_header.DATA, 0, 1, 64, 1, 64), "cannot have"),
    (CorruptedMessageError, encode(link_header.DATA, 0, 1, 0, 0, 64, 1 << 11), "cannot have"),
    (CorruptedMessageError, encode(link_header.FINISHED, 0, 1, 64, detail=1 << 11), "cannot have"),
    (CorruptedMessageError, encode(link_header.FINISHED, 0, 1, 65), "cannot have"),
    (CorruptedMessageError, encode(link_header.HEARTBEAT, 0, detail=2), "cannot have"),
    (CorruptedMessageError, encode(link_header.GOODBYE, 0, 1, 1), "cannot have"),
    (ForeignMessageError, encode(0, 0), "unknown kind 0"),
    (ForeignMessageError, encode(8, 0), "unknown kind 8"),
    (ForeignMessageError, bytes(32), "begins with 0x00000000"),
    (ForeignMessageError, b"GET / HTTP/1.1\r\nHost: whale-ray\r\n", "begins with 0x20544547"),
    (
        ForeignMessageError,
        bytes.fromhex("57484c4b 01 05") + bytes(26),
        "version 1, this is version 3: all hosts of a job must run the same version",
    ),
]


@pytest.mark.parametrize(("error", "encoded", "why"), REFUSED)
def test_refused(error, encoded, why):
    with pytest.raises(error, match=why):
        decode(encoded)


@given(st.binary(min_size=0, max_size=64))
def test_random_bytes_are_refused_or_truncated(content):
    with pytest.raises((ForeignMessageError, TruncatedMessageError)):
        decode(content)


@given(st.sampled_from(list(GOLDEN)), st.lists(st.tuples(st.integers(0, 31), st.integers(0, 255))))
def test_mutated_headers_give_a_header_within_its_limits_or_a_protocol_error(encoded, changes):
    mutated = bytearray(encoded)
    for place, byte in changes:
        mutated[place] = byte
    try:
        header = decode(mutated)
    except ProtocolError:
        return
    assert isinstance(header, LinkHeader)
    assert header.kind in link_header.KIND_NAMES
    assert 0 <= header.length <= link_header.DATA_BYTES_MAX
    assert 0 <= header.position <= link_header.POSITION_MAX
    assert encode(*_in_order_of_encode(header)) == bytes(mutated)


def _in_order_of_encode(header: LinkHeader) -> tuple[int, ...]:
    kind, detail, sequence, stream, position, extra, length = header
    return kind, sequence, stream, position, extra, length, detail
