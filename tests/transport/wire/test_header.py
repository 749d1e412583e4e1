"""The header: golden bytes, round trip, and one clear error for each way to be wrong."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import ForeignMessageError, TruncatedMessageError
from whale_ray.transport.wire.header import (
    ALL_FLAG,
    DATA,
    END_FLAG,
    HEADER_BYTES,
    NO_WATERMARK,
    TIMES_FLAG,
    WATERMARK,
    Header,
)

GOLDEN = bytes.fromhex(
    "5748414c 02 01 0900 03000000 07000000"  # WHAL, version 2, data, ALL|TIMES, 3, 7
    "02000000 00000000 efcdab8967452301"  # attempt 2, reserved, sequence
    "00200000 00000000 ffffffffffffffff"  # 8192 rows, no payload, watermark -1
    "1500000000000000 04030201 00000000"  # origin 21, schema id, no checksum
)
HEADER = Header(
    kind=DATA,
    flags=ALL_FLAG | TIMES_FLAG,
    stream=3,
    source=7,
    attempt=2,
    sequence=0x0123456789ABCDEF,
    row_count=8192,
    payload_length=0,
    watermark_ns=-1,
    origin_ns=21,
    schema_id=0x01020304,
    checksum=0,
)


def frame_of(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def test_golden_bytes():
    buffer = np.zeros(HEADER_BYTES, np.uint8)
    HEADER.pack_into(buffer)
    assert buffer.tobytes().hex() == GOLDEN.hex()
    assert Header.unpack(frame_of(GOLDEN)) == HEADER


U16, U32, I64 = (
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(-(2**63), 2**63 - 1),
)


@given(st.integers(1, 4), U16, st.tuples(U32, U32, U32), st.integers(0, 2**64 - 1), U32, I64)
def test_every_value_survives(kind, flags, words, sequence, rows, watermark_ns):
    header = Header(kind, flags, *words, sequence, rows, 0, watermark_ns, 0, words[0], words[1])
    buffer = np.zeros(HEADER_BYTES + 8, np.uint8)
    header.pack_into(buffer)
    assert Header.unpack(buffer) == header


def test_flags_have_names():
    assert HEADER.to_all
    assert not HEADER.is_end
    end = HEADER._replace(kind=WATERMARK, flags=END_FLAG, watermark_ns=NO_WATERMARK)
    assert end.is_end
    assert not end.to_all
    assert end.describe() == (
        "watermark message 81985529216486895 of stream 3, source 7, attempt 2"
    )


def test_a_foreign_message():
    with pytest.raises(ForeignMessageError) as error:
        Header.unpack(frame_of(b"GET / HTTP/1.1".ljust(64)))
    assert str(error.value) == (
        "not a message of whale-ray: it starts with 0x20544547 instead of 0x4c414857"
    )


def test_another_version():
    with pytest.raises(ForeignMessageError) as error:
        Header.unpack(frame_of(GOLDEN[:4] + b"\x01" + GOLDEN[5:]))
    assert str(error.value) == (
        "a message of wire version 1, this whale-ray reads 2; run one version of whale-ray "
        "everywhere"
    )


def test_an_unknown_kind():
    with pytest.raises(ForeignMessageError) as error:
        Header.unpack(frame_of(GOLDEN[:5] + b"\x09" + GOLDEN[6:]))
    assert str(error.value) == "a message of unknown kind 9"


def test_reserved_bytes_are_0():
    with pytest.raises(ForeignMessageError) as error:
        Header.unpack(frame_of(GOLDEN[:20] + b"\x05" + GOLDEN[21:]))
    assert str(error.value) == "a message whose reserved bytes are not 0"


def test_a_header_cut_short():
    with pytest.raises(TruncatedMessageError) as error:
        Header.unpack(frame_of(GOLDEN[:63]))
    assert str(error.value) == "a message of 63 bytes; its header alone takes 64"


def test_a_payload_cut_short():
    longer = GOLDEN[:36] + struct.pack("<I", 1000) + GOLDEN[40:]
    with pytest.raises(TruncatedMessageError) as error:
        Header.unpack(frame_of(longer + bytes(10)))
    assert str(error.value) == (
        "data message 81985529216486895 of stream 3, source 7, attempt 2 has 1000 bytes of "
        "payload, of which 10 are here"
    )
