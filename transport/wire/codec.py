"""Messages to bytes and back, a few microseconds each for any number of rows and columns.

A data message, every part 8-byte aligned::

    ┌────────────────────────────────────────────────────────┐ 0
    │ header, see `header`                                   │
    ├───────────────────────────┬────────────────────────────┤ 64
    │ destinations k u32        │ columns c u32              │
    ├───────────────────────────┼────────────────────────────┤ 72
    │ data bytes u32            │ flags u32, 1 = has nulls   │ × c
    ├───────────────────────────┼────────────────────────────┤
    │ instance u32              │ row end u32                │ × k
    ├───────────────────────────┴────────────────────────────┤
    │ the columns as a block, see `kernels`;                 │
    │ hidden event times are the last column                 │
    └────────────────────────────────────────────────────────┘

The payload of a schema message is `Schema.to_bytes`; watermark messages and markers are a header
alone. A frame may be longer than its message.

Encoding writes straight into the reserved buffer. Decoding copies nothing: columns are read-only
views whose numpy base is the frame, so the frame lives as long as the message or one of its arrays.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Required, TypedDict, Unpack

import numpy as np

from ...configs.errors import CorruptedMessageError, InputError
from . import kernels, payload
from .arrow_dictionaries import DictionaryBatches
from .batch import Batch, batch_of_block
from .block import Block, address_of, checked_size, row_indices
from .header import (
    ALL_FLAG,
    CHECKSUM_FLAG,
    DATA,
    END_FLAG,
    HEADER_BYTES,
    IDLE_FLAG,
    MARKER,
    NO_WATERMARK,
    SCHEMA,
    STOP_FLAG,
    TIMES_FLAG,
    WATERMARK,
    Header,
    seal,
    verify,
)
from .messages import MarkerMessage, Message, SchemaMessage, WatermarkMessage, WorkerMessage
from .types import Schema

if TYPE_CHECKING:
    import numpy.typing as npt

    Buffer = npt.NDArray[np.uint8]
    Pairs = npt.NDArray[np.uint32]

_INT64 = np.dtype(np.int64)
_UINT32 = np.dtype(np.uint32)
_MESSAGE_BYTES_MAX = (1 << 32) - 1


class MessageFields(TypedDict, total=False):
    """The fields of a data message that are not its rows."""

    stream: Required[int]
    """The edge."""
    source: Required[int]
    """The producing instance."""
    attempt: Required[int]
    """The job's attempt."""
    sequence: Required[int]
    """Number of the first row."""
    watermark_ns: int
    """The source's watermark after these rows; NO_WATERMARK by default."""
    origin_ns: int
    """When the oldest row was read; the batch's own by default."""
    destinations: Pairs | None
    """uint32 (k, 2), pairs (instance, row end) with rising row ends, the last of which is the
    number of rows; None, the default, for all instances."""
    with_times: bool
    """Whether hidden event times are included."""
    end: bool
    """Whether this is the source's last message."""
    checksum: bool
    """Whether the message gets a CRC-32."""


def message_size(batch: Batch, num_destinations: int = 0, with_times: bool = False) -> int:
    """Return the bytes of a data message of all rows.

    Args:
        batch: the rows.
        num_destinations: number of destination pairs; 0 for all instances.
        with_times: whether hidden event times are included.
    """
    sources = batch.sources(with_times)
    prefix = payload.prefix_bytes(sources.shape[1], num_destinations)
    if with_times == batch.has_times:
        return HEADER_BYTES + prefix + batch.nbytes  # counted once, for the slice as well
    return HEADER_BYTES + prefix + checked_size(kernels.concat_bytes(sources), batch.schema.names)


def gather_size(
    batch: Batch,
    indices: npt.NDArray[np.int64],
    num_destinations: int = 0,
    with_times: bool = False,
) -> int:
    """Return the bytes of a data message of the rows at `indices`, int64 (m,).

    Raises:
        InputError: an index is out of the batch's range.
    """
    sources = batch.sources(with_times)
    chosen = row_indices(indices)
    prefix = payload.prefix_bytes(sources.shape[1], num_destinations)
    size = kernels.gather_bytes(sources, address_of(chosen), chosen.size)
    return HEADER_BYTES + prefix + checked_size(size, batch.schema.names)


def encode_into(buffer: Buffer, batch: Batch, **fields: Unpack[MessageFields]) -> int:
    """Write a data message of all rows into the buffer and return its bytes.

    The buffer is uint8 (n,), 8-byte aligned and at least `message_size` long.

    Raises:
        InputError: the buffer is too short, destinations do not fit, or event times are missing.
    """
    return _encode(buffer, batch, None, **fields)


def encode_gather_into(
    buffer: Buffer, batch: Batch, indices: npt.NDArray[np.int64], **fields: Unpack[MessageFields]
) -> int:
    """Write a data message of the rows at `indices`, int64 (m,), without a batch in between.

    The buffer is as for `encode_into`, at least `gather_size` long.

    Raises:
        InputError: as `encode_into`, or an index is out of the batch's range.
    """
    return _encode(buffer, batch, row_indices(indices), **fields)


