"""Rows of every type, drawn with a seed, edges first; and how Spark spells each value exactly.

The spelling is what the tests compare: Spark computes it from the bits that it holds (raw bits of
floats, microseconds of times, digits of decimals), Python from those that Arrow holds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

_DRAWN = 400
_NULL_SHARE = 0.1
_US_MIN, _US_MAX = -62_135_596_800_000_000, 253_402_300_799_999_999  # the years 1 to 9999
_DAY_MIN, _DAY_MAX = -719_162, 2_932_896
_TEXTS = ["", "\0", "a\0b", "é", "😀", "İ", "x" * 300, "line\nfeed", "'\"\\", "\u2028", " "]


def _whole(random_: random.Random, low: int, high: int, edges: list[int]) -> list[int]:
    return edges + [random_.randint(low, high) for _ in range(_DRAWN)]


def _integers(bits: int, signed: bool = True) -> Callable[[random.Random], list[int]]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    edges = [low, high, 0, 1] + [n for n in (2**53 + 1, -(2**53) - 1) if low <= n <= high]
    return lambda random_: _whole(random_, low, high, edges)


def _floats(bits: int) -> Callable[[random.Random], list[Any]]:
    """Draw bit patterns: infinities, subnormals, zeros of both signs; the one usual NaN."""
    whole, real = (f"uint{bits}", f"float{bits}")
    quiet_nan = {16: 0x7E00, 32: 0x7FC00000, 64: 0x7FF8000000000000}[bits]
    sign = 1 << (bits - 1)

    def draw(random_: random.Random) -> list[Any]:
        patterns = [0, sign, 1, sign | 1, quiet_nan] + [
            random_.getrandbits(bits) for _ in range(_DRAWN)
        ]
        drawn = np.array(patterns, whole).view(real)
        drawn[np.isnan(drawn)] = np.array([quiet_nan], whole).view(real)[0]
        infinities = np.array([np.inf, -np.inf], real)
        return list(np.concatenate([infinities, drawn]))

    return draw


def _decimals(precision: int, scale: int) -> Callable[[random.Random], list[Decimal]]:
    most = 10**precision - 1

    def draw(random_: random.Random) -> list[Decimal]:
        unscaled = _whole(random_, -most, most, [most, -most, 0, 1, -1])
        return [Decimal((n < 0, tuple(map(int, str(abs(n)))), -scale)) for n in unscaled]

    return draw


def _texts(random_: random.Random) -> list[str]:
    letters = "aé😀\0\n日"
    drawn = ["".join(random_.choices(letters, k=random_.randrange(20))) for _ in range(_DRAWN)]
    return _TEXTS + drawn


def _bytes(random_: random.Random) -> list[bytes]:
    return [b"", b"\0", b"\xff\xfe"] + [
        random_.randbytes(random_.randrange(20)) for _ in range(_DRAWN)
    ]


def _microseconds(random_: random.Random) -> list[int]:
    gregorian = -12_219_292_800_000_000  # 1582-10-15, where calendars differ
    return _whole(random_, _US_MIN, _US_MAX, [_US_MIN, _US_MAX, -1, 0, 1, gregorian, gregorian - 1])


_SPARKS_OWN: dict[str, tuple[pa.DataType, Callable[[random.Random], list[Any]]]] = {
    "flag": (pa.bool_(), lambda random_: [random_.random() < 0.5 for _ in range(_DRAWN)]),
    "i8": (pa.int8(), _integers(8)),
    "i16": (pa.int16(), _integers(16)),
    "i32": (pa.int32(), _integers(32)),
    "i64": (pa.int64(), _integers(64)),
    "f32": (pa.float32(), _floats(32)),
    "f64": (pa.float64(), _floats(64)),
    "text": (pa.string(), _texts),
    "raw": (pa.binary(), _bytes),
    "day": (pa.date32(), lambda r: _whole(r, _DAY_MIN, _DAY_MAX, [_DAY_MIN, _DAY_MAX, -141_428])),
    "at": (pa.timestamp("us", "UTC"), _microseconds),
    "local": (pa.timestamp("us"), _microseconds),
    "span": (pa.duration("us"), lambda r: _whole(r, -(2**61), 2**61, [0, -1, 1])),
    "small_money": (pa.decimal128(9, 2), _decimals(9, 2)),
    "money": (pa.decimal128(18, 4), _decimals(18, 4)),
    "large_money": (pa.decimal128(38, 10), _decimals(38, 10)),
}
"""Column → type and values; these types Spark has too."""

_WIDENED: dict[str, tuple[pa.DataType, Callable[[random.Random], list[Any]]]] = {
    "u8": (pa.uint8(), _integers(8, signed=False)),
    "u16": (pa.uint16(), _integers(16, signed=False)),
    "u32": (pa.uint32(), _integers(32, signed=False)),
    "u64": (pa.uint64(), _integers(64, signed=False)),
    "f16": (pa.float16(), _floats(16)),
    "large_text": (pa.large_string(), _texts),
    "large_raw": (pa.large_binary(), _bytes),
    "id": (pa.binary(4), lambda random_: [random_.randbytes(4) for _ in range(_DRAWN)]),
    "day64": (pa.date64(), lambda r: [86_400_000 * d for d in _whole(r, -9999, 9999, [])]),
    "at_s": (pa.timestamp("s"), lambda r: _whole(r, -(2**40), 2**40, [])),
    "at_ms": (pa.timestamp("ms", "Asia/Tokyo"), lambda r: _whole(r, -(2**45), 2**45, [])),
    "at_ns": (pa.timestamp("ns"), lambda r: [1000 * us for us in _whole(r, 0, 2**53, [])]),
    "span_s": (pa.duration("s"), lambda r: _whole(r, -(2**30), 2**30, [])),
}
"""Columns that go out in a wider type of Spark's."""


