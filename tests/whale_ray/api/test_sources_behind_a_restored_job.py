"""Rows of a source that is behind the watermarks of a restored job are late, as it says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import whale_ray as whale
from tests.whale_ray.applications.paced_table import PacedTable, PlannedFailureError
from whale_ray.configs.errors import BadRowError
from whale_ray.operators.event_time import LatePolicy
from whale_ray.testing import ListSource, VirtualClock

F = whale.functions
ROWS = pa.table({"t": pa.array(range(100), pa.int64()), "key": ["old"] * 100})
NEW = [{"t": t, "key": "new"} for t in range(100)]
AT = 60
"""So many rows have come at the last checkpoint: the watermark is that of the row before."""


def source(
    topology: whale.Topology, rows: whale.sources.Source, name: str, **options: Any
) -> whale.Stream:
    return topology.source(rows, id=name, event_time="t", event_time_unit="s", **options)


def counted(stream: whale.Stream) -> None:
    counts = stream.group_by(whale.window("t", "10 s"), "key").agg(F.count().alias("n"), id="n")
    counts.sink(whale.sinks.collect(), id="out")
    counts.late.sink(whale.sinks.collect(), id="late")


def run(topology: whale.Topology, folder: Path, restore: str | None = None) -> whale.Job:
    settings = {
        "checkpoints.url": str(folder),
        "checkpoints.interval_ms": 500,
        "runtime.poll_interval_ms": 50,
        "runtime.max_restarts": 0,
    }
    return whale.run(topology, clock=VirtualClock(0), settings=settings, restore=restore)


def fail_behind_checkpoints(folder: Path) -> None:
    topology = whale.Topology("behind")
    counted(source(topology, PacedTable(ROWS, fails_after=3), "old"))
    with pytest.raises(PlannedFailureError):
        run(topology, folder)


def with_a_new_source(folder: Path, on_late: LatePolicy) -> whale.Job:
    fail_behind_checkpoints(folder)
    topology = whale.Topology("behind")
    rows = ListSource(NEW, schema={"t": "int64", "key": "string"}, batch_rows=5)
    new = source(topology, rows, "new", on_late=on_late)
    counted(source(topology, PacedTable(ROWS), "old").union(new))
    return run(topology, folder, "latest")


def rows_of(job: whale.Job) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in job.results("out").to_arrow().to_pylist():
        found[row["key"]] += row["n"]
    return found


def test_rows_of_a_new_source_behind_the_checkpoint_fail_the_job(tmp_path: Path) -> None:
    told = "'n' got a row of 1970-01-01T00:00:00Z from 'new', after its watermark had come to"
    with pytest.raises(BadRowError, match=told):
        with_a_new_source(tmp_path, "fail")


def test_they_are_dropped_and_counted(tmp_path: Path) -> None:
    job = with_a_new_source(tmp_path, "drop")
    assert rows_of(job) == {"old": 100, "new": 100 - (AT - 1)}
    metrics = job.metrics().operator("n")
    assert (metrics.rows_late, metrics.rows_dropped) == (AT - 1, {"late": AT - 1})
    assert not job.results("late").to_arrow().num_rows


def test_they_are_passed_to_an_operator_that_takes_late_rows(tmp_path: Path) -> None:
    job = with_a_new_source(tmp_path, "pass")
    late = job.results("late").to_arrow().num_rows
    assert late and rows_of(job) == {"old": 100, "new": 100 - late}