def encode_schema_into(
    buffer: Buffer, schema: Schema, *, stream: int, source: int, attempt: int
) -> int:
    """Write a schema message and return its bytes, `schema_message_size`."""
    text = schema.to_bytes()
    length = HEADER_BYTES + len(text)
    _check_room(buffer, length)
    buffer[HEADER_BYTES:length] = np.frombuffer(text, np.uint8)
    Header(
        kind=SCHEMA,
        flags=ALL_FLAG,
        stream=stream,
        source=source,
        attempt=attempt,
        sequence=0,
        row_count=0,
        payload_length=len(text),
        watermark_ns=NO_WATERMARK,
        origin_ns=0,
        schema_id=schema.schema_id,
        checksum=0,
    ).pack_into(buffer)
    return length


def schema_message_size(schema: Schema) -> int:
    """Return the bytes of a schema message."""
    return HEADER_BYTES + len(schema.to_bytes())


def encode_watermark_into(
    buffer: Buffer,
    *,
    stream: int,
    source: int,
    attempt: int,
    sequence: int,
    watermark_ns: int,
    end: bool = False,
    idle: bool = False,
) -> int:
    """Write a watermark message and return its bytes, `HEADER_BYTES`.

    `sequence` is the number that the source's next row will have. After an `end` nothing follows;
    an `idle` source holds no watermark back until its next message.
    """
    flags = ALL_FLAG | (END_FLAG if end else 0) | (IDLE_FLAG if idle else 0)
    told = (stream, source, attempt, sequence)
    return _encode_without_rows(buffer, WATERMARK, flags, told, watermark_ns, 0)


def encode_marker_into(
    buffer: Buffer,
    *,
    stream: int,
    source: int,
    attempt: int,
    sequence: int,
    epoch: int,
    stop: bool = False,
) -> int:
    """Write the marker of an epoch and return its bytes, `HEADER_BYTES`.

    `sequence` is the number that the source's next row will have, the first after the marker; with
    `stop` none follows.
    """
    flags = ALL_FLAG | (STOP_FLAG if stop else 0)
    told = (stream, source, attempt, sequence)
    return _encode_without_rows(buffer, MARKER, flags, told, NO_WATERMARK, epoch)


def _encode_without_rows(
    buffer: Buffer,
    kind: int,
    flags: int,
    told: tuple[int, int, int, int],
    watermark_ns: int,
    origin: int,
) -> int:
    """Write a message that is a header alone; `told` is stream, source, attempt, sequence."""
    _check_room(buffer, HEADER_BYTES)
    Header(kind, flags, *told, 0, 0, watermark_ns, origin, 0, 0).pack_into(buffer)
    return HEADER_BYTES


def decode(frame: Buffer, schemas: dict[int, Schema]) -> Message:
    """Read a message; its arrays are views of the frame and keep it alive.

    Args:
        frame: uint8 (n,), 8-byte aligned, at least as long as the message.
        schemas: the announced schemas by id, see `SchemaMessage.register`.

    Raises:
        ForeignMessageError: this version of whale-ray did not write it.
        TruncatedMessageError: it is shorter than its header says.
        CorruptedMessageError: checksum or inner lengths do not agree, or its schema is unknown.
    """
    header = Header.unpack(frame)
    if header.flags & CHECKSUM_FLAG:
        verify(frame, header)
    if header.kind == DATA:
        return _decode_data(frame, header, schemas)
    if header.kind == WATERMARK:
        return WatermarkMessage(header)
    if header.kind == MARKER:
        return MarkerMessage(header)
    end = HEADER_BYTES + header.payload_length
    schema = Schema.from_bytes(frame[HEADER_BYTES:end].tobytes())
    if schema.schema_id != header.schema_id:
        msg = f"{header.describe()} has schema id {header.schema_id:#010x}, not its schema's own"
        raise CorruptedMessageError(msg)
    return SchemaMessage(header, schema)


@functools.cache
def warm_up() -> None:
    """Load or compile all kernels, so that no message waits for that.

    Once in a process: what it was forked from has done it for workers.
    """
    import pyarrow as pa

    # Not from a list: for that pyarrow would load pandas, if it is installed.
    offsets = pa.py_buffer(np.array([0, 1, 1], np.int32))
    texts = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(b"a"), pa.py_buffer(b"\x01"))
    batch = Batch.from_pydict({"text": texts, "flag": np.array([True, False])})
    batch = batch.with_times(np.arange(2)).copy()
    schemas = {batch.schema.schema_id: batch.schema}
    indices = np.array([1, 0])
    fields: MessageFields = {"stream": 0, "source": 0, "attempt": 0, "sequence": 0}
    fields["with_times"] = True
    buffer = np.zeros(message_size(batch, with_times=True), np.uint8)
    encode_into(buffer, batch, **fields)
    message = decode(buffer, schemas)
    assert isinstance(message, WorkerMessage)
    received = message.batch.take(indices)
    encode_gather_into(buffer, Batch.concat([received]), indices, **fields)
    codes = pa.Int32Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(np.zeros(1, np.int32))])
    coded = pa.record_batch({"coded": pa.DictionaryArray.from_arrays(codes, texts.slice(0, 1))})
    assert DictionaryBatches().batch(coded).nbytes  # counted for each batch that is read


