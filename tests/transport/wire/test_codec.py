"""Messages: golden bytes, round trips of every type, destinations, and the lifetime of views."""

from __future__ import annotations

import subprocess
import sys
import weakref
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import InputError
from whale_ray.testing.strategies import batches
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.codec import (
    decode,
    encode_gather_into,
    encode_into,
    encode_marker_into,
    encode_schema_into,
    encode_watermark_into,
    gather_size,
    message_size,
    schema_message_size,
    warm_up,
)
from whale_ray.transport.wire.header import NO_WATERMARK
from whale_ray.transport.wire.messages import (
    AddressedTuple,
    MarkerMessage,
    SchemaMessage,
    WatermarkMessage,
    WorkerMessage,
)
from whale_ray.transport.wire.types import Field, Schema

PLACE = {"stream": 3, "source": 7, "attempt": 2, "sequence": 100}

DATA_FRAME = bytes.fromhex(
    # header
    "5748414c 02 01 0900 03000000 07000000"  # data, ALL | TIMES, stream 3, source 7
    "02000000 00000000 6400000000000000"  # attempt 2, reserved, sequence 100
    "03000000 68000000 2a00000000000000"  # 3 rows, 104 bytes, watermark 42
    "0900000000000000 09f66948 00000000"  # origin 9, schema id, no checksum
    # prefix: no destinations, 3 columns, their words
    "00000000 03000000"
    "03000000 01000000"  # vehicle: 3 bytes of text, has nulls
    "0c000000 00000000"  # lat: 12 bytes
    "18000000 00000000"  # event times: 24 bytes
    # vehicle: validity, offsets 0 1 1 3, "abc"
    "0100010000000000"
    "00000000 01000000 01000000 03000000"
    "6162630000000000"
    # lat: 1, -2, 3
    "01000000 feffffff 03000000 00000000"
    # event times: 10, 20, 30
    "0a00000000000000 1400000000000000 1e00000000000000"
)

SCHEMA_FRAME = bytes.fromhex(
    "5748414c 02 02 0100 03000000 07000000"  # schema, ALL
    "02000000 00000000 0000000000000000"
    "00000000 23000000 0000000000000080"  # 35 bytes, no watermark
    "0000000000000000 09f66948 00000000"
    "0200"
    "0100 0700 0600 76656869636c65 737472696e67"  # vehicle: string
    "0000 0300 0500 6c6174 696e743332"  # lat: int32 not null
)

WATERMARK_FRAME = bytes.fromhex(
    "5748414c 02 03 0300 03000000 07000000"  # watermark, ALL | END
    "02000000 00000000 6700000000000000"  # the next row would be 103
    "00000000 00000000 2a00000000000000"
    "0000000000000000 00000000 00000000"
)

MARKER_FRAME = bytes.fromhex(
    "5748414c 02 04 2100 03000000 07000000"  # marker, ALL | STOP
    "02000000 00000000 6700000000000000"  # behind row 102
    "00000000 00000000 0000000000000080"  # no watermark
    "1500000000000000 00000000 00000000"  # epoch 21
)


def golden_batch() -> Batch:
    schema = Schema(
        (
            Field("vehicle", Schema.of(x="string").field("x").type),
            Field("lat", Schema.of(x="int32").field("x").type, nullable=False),
        )
    )
    batch = Batch.from_rows([("a", 1), (None, -2), ("bc", 3)], schema)
    return batch.with_times(np.array([10, 20, 30])).with_origin(9)


def ring_memory(length: int) -> np.ndarray:
    """Return memory as a ring gives it: an array that does not own it, full of old bytes."""
    memory = np.frombuffer(bytearray(length + 64), np.uint8)
    memory[:] = 0xDB
    start = -memory.ctypes.data % 64
    return memory[start : start + length]


def frame_of(data: bytes | np.ndarray) -> np.ndarray:
    """Return a message as a channel gives it: a root of its own, read-only, some bytes longer."""
    raw = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else data
    memory = ring_memory(raw.size + 64)
    memory[: raw.size] = raw
    frame = np.frombuffer(memoryview(memory), np.uint8)
    frame.flags.writeable = False
    return frame


