"""Random rows and expressions, to compare compiled loops with the kernels."""

from __future__ import annotations

import datetime
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

import whale_ray as whale
from whale_ray.operators.expressions import functions as F  # noqa: N812 - as in PySpark
from whale_ray.operators.expressions.expression import Expression, col, lit, when
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column
from whale_ray.transport.wire.types import Schema

KINDS = {
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
    "u32": "uint32",
    "u64": "uint64",
    "f32": "float32",
    "f64": "float64",
    "b": "bool",
    "c": "bool",
    "t": "timestamp[ms]",
    "m": "timestamp[us, tz=UTC]",
    "e": "timestamp[s]",
    "d": "date32",
    "s": "string",
    "r": "large_string",
}
SCHEMA = Schema.of(**KINDS)
NUMBERS = ("i8", "i16", "i32", "i64", "u8", "u32", "u64", "f32", "f64")
SIGNED = ("i8", "i16", "i32", "i64")
TEXTS = ("", "view", "click", "vie", "views", "ä", "a longer text than sixteen bytes", "\0\0\0\0")

_PAIRS = (
    ("i8", "i8"),
    ("i8", "u8"),
    ("i16", "i64"),
    ("i32", "i32"),
    ("i32", "u32"),
    ("i64", "i64"),
    ("u64", "u64"),
    ("i64", "f32"),
    ("f32", "f32"),
    ("f32", "f64"),
    ("u64", "f64"),
)
_DAY = datetime.date(2008, 5, 17)


def _edges(name: str) -> st.SearchStrategy[Any]:
    """Return values of a column, those at the ends of its range often."""
    kind = SCHEMA.field(name).type
    if kind.kind == "bytes":
        return st.sampled_from(TEXTS) | st.text(max_size=5)
    if kind.family == "bool":
        return st.booleans()
    if kind.family.startswith("float"):
        width = 32 if kind.family == "float32" else 64
        ends = [
            0.0,
            -0.0,
            np.inf,
            -np.inf,
            np.nan,
            0.5,
            -1.0,
            2.0**31,
            2.0**63,
            -(2.0**63),
            2.0**64,
        ]
        return st.sampled_from(ends) | st.floats(width=width)
    limits = np.iinfo(kind.storage)
    low, high = int(limits.min), int(limits.max)
    few = {low, high, 0, 1, max(low, -1), 2, 7, low + 1, high - 1}
    return st.sampled_from(sorted(few)) | st.integers(low, high)


@st.composite
def batches(draw: st.DrawFn, rows_max: int = 12) -> Batch:
    """Draw rows of `SCHEMA`; each column has nulls or none."""
    rows = draw(st.integers(1, rows_max))
    columns = []
    for field in SCHEMA:
        values = draw(st.lists(_edges(field.name), min_size=rows, max_size=rows))
        valid = draw(st.none() | st.lists(st.booleans(), min_size=rows, max_size=rows))
        if field.type.kind == "bytes":
            column = Column.of(values, field.type)
            data, offsets = column.data, column.offsets
        else:
            with np.errstate(over="ignore"):
                data, offsets = np.array(values, field.type.storage), None
        columns.append(
            Column(field.type, data, offsets, None if valid is None else np.array(valid))
        )
    return Batch(SCHEMA, columns, rows).with_times(np.arange(rows, dtype=np.int64))


