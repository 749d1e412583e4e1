"""State at four times its memory, whose worker is killed: DuckDB's answer, each row once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest

import whale_ray as whale
from tests.whale_ray.api.test_checkpoints import checkpoints_of, until
from tests.whale_ray.user_code.gated_numbers import KilledOnce, ManyNumbers
from whale_ray import state

KEYS, ROWS, GATE = 400_000, 1_200_000, 819_200
STATE_BYTES = 4 << 20
"""Of each of two workers; the state of its keys takes more than four times as much."""


def spilled_bytes(job: whale.Job) -> int:
    """Return what lies on the disk; before the operator has told it, 0."""
    known = {one.operator_id: one.spilled_bytes for one in job.metrics().operators}
    return known.get("totals", 0)


class Running(whale.KeyedProcess):
    """Emits, for each row, how many its key has had, their sum, and the number of the row."""

    n = state.count()
    total = state.sum("int64")
    schema = whale.Schema.of(k="int64", n="int64", total="int64", most="int64")

    @whale.compiled
    def on_row(self, row: Any, out: Any) -> None:
        self.n.add(1)
        self.total.add(row.number)
        out.emit_row(k=row.k, n=self.n.get(), total=self.total.get(), most=row.number)


def aggregated(keyed: whale.Stream) -> whale.Stream:
    return keyed.group_by("k").agg(
        whale.functions.count().alias("n"),
        whale.functions.sum("number").alias("total"),
        whale.functions.max("number").alias("most"),
        id="totals",
        output_mode="append",
        parallelism=2,
    )


def processed(keyed: whale.Stream) -> whale.Stream:
    return keyed.key_by("k").process(Running, id="totals", parallelism=2)


@pytest.mark.long
@pytest.mark.parametrize(
    ("compute", "way"),
    [(aggregated, "partitioned"), (aggregated, "late_merge"), (processed, "auto")],
)
def test_state_at_four_times_its_memory_survives_a_killed_worker(
    tmp_path: Path, compute: Callable[[whale.Stream], whale.Stream], way: str
) -> None:
    topology = whale.Topology("spilled")
    source = ManyNumbers(ROWS, GATE, tmp_path / "go")
    rows = topology.source(source, id="numbers", parallelism=2)
    kill = partial(KilledOnce, ROWS - 100_000, tmp_path / "killed")
    killed = rows.shuffle().process(kill, id="killer", parallelism=2)
    keyed = killed.with_column("k", whale.col("number") * 7919 % KEYS, id="keyed")
    compute(keyed).sink(whale.sinks.parquet(str(tmp_path / "out")), id="out")
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
    written = f"read_parquet('{tmp_path}/out/*.parquet')"
    found = duckdb.sql(
        f"select k, max(n), max(total), max(most) from {written} group by k order by k"
    )
    wanted = duckdb.sql(
        f"select i * 7919 % {KEYS} k, count(*), sum(i), max(i) from range({ROWS}) t(i)"
        " group by k order by k"
    )
    assert found.fetchall() == wanted.fetchall()
    each_once = ROWS if compute is processed else KEYS
    assert duckdb.sql(f"select count(*), count(distinct (k, n)) from {written}").fetchall() == [
        (each_once, each_once)
    ]