def _table(
    columns: dict[str, tuple[pa.DataType, Callable[[random.Random], list[Any]]]],
) -> pa.Table:
    random_ = random.Random(20_210_914)
    rows = max(len(draw(random.Random(0))) for _, draw in columns.values())
    arrays = {"row": pa.array(range(rows), pa.int32())}
    for name, (kind, draw) in columns.items():
        values = (draw(random_) * 2)[:rows]
        mask = np.array([random_.random() < _NULL_SHARE for _ in values])
        mask[:12] = False
        is_time = pa.types.is_temporal(kind)
        plain = (pa.int32() if kind == pa.date32() else pa.int64()) if is_time else kind
        made = pa.array([None if null else v for v, null in zip(values, mask, strict=True)], plain)
        arrays[name] = made.view(kind) if is_time else made
    return pa.table(arrays)


def rows_of_spark() -> pa.Table:
    """Return rows of all types that both have."""
    return _table(_SPARKS_OWN)


def rows_of_ours() -> pa.Table:
    """Return rows of all types that Spark can hold, those that it has to widen included."""
    return _table(_SPARKS_OWN | _WIDENED)


def spelled(table: pa.Table) -> dict[str, list[str | None]]:
    """Return every value as text, as the expressions of `spelled_by_spark` give it."""
    return {
        name: [None if value is None else str(value) for value in _plain(table[name])]
        for name in table.column_names
    }


def _plain(column: pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if pa.types.is_floating(kind):
        wide = column.cast(pa.float32()) if kind == pa.float16() else column
        raw = f"int{wide.type.bit_width}"  # Java prints raw bits as a signed number
        bits = wide.combine_chunks().fill_null(0).to_numpy(zero_copy_only=False).view(raw)
        pairs = zip(bits.tolist(), column.is_valid().to_pylist(), strict=True)
        return [number if valid else None for number, valid in pairs]
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()).to_pylist()
    if pa.types.is_duration(kind):
        return column.cast(pa.duration("us")).cast(pa.int64()).to_pylist()
    if pa.types.is_date(kind):
        return column.cast(pa.date32()).cast(pa.int32()).to_pylist()
    if pa.types.is_boolean(kind):
        return column.cast(pa.string()).to_pylist()
    values = column.to_pylist()
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        values = [None if text is None else text.encode() for text in values]
    return [value.hex().upper() if isinstance(value, bytes) else value for value in values]


_BITS = (
    "CASE WHEN {{0}} IS NOT NULL "
    "THEN java_method('java.lang.{}', '{}', coalesce({{0}}, cast(0 AS {}))) END"
)


def spelled_by_spark(schema: Any) -> list[str]:
    """Return SQL expressions that spell every column of a Spark schema."""
    forms = {
        "float": _BITS.format("Float", "floatToRawIntBits", "float"),
        "double": _BITS.format("Double", "doubleToRawLongBits", "double"),
        "string": "hex({0})",
        "binary": "hex({0})",
        "date": "unix_date({0})",
        "timestamp": "unix_micros({0})",
        "timestamp_ntz": "unix_micros(cast({0} as timestamp))",  # the session's zone is UTC
        "interval day to second": "unix_micros(timestamp_micros(0) + {0})",
    }
    return [
        f"cast({forms.get(field.dataType.simpleString(), '{0}').format(field.name)} as string)"
        for field in schema.fields
    ]
