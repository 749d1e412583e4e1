"""NEXMark's queries against SQL over the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

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
@pytest.mark.parametrize("query", QUERIES)
def test_a_query_answers_as_sql_does(query: str, parallelism: int) -> None:
    expected = in_order(answer(query, streams()))
    found = in_order(result_of(query, parallelism))
    assert found.num_rows == expected.num_rows > 0
    assert found.column_names == expected.column_names
    assert found.cast(expected.schema).to_pydict() == expected.to_pydict()