def encoded(batch: Batch, **fields: object) -> np.ndarray:
    with_times = bool(fields.get("with_times"))
    pairs = fields.get("destinations")
    count = 0 if pairs is None else len(pairs)
    buffer = ring_memory(message_size(batch, count, with_times))
    length = encode_into(buffer, batch, **PLACE, **fields)
    assert length == buffer.size
    return buffer


def received(batch: Batch, **fields: object) -> WorkerMessage:
    message = decode(frame_of(encoded(batch, **fields)), {batch.schema.schema_id: batch.schema})
    assert isinstance(message, WorkerMessage)
    return message


def test_golden_bytes_of_a_data_message():
    batch = golden_batch()
    buffer = encoded(batch, watermark_ns=42, with_times=True)
    assert buffer.tobytes().hex() == DATA_FRAME.hex()
    message = decode(frame_of(DATA_FRAME), {batch.schema.schema_id: batch.schema})
    assert message.batch.equals(batch)
    assert message.header.origin_ns == message.batch.origin_ns == 9
    assert message.destinations is None


def test_golden_bytes_of_a_schema_message():
    schema = golden_batch().schema
    buffer = np.zeros(schema_message_size(schema), np.uint8)
    length = encode_schema_into(buffer, schema, stream=3, source=7, attempt=2)
    assert buffer[:length].tobytes().hex() == SCHEMA_FRAME.hex()
    message = decode(frame_of(SCHEMA_FRAME), {})
    assert isinstance(message, SchemaMessage)
    assert message.schema == schema
    schemas: dict[int, Schema] = {}
    message.register(schemas)
    message.register(schemas)
    assert schemas == {schema.schema_id: schema}


def test_golden_bytes_of_a_watermark_message():
    buffer = np.zeros(64, np.uint8)
    length = encode_watermark_into(
        buffer,
        stream=3,
        source=7,
        attempt=2,
        sequence=103,
        watermark_ns=42,
        end=True,
    )
    assert buffer[:length].tobytes().hex() == WATERMARK_FRAME.hex()
    message = decode(frame_of(WATERMARK_FRAME), {})
    assert isinstance(message, WatermarkMessage)
    assert message.header.is_end
    assert not message.header.is_idle
    assert message.header.watermark_ns == 42


def test_golden_bytes_of_a_marker():
    buffer = np.zeros(64, np.uint8)
    length = encode_marker_into(
        buffer, stream=3, source=7, attempt=2, sequence=103, epoch=21, stop=True
    )
    assert buffer[:length].tobytes().hex() == MARKER_FRAME.hex()
    message = decode(frame_of(MARKER_FRAME), {})
    assert isinstance(message, MarkerMessage)
    assert (message.epoch, message.stops) == (21, True)
    assert message.header.sequence == 103
    encode_marker_into(buffer, stream=3, source=7, attempt=2, sequence=103, epoch=21)
    message = decode(buffer, {})
    assert isinstance(message, MarkerMessage)
    assert not message.stops


def test_an_idle_source_differs_in_one_flag():
    buffers = [np.zeros(64, np.uint8) for _ in range(2)]
    for buffer, idle in zip(buffers, (False, True), strict=True):
        encode_watermark_into(
            buffer, stream=3, source=7, attempt=2, sequence=103, watermark_ns=42, idle=idle
        )
    message = decode(buffers[1], {})
    assert isinstance(message, WatermarkMessage)
    assert message.header.is_idle
    assert not message.header.is_end
    (place,) = np.flatnonzero(buffers[0] != buffers[1])
    assert (place, buffers[0][place] ^ buffers[1][place]) == (6, 16)


@given(batches(), st.booleans(), st.booleans())
def test_every_batch_survives(batch, checksum, end):
    message = received(batch, with_times=batch.has_times, checksum=checksum, end=end)
    assert message.batch.equals(batch)
    assert message.batch.origin_ns == batch.origin_ns
    assert message.header.row_count == batch.num_rows
    assert message.header.is_end == end
    assert message.header.watermark_ns == NO_WATERMARK
    assert not message.batch.owned
    assert message.batch.copy().owned
    again = received(message.batch.slice(1), with_times=batch.has_times)
    assert again.batch.equals(batch.slice(1))


