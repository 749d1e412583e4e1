"""Every system that is here has DuckDB's rows; the figures are not tested."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.whale_ray.lab.bench.streaming_rows import assert_same, expected
from whale_ray.lab.bench.peers.base import packages_of
from whale_ray.lab.bench.streaming import batch_engines, bytewax_flows, spark_queries
from whale_ray.lab.bench.streaming.answers import Answer, answer_of
from whale_ray.lab.bench.streaming.cells import measured
from whale_ray.lab.bench.streaming.inputs import MAX_OUT_OF_ORDER_MS, InputFiles, stream_path
from whale_ray.lab.bench.streaming.systems import SYSTEMS, System, system_named
from whale_ray.lab.bench.streaming.ways import WAYS
from whale_ray.lab.bench.streaming.workloads import workload_named

STREAMING = "Structured Streaming, all cores"
TUMBLING = "tumbling window, count per auction"


IN_A_PROCESS = [one for one in SYSTEMS if "Spark" not in one.name and one.name != STREAMING]
OURS = [one for one in IN_A_PROCESS if one.name in {way.name for way in WAYS}]


def answers_of_duckdb(system: System, few: InputFiles) -> dict[str, Answer]:
    return {
        workload: answer_of(
            pa.Table.from_pylist(expected(workload, few.folder)), workload_named(workload).total
        )
        for workload in system.workloads
    }


@pytest.mark.parametrize(
    "system",
    [one for one in IN_A_PROCESS if one not in OURS or one is OURS[0]],
    ids=lambda one: one.name,
)
def test_every_system_has_the_answers_of_duckdb(system: System, few: InputFiles) -> None:
    remedy = system.missing()
    if remedy is not None:
        pytest.skip(f"{system.name}: {remedy}")
    found = measured(system, system.workloads, few, repetitions=0)
    assert {workload: one.answer for workload, one in found.items()} == answers_of_duckdb(
        system, few
    )


@pytest.mark.parametrize("system", OURS[1:], ids=lambda one: one.name)
def test_every_other_way_of_whale_ray_has_the_answers_of_duckdb(
    system: System, few: InputFiles
) -> None:
    """In this process: what starts one for each system is the same for all ways."""
    found = {name: system.runner(name, few.folder)().answer for name in system.workloads}
    assert found == answers_of_duckdb(system, few)


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
    assert_same(found, wanted, names)


@pytest.mark.skipif(
    not (packages_of(batch_engines.POLARS_ENVIRONMENT) / "polars").is_dir(),
    reason="needs Polars (make peers)",
)
@pytest.mark.parametrize("workload", batch_engines.POLARS)
def test_polars_makes_the_rows_of_the_query(
    workload: str, few: InputFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(packages_of(batch_engines.POLARS_ENVIRONMENT)))
    table: pa.Table = batch_engines.query_polars(workload, few.folder).to_arrow()
    found = table.to_pylist()
    wanted = expected(workload, few.folder)
    names = set(wanted[0]) & set(found[0])
    assert workload_named(workload).total in names
    assert_same(found, wanted, names)


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
        frame = pd.read_pickle(tmp_path / f"{workload}.pickle")
        found = frame.astype(object).where(frame.notna(), None).to_dict("records")
        wanted = expected(workload, few.folder)
        names = set(wanted[0])
        assert_same(found, wanted, names)


@pytest.mark.parametrize(
    "workloads",
    [
        pytest.param([TUMBLING, "NEXMark 8, new users"], id="a window and a join"),
        pytest.param(list(spark_queries.BATCH_QUERIES), id="all", marks=pytest.mark.exhaustive),
    ],
)
def test_spark_counts_results_that_it_makes_with_all_columns(
    workloads: list[str], few: InputFiles
) -> None:
    """In the same way for each query, whose rows the test above compares."""
    found = measured(system_named("Spark batch, all cores"), workloads, few, repetitions=0)
    assert list(found) == workloads
    for workload, one in found.items():
        wanted = pa.Table.from_pylist(expected(workload, few.folder))
        assert one.answer == answer_of(wanted, workload_named(workload).total)
