"""Aggregates at four times their memory, whose worker is killed: DuckDB's answer, each row once."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import duckdb
import pytest

import whale_ray as whale
from tests.whale_ray.api.test_checkpoints import checkpoints_of, until
from tests.whale_ray.user_code.gated_numbers import KilledOnce, ManyNumbers

KEYS, ROWS, GATE = 400_000, 1_200_000, 819_200
STATE_BYTES = 4 << 20
"""Of each of two workers; the state of its keys takes more than four times as much."""


def spilled_bytes(job: whale.Job) -> int:
    """Return what lies on the disk; before the operator has told it, 0."""
    known = {one.operator_id: one.spilled_bytes for one in job.metrics().operators}
    return known.get("totals", 0)


@pytest.mark.long
@pytest.mark.parametrize("way", ["partitioned", "late_merge"])
def test_state_at_four_times_its_memory_survives_a_killed_worker(tmp_path: Path, way: str) -> None:
    topology = whale.Topology("spilled")
    source = ManyNumbers(ROWS, GATE, tmp_path / "go")
    rows = topology.source(source, id="numbers", parallelism=2)
    kill = partial(KilledOnce, ROWS - 100_000, tmp_path / "killed")
    killed = rows.shuffle().process(kill, id="killer", parallelism=2)
    keyed = killed.with_column("k", whale.col("number") * 7919 % KEYS, id="keyed")
    totals = keyed.group_by("k").agg(
        whale.functions.count().alias("n"),
        whale.functions.sum("number").alias("total"),
        whale.functions.max("number").alias("most"),
        id="totals",
        output_mode="append",
        parallelism=2,
    )
    totals.sink(whale.sinks.parquet(str(tmp_path / "out")), id="out")
    job = whale.submit(
        topology,
        on="processes",
        workers=2,
        checkpoints=tmp_path / "state",
        checkpoint_interval="300 milliseconds",
        settings={"runtime.state_bytes": STATE_BYTES, "runtime.aggregation": way},
    )
    until(lambda: spilled_bytes(job) > 3 * 2 * STATE_BYTES, "state does not spill")
    taken = checkpoints_of(job)
    until(lambda: checkpoints_of(job) > taken + 1, "there is no checkpoint")
    (tmp_path / "go").touch()
    job.wait(240)
    assert (job.state, job.outcome().restarts) == ("finished", 1)
    found = duckdb.sql(
        f"select k, n, total, most from read_parquet('{tmp_path}/out/*.parquet') order by k"
    ).fetchall()
    wanted = duckdb.sql(
        f"select i * 7919 % {KEYS} k, count(*), sum(i), max(i) from range({ROWS}) t(i)"
        " group by k order by k"
    ).fetchall()
    assert found == wanted
