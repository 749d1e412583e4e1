"""An output without rows still has columns if they are known from anywhere."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pytest

import whale_ray as whale
from whale_ray.testing import ListSource, read_all

ROWS = [{"x": 1, "s": "a"}, {"x": 2, "s": "b"}]
COLUMNS = whale.Schema.of(x="int64", s="string")
NONE = whale.col("x") > 5
MAKERS = {
    "parquet": whale.sinks.parquet,
    "csv": whale.sinks.csv,
    "json_lines": whale.sinks.json_lines,
}


class Silent(whale.Process):
    schema = COLUMNS

    def on_row(self, row: Any, out: Any) -> None:
        pass


class SilentPair(whale.CoProcess):
    schema = COLUMNS

    def on_left_row(self, row: Any, out: Any) -> None:
        pass

    def on_right_row(self, row: Any, out: Any) -> None:
        pass


def listed(topology: whale.Topology, rows: Any = ROWS, **known: Any) -> whale.Stream:
    return topology.source(whale.sources.iterable(rows, **known))


Make = Callable[[whale.Topology], whale.Stream]

WAYS: dict[str, Make] = {
    "told-by-the-source": lambda t: listed(t, [], schema=COLUMNS),
    "learnt-by-the-source": lambda t: listed(t).filter(NONE),
    "learnt-then-over-an-edge": lambda t: listed(t).shuffle().filter(NONE, parallelism=2),
    "filtered-by-rows": lambda t: listed(t).filter(lambda row: False),
    "filtered-by-columns": lambda t: listed(t).filter(whale.columns(lambda b: b["x"] > 5)),
    "computed-of-nothing": lambda t: (
        listed(t).filter(NONE).shuffle().with_column("x", whale.col("x") + 0)
    ),
    "learnt-by-a-map": lambda t: (
        listed(t, [{"y": 1}]).map(lambda row: {"x": row.y, "s": "a"}).filter(NONE)
    ),
    "declared-by-a-map": lambda t: listed(t, []).map(lambda row: row, schema=COLUMNS),
    "declared-by-a-process": lambda t: listed(t).shuffle().process(Silent, parallelism=2),
    "declared-by-a-process-without-rows": lambda t: listed(t, []).key_by("x").process(Silent),
    "declared-by-a-co-process": lambda t: (
        listed(t).broadcast().connect(listed_too(t).key_by("x")).process(SilentPair)
    ),
    "of-a-union": lambda t: listed(t, []).union(listed_too(t)).filter(NONE),
}


def listed_too(topology: whale.Topology) -> whale.Stream:
    return topology.source(whale.sources.iterable(ROWS))


def test_the_columns_are_known(one_host: Any, tmp_path: Path) -> None:
    topology = whale.Topology("empty")
    for way, make in WAYS.items():
        stream = make(topology)
        stream.sink(whale.sinks.parquet(tmp_path / way), id=f"{way}.files", parallelism=2)
        stream.sink(whale.sinks.collect(), id=f"{way}.rows")
    job = one_host(topology)
    expected = pa.schema([("x", pa.int64()), ("s", pa.string())])
    for way in WAYS:
        assert sorted(os.listdir(tmp_path / way)) == ["_whale-parts", "part-00000.parquet"], way
        frame = pandas.read_parquet(tmp_path / way)
        assert (list(frame.columns), len(frame)) == (["x", "s"], 0)
        for name in ("files", "rows"):
            result = job.results(f"{way}.{name}")
            assert result.to_arrow().schema == expected
            assert list(result.to_pandas().columns) == ["x", "s"]
            assert (result.rows, result.preview()) == (0, [])


def published(out: Path, name: str) -> whale.sinks.SinkResult:
    topology = whale.Topology("empty")
    listed(topology).filter(NONE).sink(MAKERS[name](out), id="out")
    return whale.run(topology).results("out")


@pytest.mark.parametrize("name", list(MAKERS))
def test_it_is_read_back(tmp_path: Path, name: str) -> None:
    result = published(tmp_path / "out", name)
    assert len(result.parts) == 1
    assert result.to_arrow().schema.names == ["x", "s"]
    # The types in a text file are inferred from values, and there are none.
    known = {} if name == "parquet" else {"schema": COLUMNS}
    assert list(read_all(getattr(whale.sources, name)(tmp_path / "out", **known))) == []
    if name == "json_lines":
        assert Path(result.parts[0]).read_bytes() == b""  # JSON lines have no header
        assert pandas.read_json(result.parts[0], lines=True).empty
        return
    shown = duckdb.sql(f"select * from '{result.parts[0]}'")
    assert (shown.columns, shown.fetchall()) == (["x", "s"], [])
    found = eval(result.load_line, {"pandas": pandas, "pyarrow": pa})  # noqa: S307  # our own line
    assert (list(found.columns), len(found)) == (["x", "s"], 0)


def test_unknown_columns_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    out = tmp_path / "out"
    topology = whale.Topology("bare")
    listed(topology, []).sink(whale.sinks.parquet(out), id="out")
    listed_too(topology).filter(NONE).sink(whale.sinks.parquet(tmp_path / "other"), id="other")
    with caplog.at_level(logging.WARNING):
        result = whale.run(topology).results("out")
    assert [record.getMessage() for record in caplog.records] == [
        f"sink 'out' got no row, and the columns are not known: {out} holds no part; declare "
        "schema= where its rows are made to have an empty one"
    ]
    assert os.listdir(out) == ["_whale-parts"]
    assert (result.parts, result.load_line, result.to_arrow().num_rows) == ((), "", 0)
    assert (result.to_pandas().empty, result.preview()) == (True, [])
    with pytest.raises(whale.errors.InputError, match="holds no Parquet file"):
        whale.sources.parquet(out).check()


def test_some_instances_without_rows_leave_no_parts(tmp_path: Path) -> None:
    topology = whale.Topology("some")
    listed(topology).key_by("x").process(Once, parallelism=4).sink(
        whale.sinks.parquet(tmp_path / "out"), id="out"
    )
    assert len(whale.run(topology).results("out").parts) == 1


class Once(whale.Process):
    def on_row(self, row: Any, out: Any) -> None:
        if row.x == 1:
            out.emit_row(x=row.x)


class EmitsLists(whale.Process):
    """Emits the rows of a batch with x > 1, as lists, also if there are none."""

    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        chosen = [row for row in batch.to_pylist() if row["x"] > 1]
        out.emit({"k": [row["x"] for row in chosen], "v": [row["s"] for row in chosen]})
        out.emit({"k": (), "v": pandas.array([], dtype="int64").to_numpy()})


def test_emitting_columns_without_rows_emits_nothing() -> None:
    topology = whale.Topology("lists")
    rows = topology.source(ListSource(ROWS, batch_rows=1), id="rows")
    rows.shuffle().process(EmitsLists, id="lists").sink(whale.sinks.collect(), id="out")
    job = whale.run(topology)
    assert job.results("out").to_arrow().to_pylist() == [{"k": 2, "v": "b"}]


class EmitsUnequal(whale.Process):
    def on_batch(self, batch: whale.Batch, out: whale.Output) -> None:
        out.emit({"k": [], "v": [1]})


def test_columns_of_unequal_length_are_refused_though_one_is_empty() -> None:
    topology = whale.Topology("unequal")
    rows = topology.source(ListSource(ROWS), id="rows")
    rows.shuffle().process(EmitsUnequal, id="unequal").sink(whale.sinks.collect(), id="out")
    with pytest.raises(whale.errors.WhaleError, match="'k'"):
        whale.run(topology)