def compilable() -> Iterator[Expression]:
    """Yield expressions that use every emitter, over all types that it takes."""
    for left, right in _PAIRS:
        a, b = col(left), col(right)
        yield from (a + b, a - b, b * a, a / b, a % b, b % a)
        yield from (a == b, a != b, a < b, a <= b, b > a, b >= a, a.eq_null_safe(b))
        yield from (F.greatest(left, right), F.least(left, right), F.coalesce(left, right))
        yield F.nullif(left, col(right))
    for name in NUMBERS:
        a = col(name)
        yield from (a + 1, 3 - a, a * 2, a / 3, a % 3, a == 1, a > 1, a + lit(None))
        yield from (F.abs(name), F.sqrt(name), F.floor(name), F.ceil(name), a.is_null())
        yield from (a.isin(0, 1, 2), a.isin(1, None), F.isnan(name), a.cast("boolean"))
        yield from (a.cast(KINDS[to]) for to in NUMBERS)
    for name in (*SIGNED, "f32", "f64"):
        yield -col(name)
    for name in ("i8", "i32", "i64", "u64"):
        a = col(name)
        yield from (F.shiftleft(name, 3), F.shiftright(name, 70), a.bitwise_and(col(name)))
        yield from (a.bitwise_or(6), a.bitwise_xor(1))
    yield from (col("f64") % col("f32"), F.nanvl("f32", col("f64")), F.nanvl("f64", lit(0.5)))
    yield from (F.nanvl("i64", col("f32")), F.nanvl("f32", lit(0)), F.nanvl("u8", col("u64")))
    yield from _of_conditions()
    yield from _of_times_and_texts()
    yield from _of_users()


def _of_conditions() -> Iterator[Expression]:
    a, b, null = col("b"), col("c"), lit(None)
    yield from (a & b, a | b, ~a, a & null, null | b, (a | ~b) & (col("i32") > 0))
    yield from (a == b, a.eq_null_safe(b), a.is_not_null(), a.cast("int"), a.cast("double"))
    yield when(a, col("i32")).when(b, col("i64")).otherwise(7)
    yield when(a, col("f32")).when(col("i8") > 0, 1.5)
    yield when(a & b, null).otherwise(col("t"))
    yield from (F.coalesce("b", "c", lit(True)), F.coalesce("t", "t"))


def _of_times_and_texts() -> Iterator[Expression]:
    t, d, s, r = (col(name) for name in ("t", "d", "s", "r"))
    yield from (t == col("t"), t < "2008-05-17 12:00:00", t.is_null(), d >= _DAY, d == col("d"))
    yield F.greatest("d", lit(_DAY))
    yield from _of_calendar()
    for text in TEXTS:
        yield from (s == text, r != text, s.eq_null_safe(text))
    yield from (s == r, s.eq_null_safe(r), s == lit(None), s.is_null())
    yield from (s.isin("view", "click"), r.isin("views", None), s.isin(*TEXTS))
    yield from (s < "view", r <= s, s < "click", s >= r, s > lit(""), r < lit(None))
    yield from (F.length("s"), F.length("r"))
    for part in ("", "vie", "w", "ä", "a longer text than sixteen bytes"):
        for text in (s, r):
            yield from (text.startswith(part), text.endswith(part), text.contains(part))


_PARTS_OF_DATES = (
    *(F.year, F.quarter, F.month, F.weekofyear, F.dayofyear, F.dayofmonth, F.dayofweek),
    *(F.last_day, F.unix_date),
)
_PARTS_OF_TIMES = (F.hour, F.minute, F.second, F.unix_seconds, F.unix_millis, F.unix_micros)
_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond")


def _of_calendar() -> Iterator[Expression]:
    for name in ("d", "t", "e", "m"):
        yield from (part(name) for part in _PARTS_OF_DATES)
        yield from (F.trunc(name, unit) for unit in _UNITS[:4])
        yield from (F.date_add(name, 40), F.date_add(name, "i64"), F.date_sub(name, "i32"))
        yield from (F.datediff(name, "d"), F.datediff("t", name))
    for name in ("t", "e", "m"):
        yield from (part(name) for part in _PARTS_OF_TIMES)
        yield from (F.date_trunc(unit, name) for unit in _UNITS)
    for name in ("i8", "i32", "i64", "u8", "u32"):
        yield F.date_from_unix_date(name)
        yield from (F.timestamp_millis(name), F.timestamp_micros(name))


