"""Aggregates whose input gets other types are refused: what is kept is of the old ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import whale_ray as whale
from tests.whale_ray.applications.paced_table import PacedTable, PlannedFailureError
from whale_ray.testing import VirtualClock

F = whale.functions
SALES = pa.table(
    {
        "shop": [row % 3 for row in range(200)],
        "at": pa.array(range(200), pa.timestamp("s")),
        "cents": list(range(200)),
    }
)
WINDOWS: dict[str, list[Any]] = {
    "none": [],
    "tumbling": [whale.window("at", "1 hour")],
    "session": [whale.session_window("at", "1 hour")],
    "count": [whale.count_window(150)],
}


def decimals(source: whale.sources.Source, scale: int, window: list[Any]) -> whale.Topology:
    topology = whale.Topology("decimals")
    price = whale.col("cents").cast(f"decimal(20, {scale})").alias("price")
    sales = topology.source(source, id="sales", event_time="at").select("shop", "at", price)
    totals = sales.group_by(*window, "shop").agg(
        F.sum("price").alias("total"), F.max("price").alias("most"), id="totals"
    )
    totals.sink(whale.sinks.collect(), id="out")
    return topology


@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_decimals_of_another_scale_do_not_go_on_with_kept_sums(
    tmp_path: Path, window: list[Any]
) -> None:
    clock = VirtualClock(0)
    kept: dict[str, Any] = {"checkpoints": tmp_path / "kept", "checkpoint_interval": "500 ms"}
    with pytest.raises(PlannedFailureError):
        whale.run(decimals(PacedTable(SALES, fails_after=3), 2, window), clock=clock, **kept)
    told = (
        r"operator 'totals': column 'price' is decimal128\(20, 4\) and was decimal128\(20, 2\)"
        " before: cast it to one type"
    )
    with pytest.raises(whale.errors.InputError, match=told):
        whale.run(decimals(PacedTable(SALES), 4, window), clock=clock, restore="latest", **kept)


@pytest.mark.parametrize("way", ["partitioned", "late_merge"])
def test_instances_that_have_learnt_different_types_are_refused(way: Any) -> None:
    """As whole numbers, the halves would be lost without a word."""
    topology = whale.Topology("learnt")
    numbers = topology.source(
        whale.testing.ListSource([{"n": n} for n in range(20)], batch_rows=1), id="numbers"
    )
    odd_apart = numbers.partition_by(lambda batch, _: np.asarray(batch["n"]) % 2)
    halves = odd_apart.map(
        lambda row: {"key": 0, "n": row.n + 0.5 if row.n % 2 else row.n}, id="halves", parallelism=2
    )
    total = halves.group_by("key").agg(
        F.sum("n").alias("total"), id="total", output_mode="append", aggregation=way
    )
    total.sink(whale.sinks.collect(), id="out")
    told = "operator 'total': column 'n' is (float64 and was int64|int64 and was float64) before"
    with pytest.raises(whale.errors.InputError, match=told):
        whale.run(topology)


def total_in(**state_of_it: str) -> whale.AggregateFunction:
    class Total(whale.AggregateFunction):
        state = state_of_it
        output = "float64"

        def update(self, state: Any, groups: Any, *columns: Any) -> None:
            np.add.at(state["total"], groups, columns[0].astype(state["total"].dtype))

        def merge(self, state: Any, other: Any) -> None:
            state["total"] += other["total"]

        def finish(self, state: Any) -> Any:
            return state["total"].astype(float)

    return Total()


KEPT = {
    "narrower": ({"total": "int64"}, {"total": "int32"}, "as int32, and as int64 before"),
    "inexact": ({"total": "int64"}, {"total": "float64"}, "as float64, and as int64 before"),
    "more": ({"total": "int64"}, {"total": "int64", "n": "int8"}, "as int8, and did not before"),
    "less": ({"total": "int64", "n": "int8"}, {"total": "int64"}, r"n'\] no longer"),
    "wider": ({"total": "int32"}, {"total": "int64"}, None),
}


@pytest.mark.parametrize(("before", "now", "told"), KEPT.values(), ids=KEPT)
def test_what_a_users_aggregate_kept_goes_on_if_it_fits(
    tmp_path: Path, before: Any, now: Any, told: str | None
) -> None:
    def totals(source: whale.sources.Source, kept: Any) -> whale.Topology:
        topology = whale.Topology("own")
        sales = topology.source(source, id="sales", event_time="at")
        groups = sales.group_by(*WINDOWS["tumbling"], "shop")
        own = groups.agg(total_in(**kept)("cents").alias("total"), id="totals")
        own.sink(whale.sinks.collect(), id="out")
        return topology

    clock = VirtualClock(0)
    checkpoints: dict[str, Any] = {"checkpoints": tmp_path, "checkpoint_interval": "500 ms"}
    with pytest.raises(PlannedFailureError):
        whale.run(totals(PacedTable(SALES, fails_after=3), before), clock=clock, **checkpoints)
    again: dict[str, Any] = {"clock": clock, "restore": "latest", **checkpoints}
    if told is not None:
        refused = rf"operator 'totals': aggregate Total keeps state\['.*{told}: declare"
        with pytest.raises(whale.errors.InputError, match=refused):
            whale.run(totals(PacedTable(SALES), now), **again)
        return
    found = whale.run(totals(PacedTable(SALES), now), **again).results("out").to_arrow()
    assert sorted(found["total"].to_pylist()) == [6567, 6633, 6700]