def _encode(
    buffer: Buffer,
    batch: Batch,
    chosen: npt.NDArray[np.int64] | None,
    *,
    stream: int,
    source: int,
    attempt: int,
    sequence: int,
    watermark_ns: int = NO_WATERMARK,
    origin_ns: int | None = None,
    destinations: Pairs | None = None,
    with_times: bool = False,
    end: bool = False,
    checksum: bool = False,
) -> int:
    """Write payload, header and checksum, in this order: the header says the payload's length."""
    sources = batch.sources(with_times)
    rows = batch.num_rows if chosen is None else chosen.size
    flags, pairs_address, pair_count = ALL_FLAG, 0, 0
    if destinations is not None:
        pair_count = _checked_pairs(destinations, rows)
        flags, pairs_address = 0, address_of(destinations)
    if chosen is None:
        end_at = payload.write_body(buffer, HEADER_BYTES, sources, pairs_address, pair_count)
    else:
        indices = address_of(chosen)
        end_at = payload.write_gathered_body(
            buffer, HEADER_BYTES, sources, indices, rows, pairs_address, pair_count
        )
    length = checked_size(end_at, batch.schema.names)
    if length > _MESSAGE_BYTES_MAX:
        raise InputError(_too_long(length))
    flags |= (with_times and TIMES_FLAG) | (end and END_FLAG) | (checksum and CHECKSUM_FLAG)
    Header(
        DATA,
        flags,
        stream,
        source,
        attempt,
        sequence,
        rows,
        length - HEADER_BYTES,
        watermark_ns,
        batch.origin_ns if origin_ns is None else origin_ns,
        batch.schema.schema_id,
        0,
    ).pack_into(buffer)
    if checksum:
        seal(buffer, length)
    return length


def _decode_data(frame: Buffer, header: Header, schemas: dict[int, Schema]) -> WorkerMessage:
    schema = schemas.get(header.schema_id)
    if schema is None:
        msg = f"{header.describe()} has schema id {header.schema_id:#010x}, which is not announced"
        raise CorruptedMessageError(msg)
    if frame.flags.writeable:
        frame = frame.view()
        frame.flags.writeable = False
    columns = len(schema) + (1 if header.flags & TIMES_FLAG else 0)
    layout = np.empty((columns, kernels.LAYOUT_ENTRIES), _INT64)
    end = HEADER_BYTES + header.payload_length
    found = payload.read_body(frame, HEADER_BYTES, end, header.row_count, schema.layout, layout)
    if found == payload.UNALIGNED:
        msg = "a frame must begin at a multiple of 8 bytes; copy it there"
        raise InputError(msg)
    if found > 0:
        raise CorruptedMessageError(_disagreement(found, header, schema))
    destinations = None
    if not header.flags & ALL_FLAG:
        start = HEADER_BYTES + payload.prefix_bytes(columns, 0)
        pairs = frame[start : start - payload.PAIR_BYTES * found]
        destinations = pairs.view(_UINT32).reshape(-1, 2)
    block = Block(frame, layout, received=True)
    batch = batch_of_block(schema, header.row_count, block, header.origin_ns)
    return WorkerMessage(header, destinations, batch)


def _checked_pairs(destinations: Pairs, rows: int) -> int:
    fits = destinations.ndim == 2 and destinations.shape[1] == 2 and destinations.dtype == _UINT32
    if not fits or not destinations.flags.c_contiguous:
        msg = f"destinations must be uint32 (k, 2), not {destinations.dtype} {destinations.shape}"
        raise InputError(msg)
    ends = destinations[:, 1]
    if (int(ends[-1]) if ends.size else 0) != rows or (ends[1:] < ends[:-1]).any():
        msg = f"row ends must rise to the message's {rows} rows, not {ends.tolist()[-8:]}"
        raise InputError(msg)
    return int(destinations.shape[0])


def _too_long(length: int) -> str:
    return f"a message of {length / (1 << 30):.1f} GiB; it holds at most 4 GiB, send fewer rows"


def _check_room(buffer: Buffer, needed: int) -> None:
    if needed > buffer.size:
        checked_size(kernels.NO_ROOM)


def _disagreement(found: int, header: Header, schema: Schema) -> str:
    names = (*schema.names, "its event times")
    what = "its parts do not fill its payload"
    if found == payload.BAD_DESTINATIONS:
        what = "its destinations do not end at its rows"
    for first, text in (
        (payload.BAD_BOOLEAN, "a boolean of column {!r} is neither 0 nor 1"),
        (payload.BAD_OFFSETS, "the offsets of column {!r} leave its pool"),
        (payload.BAD_LENGTH, "the length of column {!r} does not fit"),
    ):
        if found >= first:
            what = text.format(names[found - first])
            break
    return f"{header.describe()} of {header.row_count} rows is corrupted: {what}"
