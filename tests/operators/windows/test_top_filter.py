"""Rows that are left out before they are sent: none that is among the first of its window."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import whale_ray as whale
from whale_ray.configs.settings import Settings
from whale_ray.operators.windows.specifications import TimeWindow
from whale_ray.operators.windows.top_filter import TopFilter
from whale_ray.operators.windows.top_n import TopN
from whale_ray.plan.late_merge import choose_aggregations
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

NS = 1_000_000_000
ROWS = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 12) | st.sampled_from([-(2**63), 2**63 - 1])),
    max_size=150,
)
"""Seconds of event time, in more windows than are remembered, and values with ties."""


def first_rows(rows: list[tuple[int, int]], n: int, with_ties: bool) -> list[tuple[int, int]]:
    """Return the first rows of each window of 10 s; of equal ones those that came before."""
    found = []
    for window in {second // 10 for second, _ in rows}:
        mine = sorted((r for r in rows if r[0] // 10 == window), key=lambda r: -r[1])
        found += mine[:n]
        if with_ties and len(mine) > n:
            found += [row for row in mine[n:] if row[1] == mine[n - 1][1]]
    return sorted(found)


@given(ROWS, st.integers(1, 4), st.booleans(), st.integers(1, 40))
def test_the_first_rows_pass(
    rows: list[tuple[int, int]], n: int, with_ties: bool, at_once: int
) -> None:
    asked = TopN((), TimeWindow("", 10 * NS, 10 * NS, 0), n=n, by="v", with_ties=with_ties)
    transform, passed = TopFilter(asked).instance(), []
    for begin in range(0, len(rows), at_once):
        some = rows[begin : begin + at_once]
        batch = Batch.from_pydict({"v": [value for _, value in some]}, Schema.of(v="int64"))
        times = np.array([second * NS for second, _ in some])
        result = transform.apply(batch.with_times(times))
        assert result is not None
        assert result.times is not None
        passed += list(zip((result.times // NS).tolist(), result["v"].tolist(), strict=True))
    assert first_rows(passed, n, with_ties) == first_rows(rows, n, with_ties)


def test_most_rows_are_left_out() -> None:
    asked = TopN((), TimeWindow("", 10 * NS, 10 * NS, 0), n=3, by="v")
    values = np.random.default_rng(1).permutation(50_000)
    batch = Batch.from_pydict({"v": values}).with_times(np.arange(50_000) * (NS // 1_000))
    result = TopFilter(asked).instance().apply(batch)
    assert result is not None
    assert result.num_rows < 250  # of five windows: about 3 ln(10,000 / 3) in each


def way_of(
    *keys: str, aggregation: str = "auto", n: int = 1, within: Any = None, **source: Any
) -> str:
    """Return how a `top_n` runs."""
    topology = whale.Topology("top")
    moments = {"moment": np.arange(3).astype("M8[ms]"), "v": [1, 2, 3], "key": [1, 1, 1]}
    rows = topology.source(
        whale.sources.arrow(Batch.from_pydict(moments).to_arrow()),
        id="rows",
        event_time="moment",
        **source,
    ).filter(whale.col("v") > 0)
    window = within or whale.window("moment", "10 seconds")
    rows.group_by(window, *keys).top_n(n, by="v", id="top").sink(whale.sinks.collect(), id="out")
    settings = Settings().with_overrides({"runtime.aggregation": aggregation})
    (choice,) = choose_aggregations(topology.logical_plan(), settings, 1)
    return choice.chosen


@pytest.mark.parametrize(
    ("asked", "way"),
    [
        ({}, "late_merge"),
        ({"on_late": "drop", "n": 1024}, "late_merge"),
        ({"on_late": "pass"}, "partitioned"),
        ({"idle_after_ms": 1_000}, "partitioned"),
        ({"aggregation": "partitioned"}, "partitioned"),
        ({"n": 1025}, "partitioned"),
    ],
)
def test_rows_are_left_out_where_none_may_be_late(asked: dict[str, Any], way: str) -> None:
    assert way_of(**asked) == way


def test_rows_of_groups_are_sent() -> None:
    assert way_of("key") == "partitioned"


def results_of_windows(
    *keys: str, window: Any = "10 seconds", top: tuple[str, ...] = (), lateness: str = "0 seconds"
) -> whale.Topology:
    """Return the most frequent keys of each window of the results of an aggregate."""
    topology = whale.Topology("top")
    second, key = np.arange(600) // 6, np.arange(600) ** 2 % 7
    moments = {"moment": (second * 1_000).astype("M8[ms]"), "key": key, "v": key}
    source = whale.sources.arrow(Batch.from_pydict(moments).to_arrow())
    rows = topology.source(source, id="rows", event_time="moment")
    counts = rows.group_by(whale.window("moment", window, "5 seconds"), *keys).agg(
        whale.functions.count().alias("n"), id="counts", allowed_lateness=lateness
    )
    best = counts.group_by("window_end", *top).top_n(1, by="n", with_ties=True, id="top")
    best.sink(whale.sinks.collect(), id="out")
    return topology


@pytest.mark.parametrize(
    ("topology", "way"),
    [
        (results_of_windows("key"), "late_merge"),
        (results_of_windows("key", top=("window_start",)), "late_merge"),
        (results_of_windows("key", "v", top=("v",)), "partitioned"),
        (results_of_windows("key", lateness="1 second"), "partitioned"),
    ],
)
def test_results_of_windows_are_left_out_where_each_comes_once(
    topology: whale.Topology, way: str
) -> None:
    *_, choice = choose_aggregations(topology.logical_plan(), Settings(), 1)
    assert (choice.operator, choice.chosen) == ("top", way)


def test_the_first_results_of_each_window_are_those_of_all() -> None:
    found = []
    for way in ("auto", "partitioned"):
        job = whale.run(results_of_windows("key"), settings={"runtime.aggregation": way})
        found.append(sorted(map(repr, job.results("out").preview(99))))
    assert found[0] == found[1]
    assert len(found[0]) >= 20
