"""Every workload has DuckDB's rows, in all systems that are here; the figures are not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from whale_ray.cli.main import main
from whale_ray.configs.errors import JobError, ResourceError, UsageError
from whale_ray.lab.bench.peers.base import packages_of
from whale_ray.lab.bench.streaming import (
    batch_engines,
    bytewax_flows,
    first_result,
    handles,
    many_keys,
    spark_queries,
    suite,
)
from whale_ray.lab.bench.streaming.answers import Answer, answer_of
from whale_ray.lab.bench.streaming.cells import found_by, measured
from whale_ray.lab.bench.streaming.inputs import (
    MAX_OUT_OF_ORDER_MS,
    InputFiles,
    most_keys,
    stream_path,
    write_inputs,
)
from whale_ray.lab.bench.streaming.jobs import (
    answer_of_job,
    build,
    run_in,
    state_peak_bytes,
)
from whale_ray.lab.bench.streaming.kept_cells import KeptCells
from whale_ray.lab.bench.streaming.mapped_files import map_for_flink, map_streams
from whale_ray.lab.bench.streaming.systems import SYSTEMS, System, system_named
from whale_ray.lab.bench.streaming.timing import Measured, Ran, measure
from whale_ray.lab.bench.streaming.ways import WAYS
from whale_ray.lab.bench.streaming.workloads import (
    MAPPED,
    MATRIX,
    WORKLOADS,
    Workload,
    workload_named,
)

EVENTS = 200_000
"""20 s of event time: two tumbling windows."""

ON_COLUMNS = "keyed column process, two handles"
ON_ROWS = "keyed row process, two handles"
STREAMING = "Structured Streaming, all cores"
TUMBLING = "tumbling window, count per auction"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> InputFiles:
    return write_inputs(tmp_path_factory.mktemp("streams"), EVENTS)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> InputFiles:
    """Two tumbling windows, the second of them short."""
    made = write_inputs(tmp_path_factory.mktemp("few"), 105_000)
    mapped = [workload_named(name) for name in MAPPED]
    map_streams(made.folder, mapped)
    map_for_flink(made.folder, mapped)
    return made


def expected(workload: str, folder: Path) -> list[dict[str, Any]]:
    import duckdb

    with duckdb.connect() as connection:
        found = batch_engines.query_duckdb(connection, workload, folder)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def in_order(rows: list[dict[str, Any]], names: set[str]) -> list[tuple[Any, ...]]:
    return sorted(tuple(row[name] for name in sorted(names)) for row in rows)


def run_job(workload: Workload, folder: Path) -> list[dict[str, Any]]:
    job = whale.run(build(workload, folder, keep=True))
    rows: list[dict[str, Any]] = job.results("out").to_arrow().to_pylist()
    return rows


@pytest.mark.smoke
@pytest.mark.parametrize(
    "workload", [one for one in WORKLOADS if one.name != ON_COLUMNS], ids=lambda one: one.name
)
def test_a_job_makes_the_rows_of_its_query(workload: Workload, inputs: InputFiles) -> None:
    wanted = expected(workload.name, inputs.folder)
    names = set(wanted[0])
    assert in_order(run_job(workload, inputs.folder), names) == in_order(wanted, names)


def test_the_column_form_ends_with_the_totals_of_the_query(inputs: InputFiles) -> None:
    found = run_job(workload_named(ON_COLUMNS), inputs.in_order)
    wanted = expected(ON_COLUMNS, inputs.in_order)

    def totals(rows: list[dict[str, Any]]) -> dict[int, tuple[int, int]]:
        last: dict[int, tuple[int, int]] = {}
        for row in rows:
            so_far = last.get(row["bidder"], (0, 0))
            last[row["bidder"]] = max(so_far, (row["bids"], row["spent"]))
        return last

    assert len(found) == len(wanted) == inputs.rows["bids"]
    assert totals(found) == totals(wanted)


def test_state_takes_at_least_its_fields(inputs: InputFiles) -> None:
    keys = most_keys(inputs.folder, "bids", "bidder", None)
    peak_bytes = state_peak_bytes(build(workload_named(ON_COLUMNS), inputs.in_order))
    assert peak_bytes >= keys * 3 * 8  # the key, a count and a sum


@pytest.mark.parametrize("call", handles.CALLS)
def test_calls_of_handles_run(call: str, inputs: InputFiles) -> None:
    bids = pq.read_table(stream_path(inputs.in_order, "bids")).slice(0, 10)
    process = handles._calling(handles.CALLS[call])
    names = {"count", "spent", "last", "greatest"}
    assert set(process.declared) == names
    assert handles._cpu_ns(process, bids) > 0


def test_the_loop_over_many_keys_counts_and_adds() -> None:
    keys = np.random.default_rng(3).integers(0, 700, 5_000)
    groups = np.zeros(1 << 10, many_keys._GROUP)
    many_keys._add(groups, keys, 2 * keys)
    found = groups[groups["key"] > 0]
    counts = np.bincount(keys, minlength=700)
    assert dict(zip(found["key"] - 1, found["count"], strict=True)) == {
        key: count for key, count in enumerate(counts) if count
    }
    assert (found["total"] == 2 * (found["key"] - 1) * found["count"]).all()


def without_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = ("whale-ray, 1 worker", "whale-ray, 1 worker, mapped Arrow", "DuckDB batch, 1 thread")
    ours = tuple(one for one in SYSTEMS if one.name in kept)
    monkeypatch.setattr(suite, "SYSTEMS", ours)
    monkeypatch.setattr(suite, "QUICK_EVENTS", 60_000)
    monkeypatch.setattr(handles, "QUICK_ROWS", 1_000)
    monkeypatch.setattr(handles, "REPETITIONS", 1)
    monkeypatch.setattr(many_keys, "QUICK_KEYS", 1 << 10)
    monkeypatch.setattr(first_result, "QUICK_REPETITIONS", 1)
    monkeypatch.setenv("WHALE_RAY_PEERS", str(tmp_path))


def test_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    without_others(monkeypatch, tmp_path)
    monkeypatch.setattr("whale_ray.lab.bench.streaming.bandwidth._QUICK_BYTES", 1 << 20)
    monkeypatch.setattr("whale_ray.lab.bench.streaming.hosts.HOSTS", (2,))
    words = ["bench", "streaming", "--quick", "--plots", str(tmp_path), "--json"]
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    rows = report["rows"]
    rates = [row for row in rows if row["unit"] == "k rows/s"]
    cells = {(row["name"], row["parameters"]["skew"], row["parameters"]["system"]) for row in rates}
    everywhere = ("whale-ray, 1 worker", "DuckDB batch, 1 thread")
    assert len(cells) == len(rates)
    assert cells == {
        *((one.name, 0.0, system) for one in WORKLOADS for system in everywhere),
        *((name, 2.0, system) for name in MATRIX for system in everywhere),
        *((name, 0.0, f"{everywhere[0]}, mapped Arrow") for name in MAPPED),
        *((name, 2.0, f"{everywhere[0]}, mapped Arrow") for name in MATRIX),
    }
    assert {row["parameters"]["answer"] for row in rates} == {"the same"}
    assert [row["unit"] for row in rows if row["name"] == "read bandwidth"] == ["GB/s"] * 2
    assert len(list(tmp_path.glob("streaming-*.png"))) == len(WORKLOADS) + len(MATRIX)
    assert all(row["value"] > 0 for row in rows if row["unit"] == "k rows/s")
    late = {
        row["parameters"]["arrival"]: row["also"]["late rows"]
        for row in rows
        if "arrival" in row["parameters"]
    }
    assert late["in order"] == late["out of order within the bound"] == 0
    assert late["out of order, the late ones dropped"] > 0
    crossed = [row["value"] for row in rows if row["unit"] == "bytes between hosts/row"]
    assert 0 < crossed[1] < crossed[0] / 2  # by late merge, and partitioned


def test_absent_systems_are_named_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WHALE_RAY_PEERS", str(tmp_path))
    monkeypatch.setattr("whale_ray.lab.bench.peers.base.find_spec", lambda name: None)
    notes = suite._absent()
    assert "Bytewax, 1 worker: absent, not installed (make peers)" in notes
    assert "Polars batch, 2 threads: absent, not installed (make peers)" in notes
    assert "Flink SQL, 2 workers: absent, not installed (make peers)" in notes
    assert "Pathway, 2 threads: absent, not installed (make peers)" in notes


@pytest.mark.parametrize(
    "system",
    [one for one in SYSTEMS if "Spark" not in one.name and one.name != STREAMING],
    ids=lambda one: one.name,
)
def test_every_system_has_the_answers_of_duckdb(system: System, few: InputFiles) -> None:
    remedy = system.missing()
    if remedy is not None:
        pytest.skip(f"{system.name}: {remedy}")
    found = measured(system, system.workloads, few, repetitions=0)
    wanted = {
        workload: answer_of(
            pa.Table.from_pylist(expected(workload, few.folder)), workload_named(workload).total
        )
        for workload in system.workloads
    }
    assert {workload: one.answer for workload, one in found.items()} == wanted


def test_structured_streaming_has_the_windows_that_its_watermark_has_passed(
    inputs: InputFiles,
) -> None:
    found = measured(system_named(STREAMING), [TUMBLING], inputs, repetitions=0)
    times = pq.read_table(stream_path(inputs.folder, "bids"))["date_time"].to_pylist()
    watermark = max(times) - timedelta(milliseconds=MAX_OUT_OF_ORDER_MS)
    ended = [
        row["bids"]
        for row in expected(TUMBLING, inputs.folder)
        if row["window_start"] + timedelta(seconds=10) <= watermark
    ]
    assert found[TUMBLING].answer == Answer(len(ended), sum(ended))
    assert ended


def test_an_answer_is_that_of_all_rows_though_they_are_dropped(few: InputFiles) -> None:
    workload = workload_named(ON_ROWS)
    rows = pa.Table.from_pylist(run_job(workload, few.folder))
    assert run_in(WAYS[0], workload, few.folder).answer == answer_of(rows, workload.total)


def test_a_job_that_was_stopped_has_no_answer() -> None:
    """A signal drains it, and it publishes what comes of the rows that it has read."""
    topology = whale.Topology("stopped")
    bids = topology.source(whale.testing.ListSource([{"bids": 1}, whale.testing.Pause(600_000)]))
    bids.sink(whale.sinks.collect(), id="out")
    job = whale.submit(topology, on="processes").stop()
    with pytest.raises(JobError, match="stopped before its input had ended"):
        answer_of_job(workload_named(TUMBLING), job)


def test_runs_with_two_answers_are_an_error() -> None:
    answers = iter([Answer(1, 2), Answer(1, 3)])
    with pytest.raises(ResourceError, match=r"1 results, sum 2 and 1 results, sum 3"):
        measure(lambda: Ran(1.0, 1.0, next(answers)), 1)


def test_another_answer_is_named(few: InputFiles) -> None:
    workload = workload_named(ON_COLUMNS)
    found = {
        "whale-ray, 1 worker": {ON_COLUMNS: Measured(1.0, 1.0, 1.0, Answer(3, 4))},
        "peer": {ON_COLUMNS: Measured(2.0, 2.0, None, Answer(3, 5))},
    }
    notes: list[str] = []
    ours, peer = suite._rows_of(workload, 0.0, few, found, notes)
    assert ours.parameters["answer"] == "the same"
    assert peer.parameters["answer"] == "ANOTHER"
    assert (peer.ratio, peer.value) == (2.0, few.rows["bids"] / 2.0 / 1e3)
    assert notes == [
        f"peer, {ON_COLUMNS}, skew 0: ANOTHER ANSWER: 3 results, sum 5; whale-ray 3 results, sum 4"
    ]


@pytest.mark.skipif(
    not (packages_of(bytewax_flows.ENVIRONMENT) / "bytewax").is_dir(),
    reason="needs Bytewax (make peers)",
)
@pytest.mark.parametrize("workload", bytewax_flows.FLOWS)
def test_bytewax_makes_the_rows_of_the_query(
    workload: str, few: InputFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(packages_of(bytewax_flows.ENVIRONMENT)))
    found = bytewax_flows.run_flow(workload, few.folder, lambda row: True)
    wanted = expected(workload, few.folder)
    names = set(found[0])
    assert workload_named(workload).total in names
    assert in_order(found, names) == in_order(wanted, names)


@pytest.mark.skipif(
    not (packages_of(batch_engines.POLARS_ENVIRONMENT) / "polars").is_dir(),
    reason="needs Polars (make peers)",
)
@pytest.mark.parametrize("workload", batch_engines.POLARS)
def test_polars_makes_the_rows_of_the_query(
    workload: str, inputs: InputFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(packages_of(batch_engines.POLARS_ENVIRONMENT)))
    table: pa.Table = batch_engines.query_polars(workload, inputs.folder).to_arrow()
    found = table.to_pylist()
    wanted = expected(workload, inputs.folder)
    names = set(wanted[0]) & set(found[0])
    assert workload_named(workload).total in names
    assert in_order(found, names) == in_order(wanted, names)


def test_spark_makes_the_rows_of_the_query(few: InputFiles, tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from whale_ray.lab.bench.streaming.spark_queries import BATCH_QUERIES, query, session
from whale_ray.lab.bench.streaming.workloads import workload_named

folder = Path({str(few.folder)!r})
for workload in BATCH_QUERIES:
    for name in workload_named(workload).reads:
        session().read.parquet(f"{{folder}}/{{name}}.parquet").createOrReplaceTempView(name)
    found = query(workload, folder)
    for window in {{"window", "session_window"}} & set(found.columns):
        found = found.withColumn("window_start", found[window]["start"])
    found.toPandas().to_pickle(Path({str(tmp_path)!r}) / f"{{workload}}.pickle")
"""
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    for workload in spark_queries.BATCH_QUERIES:
        found = pd.read_pickle(tmp_path / f"{workload}.pickle").to_dict("records")
        wanted = expected(workload, few.folder)
        names = set(wanted[0])
        assert in_order(found, names) == in_order(wanted, names)