@whale.compiled
def weighed(price: float, quantity: int) -> float:
    """Return a price that counts quantities above 2 half."""
    if quantity > 2:
        return price * (quantity + 2) / 2
    return price * quantity / (quantity - 1)


@whale.compiled
def mixed(left: int, right: int) -> int:
    """Return bits of two whole numbers."""
    return (left * 31 + right) // (right % 7)


@whale.compiled
def between(at: int, flag: bool) -> bool:
    """Return whether a time is after 1970."""
    return at > 0 and flag


def _of_users() -> Iterator[Expression]:
    for price, quantity in (("f64", "i64"), ("f32", "i8"), ("i32", "u32"), ("i64", "i64")):
        yield weighed(price, quantity)
    yield from (mixed("i64", "i32"), mixed("i8", 5), mixed("u64", "u64"), mixed("b", "i16"))
    yield from (between("t", "b"), between("d", col("i8") > 3), between("i64", "c"))
    yield weighed(col("f64") * 2, F.length("s")) + 1


def few_of_each_kernel() -> Iterator[Expression]:
    """Yield some of `compilable`, two for every emitter."""
    used: Counter[str] = Counter()
    for one in compilable():
        kernel = getattr(one, "kernel", "")
        used[kernel] += 1
        floats = kernel == "arithmetic.remainder" and one.columns == ("f64", "f32")
        if floats or used[kernel] in (1, 5) or (kernel == "casts.cast" and used[kernel] % 9 == 0):
            yield one


def kernels_of(one: Expression) -> set[str]:
    """Return the names of the kernels that an expression calls."""
    found = {kernel} if (kernel := getattr(one, "kernel", "")) else set()
    return found.union(*(kernels_of(child) for child in one.children()))


def trees(depth: int = 3) -> st.SearchStrategy[Expression]:
    """Return a strategy of random conditions and numbers."""
    number = st.sampled_from([col(name) for name in NUMBERS]) | st.sampled_from(
        [lit(value) for value in (0, 1, -1, 7, 0.5, np.nan, -0.0, 2**40)]
    )
    truth = st.sampled_from([col("b"), col("c"), col("s") == "view", col("t").is_null()])
    for _ in range(depth):
        number, truth = _larger(number, truth), _conditions(number, truth)
    return number | truth


def _larger(
    number: st.SearchStrategy[Expression], truth: st.SearchStrategy[Expression]
) -> st.SearchStrategy[Expression]:
    two = st.tuples(number, number)
    return st.one_of(
        number,
        two.map(lambda pair: pair[0] + pair[1]),
        two.map(lambda pair: pair[0] * pair[1]),
        two.map(lambda pair: pair[0] / pair[1]),
        two.map(lambda pair: pair[0] % pair[1]),
        st.tuples(number, st.sampled_from(NUMBERS)).map(lambda p: p[0].cast(KINDS[p[1]])),
        st.tuples(truth, number, number).map(lambda p: when(p[0], p[1]).otherwise(p[2])),
    )


def _conditions(
    number: st.SearchStrategy[Expression], truth: st.SearchStrategy[Expression]
) -> st.SearchStrategy[Expression]:
    two, both = st.tuples(number, number), st.tuples(truth, truth)
    return st.one_of(
        truth,
        two.map(lambda pair: pair[0] < pair[1]),
        two.map(lambda pair: pair[0] == pair[1]),
        both.map(lambda pair: pair[0] & pair[1]),
        both.map(lambda pair: pair[0] | pair[1]),
        truth.map(lambda one: ~one),
    )


def named(expressions: Iterator[Expression] | list[Expression]) -> dict[str, Expression]:
    """Return expressions under names of their own."""
    return {f"x{at}": one for at, one in zip(itertools.count(), expressions, strict=False)}


def batched(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield the items in lists of one size; the last may be shorter."""
    rest = iter(items)
    while part := list(itertools.islice(rest, size)):
        yield part