@given(batches())
def test_event_times_stay_behind_unless_wanted(batch):
    message = received(batch)
    assert message.batch.times is None
    assert message.batch.equals(batch.with_times(None))


@given(st.data())
def test_gathered_rows_are_those_of_take(data):
    batch = data.draw(batches())
    place = st.integers(0, max(0, len(batch) - 1))
    chosen = data.draw(st.lists(place, max_size=20 if len(batch) else 0))
    indices = np.array(chosen, np.int64)
    taken = batch.take(indices)
    size = gather_size(batch, indices, 0, batch.has_times)
    buffer = ring_memory(size)
    fields = {"with_times": batch.has_times, **PLACE}
    assert encode_gather_into(buffer, batch, indices, **fields) == size
    assert buffer.tobytes() == encoded(taken, with_times=batch.has_times).tobytes()


@given(st.data())
def test_destinations_say_whose_rows_they_are(data):
    batch = data.draw(batches())
    parts = data.draw(st.lists(st.integers(0, 4), max_size=5))
    cuts = [min(sum(parts[: i + 1]), len(batch)) for i in range(len(parts))]
    pairs = np.array([*enumerate(cuts), (len(cuts), len(batch))], np.uint32)
    message = received(batch, destinations=pairs)
    assert message.destinations.tolist() == pairs.tolist()
    wanted = data.draw(st.sets(st.sampled_from(range(len(pairs)))))
    start, expected = 0, {}
    for instance, end in pairs.tolist():
        if instance in wanted and end > start:
            expected[instance] = batch.with_times(None).slice(start, end)
        start = end
    shares = list(message.addressed(wanted))
    assert [share.instance for share in shares] == list(expected)
    assert all(share.batch.equals(expected[share.instance]) for share in shares)


def test_a_message_to_all_is_whole_for_everyone():
    message = received(golden_batch())
    shares = list(message.addressed([4, 1]))
    assert shares == [AddressedTuple(4, message.batch), AddressedTuple(1, message.batch)]
    assert not list(received(golden_batch().slice(0, 0)).addressed([4]))


def test_views_are_read_only_and_their_base_is_the_frame():
    frame = frame_of(DATA_FRAME)
    schema = golden_batch().schema
    batch = decode(frame, {schema.schema_id: schema}).batch
    vehicle, lat = batch.column("vehicle"), batch.column("lat")
    arrays = [vehicle.data, vehicle.offsets, vehicle.validity, lat.data, batch.times, batch["lat"]]
    for array in arrays:
        assert array.base is frame
        assert not array.flags.writeable
        assert np.shares_memory(array, frame)


def test_a_frame_that_could_be_written_to_gives_read_only_views():
    memory = np.array(frame_of(DATA_FRAME))
    schema = golden_batch().schema
    batch = decode(memory, {schema.schema_id: schema}).batch
    assert not batch["lat"].flags.writeable
    assert batch["lat"].base is memory


KEEPERS = {
    "the message": lambda message: message,
    "the batch": lambda message: message.batch,
    "a slice": lambda message: message.batch.slice(1, 2),
    "a selection": lambda message: message.batch.select(["lat"]),
    "a column": lambda message: message.batch["lat"],
    "a part of a column": lambda message: message.batch["lat"][1:].view(np.uint32)[::-1],
    "text": lambda message: message.batch["vehicle"],
    "event times": lambda message: message.batch.times,
    "an Arrow batch": lambda message: message.batch.to_arrow(),
    "an Arrow column": lambda message: message.batch.to_arrow().column("vehicle"),
    "a slice of an Arrow column": lambda message: message.batch.to_arrow().column("lat")[1:2],
    "a batch made of them": lambda message: Batch.from_pydict({"x": message.batch["lat"]}),
    "a batch through Arrow": lambda message: Batch.from_arrow(message.batch.to_arrow()),
}
FREE = {
    "nothing": lambda _: None,
    "the header": lambda message: message.header,
    "a copy": lambda message: message.batch.copy(),
    "taken rows": lambda message: message.batch.take([0, 2]),
    "filtered rows": lambda message: message.batch.filter(np.array([True, True, True])),
    "concatenated rows": lambda message: Batch.concat([message.batch, message.batch]),
    "one row concatenated": lambda message: Batch.concat([message.batch]),
    "Python rows": lambda message: message.batch.to_pylist(),
    "a computed column": lambda message: message.batch["lat"] * 2,
}


