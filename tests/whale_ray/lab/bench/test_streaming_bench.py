"""Every workload has DuckDB's rows, in all systems that are here; the figures are not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from whale_ray.cli.main import main
from whale_ray.lab.bench.peers.base import packages_of
from whale_ray.lab.bench.streaming import (
    batch_engines,
    bytewax_flows,
    disorder,
    handles,
    spark_queries,
    suite,
)
from whale_ray.lab.bench.streaming.bids import BidFiles, most_keys, write_inputs
from whale_ray.lab.bench.streaming.jobs import build, state_peak_bytes
from whale_ray.lab.bench.streaming.systems import SYSTEMS
from whale_ray.lab.bench.streaming.workloads import WORKLOADS, Workload, workload_named

EVENTS = 200_000
"""20 s of event time: two tumbling windows."""

ON_COLUMNS = "keyed column process, two handles"
ON_ROWS = "keyed row process, two handles"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> BidFiles:
    return write_inputs(tmp_path_factory.mktemp("bids"), EVENTS)


def expected(workload: str, path: Path) -> list[dict[str, Any]]:
    import duckdb

    with duckdb.connect() as connection:
        found = batch_engines.query_duckdb(connection, workload, path)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def in_order(rows: list[dict[str, Any]], names: set[str]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in sorted(names)) for row in rows)


def run_job(workload: Workload, path: Path) -> list[dict[str, Any]]:
    job = whale.run(build(workload, path, keep=True))
    rows: list[dict[str, Any]] = job.results("out").to_arrow().to_pylist()
    return rows


@pytest.mark.smoke
@pytest.mark.parametrize(
    "workload", [one for one in WORKLOADS if one.name != ON_COLUMNS], ids=lambda one: one.name
)
def test_a_job_makes_the_rows_of_its_query(workload: Workload, inputs: BidFiles) -> None:
    wanted = expected(workload.name, inputs.out_of_order)
    names = set(wanted[0])
    assert in_order(run_job(workload, inputs.out_of_order), names) == in_order(wanted, names)


def test_the_column_form_ends_with_the_totals_of_the_query(inputs: BidFiles) -> None:
    found = run_job(workload_named(ON_COLUMNS), inputs.in_order)
    wanted = expected(ON_COLUMNS, inputs.in_order)

    def totals(rows: list[dict[str, Any]]) -> dict[int, tuple[int, int]]:
        last: dict[int, tuple[int, int]] = {}
        for row in rows:
            so_far = last.get(row["bidder"], (0, 0))
            last[row["bidder"]] = max(so_far, (row["bids"], row["spent"]))
        return last

    assert len(found) == len(wanted) == inputs.rows
    assert totals(found) == totals(wanted)


def test_both_files_have_the_same_bids_and_one_is_out_of_order(inputs: BidFiles) -> None:
    ordered, mixed = (pq.read_table(path) for path in (inputs.in_order, inputs.out_of_order))
    assert mixed.sort_by("date_time").equals(ordered)
    times = mixed["date_time"].to_numpy().astype(np.int64)
    behind = np.maximum.accumulate(times) - times
    assert 0.05 < np.mean(behind > 0) < 0.15
    assert 2_000_000 < behind.max() < 3_000_000


def test_most_keys_counts_the_fullest_window(inputs: BidFiles) -> None:
    table = pq.read_table(inputs.in_order)
    seconds = table["date_time"].to_numpy().astype("datetime64[s]").astype(int)
    auctions = table["auction"].to_numpy()
    windows = {start: set(auctions[seconds // 10 == start]) for start in set(seconds // 10)}
    assert len(windows) == 2
    assert most_keys(inputs.in_order, "auction", 10) == max(map(len, windows.values()))
    assert most_keys(inputs.in_order, "auction", None) == len(set(auctions))


def test_state_takes_at_least_its_fields(inputs: BidFiles) -> None:
    keys = most_keys(inputs.in_order, "bidder", None)
    peak_bytes = state_peak_bytes(build(workload_named(ON_COLUMNS), inputs.in_order))
    assert peak_bytes >= keys * 3 * 8  # the key, a count and a sum


@pytest.mark.parametrize("call", handles.CALLS)
def test_calls_of_handles_run(call: str, inputs: BidFiles) -> None:
    bids = pq.read_table(inputs.in_order).slice(0, 10)
    process = handles._calling(handles.CALLS[call])
    names = {"count", "spent", "last", "greatest"}
    assert set(process.declared) == names
    assert handles._cpu_ns(process, bids) > 0


def without_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ours = tuple(one for one in SYSTEMS if "whale-ray, 1" in one.name or "DuckDB" in one.name)
    monkeypatch.setattr(suite, "SYSTEMS", ours)
    monkeypatch.setattr(suite, "QUICK_EVENTS", 60_000)
    monkeypatch.setattr(handles, "QUICK_ROWS", 1_000)
    monkeypatch.setattr(handles, "REPETITIONS", 1)
    monkeypatch.setenv("WHALE_RAY_PEERS", str(tmp_path))


def test_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    without_others(monkeypatch, tmp_path)
    assert main(["bench", "streaming", "--quick", "--json"]) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = report["rows"]
    by_workload = {
        name: [row["parameters"]["system"] for row in rows if row["name"] == name]
        for name in (workload.name for workload in WORKLOADS)
        if name != disorder.WORKLOAD
    }
    assert set(map(tuple, by_workload.values())) == {
        ("whale-ray, 1 worker", "DuckDB batch, 1 thread", "DuckDB batch, 2 threads")
    }
    assert all(row["value"] > 0 for row in rows if row["unit"] == "k rows/s")
    late = {
        row["parameters"]["arrival"]: row["also"]["late rows"]
        for row in rows
        if "arrival" in row["parameters"]
    }
    assert late["in order"] == late["out of order within the bound"] == 0
    assert late["out of order, the late ones dropped"] > 0


def test_absent_systems_are_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WHALE_RAY_PEERS", str(tmp_path))
    monkeypatch.setattr("whale_ray.lab.bench.peers.base.find_spec", lambda name: None)
    notes = suite._absent()
    assert "Bytewax, 1 worker: not installed (make peers)" in notes
    assert "Polars batch, 2 threads: not installed (make peers)" in notes
    assert any(note.startswith("Flink") and "absent" in note for note in notes)


@pytest.mark.skipif(
    not (packages_of(bytewax_flows.ENVIRONMENT) / "bytewax").is_dir(),
    reason="needs Bytewax (make peers)",
)
def test_bytewax_makes_the_rows_of_the_query(
    inputs: BidFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(packages_of(bytewax_flows.ENVIRONMENT)))
    found = bytewax_flows.run_flow(ON_ROWS, inputs.in_order, keep=True)
    wanted = expected(ON_ROWS, inputs.in_order)
    assert in_order(found, set(wanted[0])) == in_order(wanted, set(wanted[0]))


@pytest.mark.skipif(
    not (packages_of(batch_engines.POLARS_ENVIRONMENT) / "polars").is_dir(),
    reason="needs Polars (make peers)",
)
@pytest.mark.parametrize("workload", batch_engines.POLARS)
def test_polars_makes_the_rows_of_the_query(
    workload: str, inputs: BidFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(packages_of(batch_engines.POLARS_ENVIRONMENT)))
    table: pa.Table = batch_engines.query_polars(workload, inputs.in_order).to_arrow()
    found = table.to_pylist()
    wanted = expected(workload, inputs.in_order)
    names = set(wanted[0]) & set(found[0])
    assert {"bids"} < names
    assert in_order(found, names) == in_order(wanted, names)


def test_spark_counts_what_the_query_counts(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from whale_ray.lab.bench.streaming.spark_queries import GROUPS, query, session

bids = session().read.parquet({str(tmp_path / "out_of_order.parquet")!r})
for workload in GROUPS:
    query(bids, workload).toPandas().to_pickle(Path({str(tmp_path)!r}) / f"{{workload}}.pickle")
"""
    inputs = write_inputs(tmp_path, 200_000)
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    for workload in spark_queries.GROUPS:
        key = workload_named(workload).key
        found = pd.read_pickle(tmp_path / f"{workload}.pickle")
        wanted = expected(workload, inputs.out_of_order)
        counts = sorted(zip(found[key], found["bids"], strict=True))
        assert counts == sorted((row[key], row["bids"]) for row in wanted)
