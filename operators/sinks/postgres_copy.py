"""Rows as Postgres' binary COPY takes them, made from columns.

Each row is the number of its fields, then for each field its length and its bytes, big-endian; the
length of a null is -1. A column becomes the bytes of its fields with Arrow's kernels, and the rows
are those of all columns joined; nothing is done row by row in Python.

Source: PostgreSQL 16 documentation, COPY, "Binary Format"; the forms of values are those that the
functions `*_recv` of the server read.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .nearest_types import exact_cast

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

HEADER = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)
TRAILER = struct.pack(">h", -1)

_NULL = struct.pack(">i", -1)
_DAYS_TO_2000 = 10_957
_MICROSECONDS_TO_2000 = _DAYS_TO_2000 * 86_400_000_000
_NEGATIVE = 0x4000
_DIGITS = 4  # a digit of a numeric has the base 10,000


def rows_of(columns: Sequence[pa.Array], types: Sequence[str], names: Sequence[str]) -> pa.Buffer:
    """Return rows in COPY's binary form, without header and trailer.

    Args:
        columns: of equal length, at least one.
        types: Postgres' name of each column's type, a key of `ENCODERS`.
        names: of the columns, for messages.

    Raises:
        OutputError: a value does not fit the type.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    pieces: list[Any] = [pa.scalar(struct.pack(">h", len(columns)), pa.binary())]
    for column, kind, name in zip(columns, types, names, strict=True):
        pieces += ENCODERS[kind](column, name)
    joined = pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.binary()))
    _, offsets, data = joined.buffers()
    ends = np.frombuffer(offsets, np.int32)
    return data.slice(0, int(ends[len(joined)]))


def _fixed(column: pa.Array, raw: npt.NDArray[Any]) -> list[pa.Array]:
    """Return fields of one width; `raw` has a row of bytes for each value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rows, width = raw.shape
    fields = np.empty((rows, 4 + width), np.uint8)
    fields[:, :4] = np.frombuffer(struct.pack(">i", width), np.uint8)
    fields[:, 4:] = raw
    kind = pa.binary(4 + width)
    array = pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(fields)]).cast(pa.binary())
    if column.null_count:
        array = pc.if_else(column.is_valid(), array, pa.scalar(_NULL, pa.binary()))
    return [array]


def _bytes_of(numbers: npt.NDArray[Any], dtype: str) -> npt.NDArray[np.uint8]:
    """Return the big-endian bytes of numbers, a row for each."""
    as_big_endian = np.ascontiguousarray(numbers.astype(dtype))
    return as_big_endian.view(np.uint8).reshape(len(numbers), -1)


def _number(dtype: str, arrow_type: str) -> Callable[[pa.Array, str], list[pa.Array]]:
    def encode(column: pa.Array, name: str) -> list[pa.Array]:
        import pyarrow as pa

        cast = exact_cast(column, pa.type_for_alias(arrow_type), name, "Postgres")
        return _fixed(cast, _bytes_of(_filled(cast), dtype))

    return encode


def _filled(column: pa.Array) -> npt.NDArray[Any]:
    """Return numbers, 0 for nulls."""
    filled = column.fill_null(0) if column.null_count else column
    return filled.to_numpy(zero_copy_only=False)


def _boolean(column: pa.Array, name: str) -> list[pa.Array]:
    import pyarrow as pa

    return _fixed(column, _bytes_of(_filled(column.cast(pa.uint8())), "u1"))


def _since_2000(storage: str, shift: int, *arrow_types: str) -> Callable[..., list[pa.Array]]:
    """Encode dates and times as the number of days or microseconds since 2000."""

    def encode(column: pa.Array, name: str) -> list[pa.Array]:
        import pyarrow as pa
        import pyarrow.compute as pc

        kind = pa.type_for_alias(arrow_types[0])
        if pa.types.is_timestamp(column.type):
            kind = pa.timestamp("us", column.type.tz)
        cast = exact_cast(column, kind, name, "Postgres")
        numbers = cast.view(pa.int32() if storage == ">i4" else pa.int64())
        if shift:
            numbers = _shifted(pc, numbers, shift, name)
        return _fixed(numbers, _bytes_of(_filled(numbers), storage))

    return encode


def _shifted(pc: Any, numbers: pa.Array, shift: int, name: str) -> pa.Array:
    import pyarrow as pa

    from ...configs.errors import OutputError

    cause: pa.ArrowException | None = None
    try:
        shifted = pc.subtract_checked(numbers, pa.scalar(shift, numbers.type))
        least = pc.min(shifted).as_py()
        if least is None or least > -(2 ** (numbers.type.bit_width - 1)):  # that is -infinity
            return shifted
    except pa.ArrowException as error:
        cause = error
    msg = f"column {name!r} has a time that Postgres does not have; leave such rows out"
    raise OutputError(msg) from cause


def _interval(column: pa.Array, name: str) -> list[pa.Array]:
    import pyarrow as pa

    cast = exact_cast(column, pa.duration("us"), name, "Postgres").view(pa.int64())
    microseconds = _bytes_of(_filled(cast), ">i8")
    days_and_months = np.zeros((len(column), 8), np.uint8)
    return _fixed(cast, np.hstack([microseconds, days_and_months]))


def _pooled(column: pa.Array, prefix: bytes = b"") -> list[pa.Array]:
    """Return lengths and values of texts or bytes, each with the same prefix."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = column.cast(pa.binary())
    if prefix:
        start, none = pa.scalar(prefix, pa.binary()), pa.scalar(b"", pa.binary())
        values = pc.binary_join_element_wise(start, values, none)
    lengths = pc.binary_length(values).fill_null(-1).to_numpy(zero_copy_only=False)
    raw = _bytes_of(lengths, ">i4")
    heads = pa.Array.from_buffers(pa.binary(4), len(column), [None, pa.py_buffer(raw)])
    return [heads.cast(pa.binary()), values.fill_null(b"") if values.null_count else values]