@pytest.mark.parametrize("what", [*KEEPERS, *FREE])
def test_a_frame_lives_as_long_as_a_view_of_it(what):
    keep = KEEPERS.get(what) or FREE[what]
    frame = frame_of(DATA_FRAME)
    root = weakref.ref(frame)
    schema = golden_batch().schema
    message = decode(frame, {schema.schema_id: schema})
    kept = keep(message)
    del frame, message
    assert (root() is not None) == (what in KEEPERS)
    if isinstance(kept, Batch):
        assert kept.owned == (what in FREE)
    del kept
    assert root() is None


def test_a_stored_view_stays_right():
    frame = frame_of(DATA_FRAME)
    schema = golden_batch().schema
    kept = decode(frame, {schema.schema_id: schema}).batch.slice(2).to_arrow()
    del frame
    assert kept.to_pylist() == [{"vehicle": "bc", "lat": 3}]


def test_what_cannot_be_written_is_refused():
    batch = golden_batch()
    small = ring_memory(message_size(batch) - 8)
    with pytest.raises(InputError) as error:
        encode_into(small, batch, **PLACE)
    full = "the message does not fit into its buffer; reserve what message_size says"
    assert str(error.value) == full
    for buffer in (small, ring_memory(70), ring_memory(0)):
        with pytest.raises(InputError) as error:
            encode_gather_into(buffer, batch, np.arange(3), **PLACE)
        assert str(error.value) == full
    with pytest.raises(InputError) as error:
        gather_size(batch, np.array([3]))
    assert str(error.value) == "an index is outside the batch's rows"
    with pytest.raises(InputError) as error:
        message_size(batch.with_times(None), with_times=True)
    assert str(error.value) == "the batch has no event times; declare the source's event_time"
    room = ring_memory(1000)
    with pytest.raises(InputError) as error:
        encode_into(room, batch, **PLACE, destinations=np.array([[0, 2]], np.uint32))
    assert str(error.value) == "row ends must rise to the message's 3 rows, not [2]"
    with pytest.raises(InputError) as error:
        encode_into(room, batch, **PLACE, destinations=np.array([[0, 3]]))
    assert str(error.value) == "destinations must be uint32 (k, 2), not int64 (1, 2)"
    for small_message, more in (
        (encode_schema_into, {"schema": batch.schema}),
        (encode_watermark_into, {"sequence": 0, "watermark_ns": 0}),
        (encode_marker_into, {"sequence": 0, "epoch": 1}),
    ):
        fields = {"stream": 0, "source": 0, "attempt": 0, **more}
        with pytest.raises(InputError, match="does not fit into its buffer"):
            small_message(ring_memory(63), **fields)


def test_warm_up_compiles_everything_once():
    warm_up.cache_clear()
    warm_up()
    with patch.object(Batch, "from_pydict", side_effect=AssertionError):
        warm_up()


WORKER_STARTS = """
import sys
import whale_ray.worker.worker
import whale_ray.applications.ride_hailing.topology
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.codec import warm_up
from whale_ray.transport.wire.types import Schema

warm_up()
Batch.empty(Schema.of(text=str, number=int, flag=bool))
assert "pyarrow" in sys.modules
assert "pandas" not in sys.modules
"""


def test_a_worker_starts_without_pandas():
    subprocess.run([sys.executable, "-c", WORKER_STARTS], check=True, timeout=100)


def test_arrow_results_over_received_memory_are_not_owned():
    message = received(golden_batch())
    passed_on = Batch.from_arrow(pa.record_batch({"lat": message.batch.to_arrow().column("lat")}))
    assert not passed_on.owned
    assert passed_on.copy().owned
