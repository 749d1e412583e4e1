"""Damaged messages: one clear error each, and never a crash or a read beyond the message."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import (
    CorruptedMessageError,
    InputError,
    ProtocolError,
    TruncatedMessageError,
)
from whale_ray.testing.strategies import batches
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.codec import decode, encode_into, encode_schema_into, message_size
from whale_ray.transport.wire.messages import SchemaMessage, WorkerMessage
from whale_ray.transport.wire.types import Schema

PLACE = {"stream": 3, "source": 7, "attempt": 2, "sequence": 100}
WHO = "data message 100 of stream 3, source 7, attempt 2"


def trips() -> Batch:
    return Batch.from_pydict({"s": ["a", None, "bc"], "n": [1, 2, 3], "b": [True, False, True]})


def encode(batch: Batch, **fields: object) -> bytearray:
    buffer = np.zeros(message_size(batch, 1), np.uint8)
    pairs = np.array([[4, len(batch)]], np.uint32)
    length = encode_into(buffer, batch, destinations=pairs, **PLACE, **fields)
    return bytearray(buffer[:length].tobytes())


def read(data: bytes | bytearray, *schemas: Schema) -> object:
    frame = np.frombuffer(bytes(data), np.uint8).copy()
    return decode(frame, {schema.schema_id: schema for schema in schemas})


# Where the parts of `encode(trips())` lie: header 64, counts 8, words 3 × 8, one pair 8, then
# s: validity 8, offsets 16, text 8; n: 24; b: 8.
COUNTS, WORDS, PAIR, VALIDITY, OFFSETS, NUMBERS = 64, 72, 96, 104, 112, 136
BOOLEANS = NUMBERS + 24

DAMAGE = {
    "more columns": (COUNTS + 4, 4, "its parts do not fill its payload"),
    "more destinations": (COUNTS, 2, "its destinations do not end at its rows"),
    "very many destinations": (COUNTS, 2**32 - 1, "its destinations do not end at its rows"),
    "another row end": (PAIR + 4, 2, "its destinations do not end at its rows"),
    "less text": (WORDS, 2, "the offsets of column 's' leave its pool"),
    "much more text": (WORDS, 2**31, "the length of column 's' does not fit"),
    "unknown flag": (WORDS + 4, 2, "the length of column 's' does not fit"),
    "nulls gone": (WORDS + 4, 0, "the offsets of column 's' leave its pool"),
    "another width": (WORDS + 8, 16, "the length of column 'n' does not fit"),
    "falling offsets": (OFFSETS + 4, 5, "the offsets of column 's' leave its pool"),
    "first offset": (OFFSETS, 1, "the offsets of column 's' leave its pool"),
    "last offset": (OFFSETS + 12, 99, "the offsets of column 's' leave its pool"),
    "negative offset": (OFFSETS + 4, 2**32 - 1, "the offsets of column 's' leave its pool"),
    "odd validity": (VALIDITY, 0x020001, "a boolean of column 's' is neither 0 nor 1"),
    "odd boolean": (BOOLEANS, 0xFF, "a boolean of column 'b' is neither 0 nor 1"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_inner_lengths_that_disagree(what):
    place, value, expected = DAMAGE[what]
    data = encode(trips())
    assert len(data) == BOOLEANS + 8
    struct.pack_into("<I", data, place, value)
    with pytest.raises(CorruptedMessageError) as error:
        read(data, trips().schema)
    assert str(error.value) == f"{WHO} of 3 rows is corrupted: {expected}"


@pytest.mark.parametrize("rows", [0, 2, 4, 2**32 - 1])
def test_another_row_count(rows):
    data = encode(trips())
    struct.pack_into("<I", data, 32, rows)
    with pytest.raises(CorruptedMessageError):
        read(data, trips().schema)


def test_a_schema_that_nobody_announced():
    with pytest.raises(CorruptedMessageError) as error:
        read(encode(trips()))
    expected = f"{WHO} has schema id {trips().schema.schema_id:#010x}, which is not announced"
    assert str(error.value) == expected


def test_a_checksum_finds_one_flipped_bit():
    data = encode(trips(), checksum=True)
    good = struct.unpack_from("<I", data, 60)[0]
    assert isinstance(read(data, trips().schema), WorkerMessage)
    data[NUMBERS] ^= 1
    with pytest.raises(CorruptedMessageError) as error:
        read(data, trips().schema)
    assert str(error.value).startswith(f"{WHO} has checksum {good:#010x}, its bytes give 0x")


def test_a_truncated_message_says_what_is_missing():
    data = encode(trips())
    with pytest.raises(TruncatedMessageError) as error:
        read(data[:-8], trips().schema)
    assert str(error.value) == f"{WHO} has 104 bytes of payload, of which 96 are here"


def test_a_schema_message_with_another_schemas_id():
    buffer = np.zeros(200, np.uint8)
    length = encode_schema_into(buffer, trips().schema, stream=3, source=7, attempt=2)
    struct.pack_into("<I", buffer, 56, 99)
    with pytest.raises(CorruptedMessageError) as error:
        read(buffer[:length].tobytes())
    assert str(error.value) == (
        "schema message 0 of stream 3, source 7, attempt 2 has schema id 0x00000063, not its "
        "schema's own"
    )


def test_two_schemas_of_one_id():
    buffer = np.zeros(200, np.uint8)
    length = encode_schema_into(buffer, trips().schema, stream=3, source=7, attempt=2)
    message = read(buffer[:length].tobytes())
    assert isinstance(message, SchemaMessage)
    other = Schema.of(x="int8")
    with pytest.raises(CorruptedMessageError, match="stands for both .x: int8. and .s: string"):
        message.register({message.header.schema_id: other})


def test_a_frame_at_an_odd_place_is_refused():
    data = np.frombuffer(bytes(8) + encode(trips()), np.uint8).copy()
    shift = 1 - data.ctypes.data % 8 + 8
    memory = np.zeros(data.size + 16, np.uint8)
    shift = 1 + -memory.ctypes.data % 8
    memory[shift : shift + data.size - 8] = data[8:]
    with pytest.raises(InputError) as error:
        decode(memory[shift:], {trips().schema.schema_id: trips().schema})
    assert str(error.value) == "a frame must begin at a multiple of 8 bytes; copy it there"


def read_or_refuse(raw: bytes | bytearray, schema: Schema) -> None:
    try:
        message = read(raw, schema)
    except ProtocolError:
        return
    if isinstance(message, WorkerMessage):
        use(message.batch)


def use(batch: Batch) -> None:
    """Read every value in every way; only values themselves may be refused."""
    batch.copy()
    batch.take(np.arange(len(batch))[::-1])
    arrow = batch.to_arrow()
    arrow.validate()
    for name in batch.schema.names:
        try:
            batch.column(name).to_pylist()
        except (InputError, ValueError, OverflowError, pa.ArrowException):
            continue  # text that is not UTF-8, a time beyond Python's


@given(st.data())
def test_flipped_and_missing_bytes_never_crash(data):
    batch = data.draw(batches(max_rows=6))
    raw = encode(batch)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)) | st.just(len(raw)))]
    read_or_refuse(raw, batch.schema)


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_at_all_never_crash(raw, with_magic):
    schema = Schema.of(s="string", n="int64")
    if with_magic:
        head = struct.pack("<IBBH", 0x4C414857, 1, 1, 1)
        raw = head + raw[8:56] + struct.pack("<I", schema.schema_id) + bytes(4) + raw[64:]
        raw = raw[:36] + struct.pack("<I", max(0, len(raw) - 64)) + raw[40:]
    read_or_refuse(raw, schema)
