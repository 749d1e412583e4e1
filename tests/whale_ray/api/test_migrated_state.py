"""A keyed process that keeps more, or wider numbers, goes on with what an earlier version kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import whale_ray as whale
from tests.whale_ray.applications.paced_table import PacedTable, PlannedFailureError
from whale_ray import state
from whale_ray.testing import VirtualClock

ROWS = pa.table({"key": [row % 7 for row in range(1_000)], "n": list(range(1_000))})
AT = 600
"""Where the pause with the last checkpoint is; the source fails behind it."""


class First(whale.KeyedProcess):
    total = state.sum("int32")
    last = state.value("int32")
    schema = whale.Schema.of(key="int64", total="int64", last="int64", rows="int64", most="int64")

    def on_row(self, row: Any, out: Any) -> None:
        self.total.add(row.n)
        self.last.set(row.n)


class Second(First):
    """Keeps more in front of, and behind, what it kept; and wider."""

    most = state.max("int64")
    last = state.value("int64")
    total = state.sum("float64")
    rows = state.count()
    seen = state.list("int64")

    def on_row(self, row: Any, out: Any) -> None:
        super().on_row(row, out)
        self.rows.add(1)
        self.most.add(row.n)
        self.seen.append(row.n)
        out.emit_row(
            key=self.key.key,
            total=int(self.total.get()),
            last=self.last.get(),
            rows=self.rows.get(),
            most=len(self.seen),
        )


def job(process: type, source: whale.sources.Source) -> whale.Topology:
    topology = whale.Topology("migrated")
    rows = topology.source(source, id="rows")
    rows.key_by("key").process(process, id="kept").sink(whale.sinks.collect(), id="out")
    return topology


def test_state_goes_on_in_another_class(tmp_path: Path) -> None:
    settings = {
        "checkpoints.url": str(tmp_path / "kept"),
        "checkpoints.interval_ms": 500,
        "runtime.poll_interval_ms": 50,
        "runtime.max_restarts": 0,
    }
    clock = VirtualClock(0)
    with pytest.raises(PlannedFailureError):
        whale.run(job(First, PacedTable(ROWS, fails_after=3)), clock=clock, settings=settings)
    found = whale.run(
        job(Second, PacedTable(ROWS)), clock=clock, settings=settings, restore="latest"
    ).results("out")
    keys, numbers = ROWS["key"].to_pylist(), ROWS["n"].to_pylist()
    expected = []
    for at in range(AT, len(numbers)):
        all_of_key = [n for n in numbers[: at + 1] if keys[n] == keys[at]]
        since = len([n for n in all_of_key if n >= AT])
        total = sum(all_of_key)
        expected.append({"key": keys[at], "total": total, "last": at, "rows": since, "most": since})
    assert sorted(found.to_arrow().to_pylist(), key=lambda row: row["last"]) == expected


def test_rows_of_another_type_than_those_that_wait_are_refused_by_name(tmp_path: Path) -> None:
    def counts(kind: str, source: whale.sources.Source) -> whale.Topology:
        topology = whale.Topology("waiting")
        rows = topology.source(source, id="rows", event_time="at", max_out_of_order_ms=5_000)
        cast = rows.select("key", "at", whale.col("n").cast(kind).alias("n"))
        cast.key_by("key").process(First, id="kept").sink(whale.sinks.collect(), id="out")
        return topology

    timed = ROWS.append_column("at", pa.array(range(1_000), pa.timestamp("ms")))
    clock = VirtualClock(0)
    kept: dict[str, Any] = {"checkpoints": tmp_path / "kept", "checkpoint_interval": "500 ms"}
    with pytest.raises(PlannedFailureError):
        whale.run(counts("int64", PacedTable(timed, fails_after=3)), clock=clock, **kept)
    told = "operator 'kept': column 'n' is int64 in one batch and string in another"
    with pytest.raises(whale.errors.InputError, match=told):
        whale.run(counts("string", PacedTable(timed)), clock=clock, restore="latest", **kept)