def test_spark_counts_results_that_it_makes_with_all_columns(few: InputFiles) -> None:
    batch = system_named("Spark batch, all cores")
    found = measured(batch, batch.workloads, few, repetitions=0)
    assert set(found) == set(batch.workloads)
    for workload, one in found.items():
        wanted = pa.Table.from_pylist(expected(workload, few.folder))
        assert one.answer == answer_of(wanted, workload_named(workload).total)


def test_a_run_goes_on_with_the_cells_that_are_missing(
    few: InputFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, list[str]]] = []
    fails = {"second"}

    def measure_one(system: System, names: list[str], *_: object) -> dict[str, Measured]:
        asked.append((system.name, list(names)))
        if system.name in fails:
            raise ResourceError("it was interrupted")
        return {name: Measured(1.0, 0.5, None, Answer(1, len(name))) for name in names}

    monkeypatch.setattr("whale_ray.lab.bench.streaming.cells.measured", measure_one)
    path, conditions = tmp_path / "kept", {"events": 5}
    systems = [System(name, lambda *_: None) for name in ("first", "second")]
    both = [workload_named(name) for name in MATRIX]

    def run(workloads: list[Workload], skew: float = 0.0) -> Any:
        kept = KeptCells(path, conditions)
        return found_by(systems, workloads, skew, lambda: few, 1, kept, [])

    run(both[:1])
    fails.clear()
    asked.clear()
    with path.open("a") as file:
        file.write('{"cell": {"system": "fi')  # an interruption cut this line off
    found = run(both)
    assert asked == [("first", [MATRIX[1]]), ("second", list(MATRIX))]
    asked.clear()
    assert run(both) == found
    assert asked == []
    run(both[:1], skew=1.0)
    assert asked == [("first", [MATRIX[0]]), ("second", [MATRIX[0]])]


