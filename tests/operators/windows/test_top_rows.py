"""The first rows of windows, against DuckDB: enough rows that most are left out as they come."""

from __future__ import annotations

from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import whale_ray as whale
from tests.operators.windows.driving import Emitted
from whale_ray.operators.windows.top_n import TopN
from whale_ray.operators.windows.top_rows import order_of
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column

F = whale.functions
ROWS = 40_000
"""Several reads of a source in each window."""


def values(kind: str) -> pa.Array:
    """Return values of which few are distinct, so that there are ties, with the extremes of all."""
    random = np.random.default_rng(5)
    drawn = random.integers(0, 1_000, ROWS)
    match kind:
        case "int64":
            special = np.array([-(2**63), 2**63 - 1])
            return pa.array(np.where(drawn < 2, special[drawn % 2], drawn - 500), pa.int64())
        case "uint64":
            return pa.array(drawn.astype(np.uint64) + np.uint64(2**63 - 500), pa.uint64())
        case "double":
            special = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0])
            floats = np.where(drawn < 5, special[drawn % 5], (drawn - 500) / 8)
            return pa.array(floats, pa.float64())
        case "string":
            return pa.array([f"{one:04}" for one in drawn.tolist()])
        case _:
            return pa.array(drawn, pa.int32(), mask=drawn > 900)


@pytest.mark.parametrize("with_ties", [False, True])
@pytest.mark.parametrize("kind", ["int64", "uint64", "double", "string", "nulls"])
def test_the_first_rows_of_windows_are_those_of_sql(kind: str, with_ties: bool) -> None:
    rows = pa.table(
        {"n": range(ROWS), "moment": pa.array(range(ROWS), pa.timestamp("ms")), "v": values(kind)}
    )
    topology = whale.Topology("top")
    source = topology.source(whale.sources.arrow(rows), id="rows", event_time="moment")
    windows = source.group_by(whale.window("moment", "20 seconds", "10 seconds"))
    windows.top_n(7, by="v", with_ties=with_ties).sink(whale.sinks.collect(), id="out")
    found: Any = whale.run(topology).results("out").to_arrow()
    ranked = "rank()" if with_ties else "row_number()"
    order = "v desc nulls last" if with_ties else "v desc nulls last, n"
    expected = duckdb.sql(f"""
        select begin_of, n from (
            select *, unnest([time_bucket(interval 10 seconds, moment),
                              time_bucket(interval 10 seconds, moment) - interval 10 seconds])
                      as begin_of from rows)
        qualify {ranked} over (partition by begin_of order by {order}) <= 7
    """).fetchall()
    starts = [one.replace(tzinfo=None) for one in found["window_start"].to_pylist()]
    assert sorted(zip(starts, found["n"].to_pylist(), strict=True)) == sorted(expected)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int8", "uint8", "uint64"])
def test_the_order_of_numbers_is_numpys(kind: str) -> None:
    random = np.random.default_rng(3)
    bits = random.integers(0, 256, 8_000, dtype=np.uint8)
    numbers = bits.view(kind)
    order = order_of(Column.of(numbers))
    assert order is not None
    _, expected = np.unique(numbers, return_inverse=True)  # NaN is last, and equal to NaN
    _, found = np.unique(order, return_inverse=True)
    np.testing.assert_array_equal(found, expected)


def test_rows_that_are_left_out_move_the_time_of_the_result_in_snapshots_too() -> None:
    """The result of a group-by without a window has the latest event time of all rows."""
    asked = TopN((), None, n=1, by="v")
    processes = [asked() for _ in range(2)]
    for process in processes:
        process.open(instance_context(operator_id="top"))
    for epoch, numbers in enumerate((np.arange(5_000), np.array([0]))):
        times = numbers + 9_000 * epoch
        batch = Batch.from_pydict({"v": numbers}).with_times(times)
        processes[0].on_batch(batch, Emitted())
        chunks = processes[0].chunks(epoch)
    processes[1].take(chunks, whole=True)
    for process in processes:
        out = Emitted()
        process.close(out)
        assert (out.rows, out.times) == ([{"v": 4_999}], [9_000])


@pytest.mark.parametrize("is_within", [False, True])
def test_many_windows_with_few_rows_take_little_memory(is_within: bool) -> None:
    """A slice of a few groups has no chunk of memory of its own: here 128 would take 8 MiB."""
    seconds = pa.array(range(128), pa.int64())
    rows = pa.table({"t": seconds.cast(pa.timestamp("s")), "k": seconds, "v": seconds})
    topology = whale.Topology("windows")
    stream = topology.source(whale.sources.arrow(rows), id="rows", event_time="t")
    grouped = stream.group_by(whale.window("t", "128 seconds", "1 second"), "k")
    if is_within:
        counts = grouped.agg(F.count().alias("n"))
        result = counts.group_by("window_start", "window_end").agg(F.sum("n").alias("rows"))
    else:
        result = grouped.top_n(1, by="v")
    result.sink(whale.sinks.collect(), id="out")
    settings = {"runtime.state_bytes": 4 << 20, "runtime.spill_bytes_max": 0}
    found = whale.run(topology, settings=settings).results("out").to_arrow()
    assert found.num_rows == (255 if is_within else 128 * 128)
