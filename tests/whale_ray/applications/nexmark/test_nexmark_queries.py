"""NEXMark's queries against SQL over the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import whale_ray as whale
from tests.whale_ray.applications.nexmark.oracles import answer
from whale_ray.applications.nexmark.generator import tables
from whale_ray.applications.nexmark.inputs import Inputs
from whale_ray.applications.nexmark.queries import QUERIES
from whale_ray.applications.nexmark.schemas import SCHEMAS
from whale_ray.applications.nexmark.settings import NexmarkSettings

SETTINGS = NexmarkSettings(events=30_000, events_per_s=500)
"""One minute, so that there are many windows, and sessions that end."""


BEGIN_MS = 1_451_606_400_000
"""The first day of 2016, when all events have happened."""


@cache
def streams() -> dict[str, pa.Table]:
    return {name: pa.concat_tables(tables(name, SETTINGS)) for name in SCHEMAS}


def result_of(query: str, parallelism: int) -> pa.Table:
    topology = whale.Topology("nexmark")

    def source_of(name: str, columns: Sequence[str] | None) -> whale.sources.Source:
        rows = streams()[name]
        return whale.sources.arrow(rows.select(columns or rows.column_names))

    inputs = Inputs(topology, source_of, parallelism)
    QUERIES[query](inputs).sink(whale.sinks.collect(), id="out")
    return whale.run(topology).results("out").to_arrow()


def in_order(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names])


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("query", [query for query in QUERIES if query != "12"])
def test_a_query_answers_as_sql_does(query: str, parallelism: int) -> None:
    expected = in_order(answer(query, streams()))
    found = in_order(result_of(query, parallelism))
    assert found.num_rows == expected.num_rows > 0
    assert found.column_names == expected.column_names
    assert found.cast(expected.schema).to_pydict() == expected.to_pydict()


@pytest.mark.parametrize("parallelism", [1, 3])
def test_query_12_counts_bids_by_the_clock(parallelism: int) -> None:
    bids = streams()["bids"].slice(0, 1200).select(["bidder", "date_time"])
    items: list[Any] = []
    came_ms = []
    for number, row in enumerate(bids.to_pylist()):
        if number % 30 == 29:
            items.append(whale.testing.Pause(1700))
        items.append(row)
        came_ms.append(BEGIN_MS + (number + 1) // 30 * 1700)
    came = bids.append_column("came_ms", pa.array(came_ms))
    with duckdb.connect() as connection:
        connection.register("came", came)
        expected = connection.sql(
            """SELECT make_timestamp(came_ms // 10_000 * 10_000_000) AS window_start,
                      window_start + INTERVAL '10 seconds' AS window_end,
                      bidder, count(*) AS bid_count FROM came GROUP BY ALL"""
        ).to_arrow_table()

    topology = whale.Topology("nexmark")
    source = whale.testing.ListSource(items, bids.schema)
    inputs = Inputs(topology, lambda name, columns: source, parallelism)
    QUERIES["12"](inputs).sink(whale.sinks.collect(), id="out")
    job = whale.run(
        topology,
        clock=whale.testing.VirtualClock(BEGIN_MS * 1_000_000),
        settings={"transport.wtl_ms": 0},
    )
    found = in_order(job.results("out").to_arrow())
    assert found.num_rows == expected.num_rows > 100
    assert found.cast(expected.schema).to_pydict() == in_order(expected).to_pydict()
