"""Aggregates of columns of every type, in windows around 1970 and leap days, against DuckDB.

Keys and values are null, NaN, -0.0, the ends of their types; many rows have the same time, and most
windows of the span have no row at all.
"""

from __future__ import annotations

import datetime
import math
import random
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import whale_ray as whale

F = whale.functions
NAN, INFINITY = float("nan"), float("inf")
MOMENTS = [
    datetime.datetime.fromisoformat(moment)
    for moment in (
        "1900-02-28T23:59:55",  # no leap year
        "1969-12-31T23:59:55",
        "2000-02-28T23:59:55",
        "2024-02-29T23:59:55",
        "2038-01-19T03:14:03",
    )
]
DATES = [datetime.date(1970, 1, 1) + datetime.timedelta(days=days) for days in (-1, 0, 19_781)]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i8": (pa.int8(), [-128, 127, 0]),
    "i16": (pa.int16(), [-(2**15), 2**15 - 1, 3]),
    "i32": (pa.int32(), [-(2**31), 2**31 - 1, 3]),
    "i64": (pa.int64(), [-(2**55), 2**55, 3]),
    "f32": (pa.float32(), [0.0, -0.0, 0.5, NAN, -INFINITY]),
    "f64": (pa.float64(), [0.0, -0.0, 0.1, NAN, INFINITY]),
    "decimal": (pa.decimal128(10, 2), [Decimal("99999999.99"), Decimal("-0.01"), Decimal(0)]),
    "bool": (pa.bool_(), [True, False]),
    "date": (pa.date32(), DATES),
    "time": (pa.timestamp("us"), MOMENTS),
    "text": (pa.string(), ["", "a", "é", "\U0001f40b", "a\0"]),
    "bytes": (pa.binary(), [b"", b"\0", b"\xff"]),
}
SUMMED = ("i8", "i16", "i32", "i64", "decimal")
KEYS = (["f64"], ["text", "bool"], ["decimal"], ["date", "f32"])
WINDOWS = {
    "10 seconds": (whale.window("moment", "10 seconds"), "INTERVAL 10 seconds", [0]),
    "days": (whale.window("moment", "1 day", "12 hours"), "INTERVAL 12 hours", [0, 1]),
}


def rows(seed: int, count: int) -> pa.Table:
    draw = random.Random(seed)

    def column(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([draw.choice([*values, None]) for _ in range(count)], kind)

    offsets = [datetime.timedelta(microseconds=us) for us in (0, 0, 1, 4_999_999, 5_000_000)]
    moments = [draw.choice(MOMENTS) + draw.choice(offsets) for _ in range(count)]
    columns = {name: column(values, kind) for name, (kind, values) in VALUES.items()}
    order = pa.array(draw.sample(range(count), count))
    return pa.table({"moment": pa.array(moments, pa.timestamp("us")), "n": order, **columns})


def calls() -> list[tuple[Any, str]]:
    """Return aggregates, and what DuckDB calls them."""
    found = [(F.count(), "count(*)")]
    for name in VALUES:
        found += [
            (F.count(name), f"count({name})"),
            (F.count_distinct(name), f"count(DISTINCT {name})"),
            (F.min(name), f"min({name})"),
            (F.max(name), f"max({name})"),
            (F.min_by(name, "n"), f"arg_min_null({name}, n)"),
            (F.max_by(name, "n"), f"arg_max_null({name}, n)"),
        ]
    found += [(F.sum(name), f"sum({name})") for name in SUMMED]
    return found


def same(value: Any) -> Any:
    """Return a value that is equal for equal ones: NaN is NaN, and -0.0 is 0.0."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def in_order(table: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted((tuple(map(same, row)) for row in table), key=repr)


@pytest.mark.parametrize("keys", KEYS, ids=" ".join)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("seed", "count", "parallelism"), [(2, 60, 1), (3, 300, 3)])
def test_aggregates_of_all_types_are_those_of_sql(
    seed: int, count: int, parallelism: int, window: str, keys: list[str]
) -> None:
    given = rows(seed, count)
    spec, slide, before = WINDOWS[window]
    topology = whale.Topology("types")
    stream = topology.source(
        whale.sources.arrow(given),
        id="rows",
        event_time="moment",
        max_out_of_order_ms=200 * 366 * 86_400_000,
        max_ahead_ms=None,
    )
    aggregates = [one.alias(f"a{place}") for place, (one, _) in enumerate(calls())]
    result = stream.group_by(spec, *keys).agg(*aggregates, parallelism=parallelism)
    result.sink(whale.sinks.collect(), id="out")
    found = whale.run(topology).results("out").to_arrow()
    with duckdb.connect() as connection:
        connection.register("given", given)
        expected = connection.sql(f"""
            SELECT time_bucket({slide}, moment) - {slide} * before AS start,
                start + {slide} * {len(before)}, {", ".join(keys)},
                {", ".join(name for _, name in calls())}
            FROM given, (SELECT unnest({before}) AS before)
            GROUP BY start, {", ".join(keys)}""").fetchall()
    assert in_order(list(zip(*found.to_pydict().values(), strict=True))) == in_order(expected)


def test_a_percentile_of_decimals_is_refused_with_the_type_to_cast_to() -> None:
    topology = whale.Topology("decimals")
    decimals = pa.table({"n": pa.array([Decimal("1.5")])})
    rows = topology.source(whale.sources.arrow(decimals))
    told = r"percentile_approx takes integers, floats, dates and times; cast it to 'double'$"
    with pytest.raises(whale.errors.TopologyError, match=told):
        rows.group_by("n").agg(F.percentile_approx("n", 0.5))
    median = F.percentile_approx(whale.col("n").cast("double"), 0.5).alias("median")
    rows.group_by("n").agg(median).sink(whale.sinks.collect(), id="out")
    found = whale.run(topology).results("out").to_arrow().to_pylist()
    assert found == [{"n": Decimal("1.5"), "median": 1.5}]


@pytest.mark.filterwarnings("error")
def test_a_variance_that_no_float_can_tell_is_nan_as_in_spark() -> None:
    far = [1e308, 1e308, -1e308]
    topology = whale.Topology("far-apart")
    rows = topology.source(whale.sources.arrow(pa.table({"k": ["a"] * 3, "v": far})))
    totals = rows.group_by("k").agg(
        F.var_pop("v").alias("variance"), F.stddev("v").alias("deviation")
    )
    totals.sink(whale.sinks.collect(), id="out")
    last = whale.run(topology).results("out").to_arrow().to_pylist()[-1]
    assert math.isnan(last["variance"]) and math.isnan(last["deviation"])
