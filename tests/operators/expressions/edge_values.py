"""Edge values of all types: those of `edge_values.json`, and generated ones.

`SINGLES` has a column per type, `PAIRS` all pairs of a few values in two columns of one type, and
`CLOCKS` instants near transitions of some time zones. Columns are named as in `expression_cases`;
in addition, `p` has decimals of 38 digits and `k` texts of a time of day.
"""

from __future__ import annotations

import datetime
import decimal
import itertools
import json
import random
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

_SEED = 11
_DAY_US = 86_400 * 10**6
_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - what a clock shows
_EXACT = decimal.Context(prec=40)

TYPES: dict[str, Any] = {
    "y": pa.int8(),
    "h": pa.int16(),
    "i": pa.int32(),
    "l": pa.int64(),
    "f": pa.float32(),
    "d": pa.float64(),
    "m": pa.decimal128(10, 2),
    "p": pa.decimal128(38, 18),
    "b": pa.bool_(),
    "s": pa.string(),
    "n": pa.string(),
    "w": pa.string(),
    "k": pa.string(),
    "x": pa.binary(),
    "day": pa.date32(),
    "t": pa.timestamp("us", "UTC"),
    "z": pa.timestamp("us"),
}


def _micros(moment: str | int) -> int:
    """Return microseconds since 1970 of an ISO 8601 text; return integers unchanged."""
    if isinstance(moment, int):
        return moment
    return (datetime.datetime.fromisoformat(moment) - _EPOCH) // datetime.timedelta(microseconds=1)


def _days(day: str | int) -> int:
    return day if isinstance(day, int) else _micros(day) // _DAY_US


#: Column → function that converts a value of the file.
_READ: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys("fd", float),
    **dict.fromkeys("mp", decimal.Decimal),
    "x": bytes.fromhex,
    "day": _days,
    "t": _micros,
}


def _read(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return Python values, preceded by a null."""
    read = {
        name: [None, *map(_READ.get(name, lambda value: value), values)]
        for name, values in columns.items()
    }
    return read | {"z": read["t"]}


def _generated(chance: random.Random) -> dict[str, list[Any]]:
    """Return random values of each type, over its whole range and dense around zero."""

    def some(make: Callable[[], Any], count: int = 24) -> list[Any]:
        return [make() for _ in range(count)]

    def integer(bits: int) -> int:
        return chance.randrange(-(2**bits), 2**bits) >> chance.randrange(bits)

    def number(digits: int, scale: int) -> decimal.Decimal:
        whole = chance.randrange(-(10**digits), 10**digits) // 10 ** chance.randrange(digits)
        return decimal.Decimal(whole).scaleb(-scale, _EXACT)

    def number_text() -> str:
        shape = chance.choice(["{0}.{1}", "-{0}", "{0}e{2}", "-{0}.{1}E-{2}", " {0}", "{0}.{1}{0}"])
        parts = ("".join(chance.choices("0123456789", k=chance.randrange(1, 6))) for _ in "ab")
        return shape.format(*parts, chance.randrange(50))

    alphabet = "aAbB 1_%,.-ßÉ\u03a3ıİ\u0301\U0001f40b\t\n"
    times = some(lambda: chance.randrange(-62_135_596_800, 253_402_300_800) * 10**6)
    times += some(lambda: chance.randrange(-3 * 10**15, 3 * 10**15))
    return {
        **{name: some(lambda bits=bits: integer(bits)) for name, bits in _BITS.items()},
        "f": some(lambda: struct.unpack("<f", chance.randbytes(4))[0]),
        "d": some(lambda: struct.unpack("<d", chance.randbytes(8))[0])
        + some(lambda: round(chance.uniform(-1e4, 1e4), chance.randrange(5))),
        "m": some(lambda: number(10, 2)),
        "p": some(lambda: number(38, 18)),
        "s": some(lambda: "".join(chance.choices(alphabet, k=chance.randrange(12)))),
        "n": some(number_text, 40),
        "x": some(lambda: chance.randbytes(chance.randrange(6)), 12),
        "day": [time // _DAY_US for time in times],
        "t": times,
        "z": times,
    }


_BITS = {"y": 7, "h": 15, "i": 31, "l": 63}


def _table(columns: dict[str, Iterable[Any]]) -> pa.Table:
    """Return a table whose shorter columns are filled with nulls."""
    rows = itertools.zip_longest(*columns.values())
    arrays = {
        name: pa.array(values, TYPES[name.removesuffix("2")])
        for name, values in zip(columns, zip(*rows, strict=True), strict=True)
    }
    return pa.table(arrays)


def _singles() -> pa.Table:
    listed, more = _read(_LISTED["singles"]), _generated(random.Random(_SEED))
    return _table({name: [*values, *more.get(name, [])] for name, values in listed.items()})


def _pairs() -> pa.Table:
    few = _read(_LISTED["pairs"])
    left, right = zip(*itertools.product(range(len(few["y"])), repeat=2), strict=True)
    columns = {name: [values[at] for at in left] for name, values in few.items()}
    columns |= {f"{name}2": [values[at] for at in right] for name, values in few.items()}
    return _table(columns)


def _clocks() -> pa.Table:
    listed, chance = _LISTED["clocks"], random.Random(_SEED)
    near = itertools.product(listed["moments"], listed["around_us"])
    instants = [None, *(_micros(moment) + shift for moment, shift in near), *listed["far_us"]]
    instants += [chance.randrange(-5 * 10**15, 5 * 10**15) for _ in range(120)]
    days = [None if instant is None else instant // _DAY_US for instant in instants]
    return _table({"t": instants, "z": instants, "day": days})


_LISTED = json.loads(Path(__file__).with_name("edge_values.json").read_text())
SINGLES, PAIRS, CLOCKS = _singles(), _pairs(), _clocks()
#: Zones whose clocks change in odd ways: at midnight, by half an hour, a whole day, by seconds.
ZONES: tuple[str, ...] = tuple(_LISTED["clocks"]["zones"])