def _text(column: pa.Array, name: str) -> list[pa.Array]:
    return _pooled(column)


def _jsonb(column: pa.Array, name: str) -> list[pa.Array]:
    return _pooled(column, b"\x01")  # the version of the form


def _numeric(column: pa.Array, name: str) -> list[pa.Array]:
    """Encode decimals by digits of the base 10,000, the same number of them for all of a column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_decimal(column.type):
        column = exact_cast(column, pa.decimal128(20, 0), name, "Postgres")
    if column.type.scale < 0:
        wider = pa.decimal128(min(38, column.type.precision - column.type.scale), 0)
        column = exact_cast(column, wider, name, "Postgres")
    precision, scale = column.type.precision, column.type.scale
    whole = max(precision - scale, 0)
    before, after = -(-whole // _DIGITS), -(-scale // _DIGITS)
    # The same integers without a point, whose text is all digits.
    unscaled = pa.Array.from_buffers(
        pa.decimal128(precision, 0), len(column), column.buffers(), offset=column.offset
    ).fill_null(0)
    width = max(precision, scale)
    text = pc.utf8_lpad(pc.abs(unscaled).cast(pa.string()), width, "0").cast(pa.binary(width))
    start = text.offset * width
    characters = np.frombuffer(text.buffers()[1], np.uint8)[start : start + len(column) * width]
    digits = np.zeros((len(column), (before + after) * _DIGITS), np.int16)
    first = before * _DIGITS - (width - scale)
    digits[:, first : first + width] = characters.reshape(len(column), width) - ord("0")
    groups = digits.reshape(len(column), -1, _DIGITS) @ np.array([1000, 100, 10, 1], np.int16)
    head = np.zeros((len(column), 4), ">i2")  # digits, weight of the first, sign, scale
    head[:, 0], head[:, 1], head[:, 3] = before + after, before - 1, scale
    head[:, 2] = pc.less(unscaled, pa.scalar(0, unscaled.type)).to_numpy(zero_copy_only=False)
    head[:, 2] *= _NEGATIVE
    return _fixed(
        column,
        np.hstack(
            [
                _bytes_of(head.ravel(), ">i2").reshape(len(column), -1),
                _bytes_of(groups.ravel(), ">i2").reshape(len(column), -1),
            ]
        ),
    )


ENCODERS: dict[str, Callable[[pa.Array, str], list[pa.Array]]] = {
    "boolean": _boolean,
    "smallint": _number(">i2", "int16"),
    "integer": _number(">i4", "int32"),
    "bigint": _number(">i8", "int64"),
    "real": _number(">f4", "float32"),
    "double precision": _number(">f8", "float64"),
    "numeric": _numeric,
    "text": _text,
    "character varying": _text,
    "json": _text,
    "jsonb": _jsonb,
    "bytea": _text,
    "uuid": _text,
    "date": _since_2000(">i4", _DAYS_TO_2000, "date32"),
    "time without time zone": _since_2000(">i8", 0, "time64[us]"),
    "timestamp without time zone": _since_2000(">i8", _MICROSECONDS_TO_2000, "timestamp[us]"),
    "timestamp with time zone": _since_2000(">i8", _MICROSECONDS_TO_2000, "timestamp[us]"),
    "interval": _interval,
}
"""What makes the fields of a column, by Postgres' name of the type."""