def test_cells_of_another_run_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    KeptCells(path, {"events": 5, "cores": 2})
    with pytest.raises(UsageError, match="measured with other events: name another file"):
        KeptCells(path, {"events": 6, "cores": 2})
    path.write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match="not written by bench streaming"):
        KeptCells(path, {"events": 5})
    assert path.read_text() == "a,b\n1,2\n"
    with pytest.raises(ResourceError, match="name a file that can be written"):
        KeptCells(tmp_path, {"events": 5})


def test_every_way_has_one_value_of_each_dimension() -> None:
    assert len({way.name for way in WAYS}) == len(WAYS)
    everything = tuple(one.name for one in WORKLOADS)
    assert [way.name for way in WAYS if way.workloads == everything] == [
        "whale-ray, 1 worker",
        "whale-ray, 2 workers",
    ]
    assert [way.name for way in WAYS if set(way.workloads) == set(MAPPED)] == [
        "whale-ray, 1 worker, mapped Arrow",
        "whale-ray, 2 workers, mapped Arrow",
    ]
    for way in WAYS:
        assert ("runtime.aggregation" in way.settings) == way.needs_aggregates
        assert way.needs_aggregates == ("partitioned" in way.name)
        interpreted = way.settings["runtime.pipelines"] == "interpreted"
        assert interpreted == ("interpreted" in way.name)
        joins = [workload_named(name).joins for name in system_named(way.name).workloads]
        assert not (way.needs_aggregates and any(joins))
