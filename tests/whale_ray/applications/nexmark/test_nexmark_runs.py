"""`whale-ray run nexmark`, over generated events and over a user's files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.whale_ray.applications.nexmark.oracles import answer
from whale_ray.applications.nexmark.generator import generate
from whale_ray.applications.nexmark.settings import NexmarkSettings
from whale_ray.cli.main import main

FEW = NexmarkSettings(events=5_000, events_per_s=200)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_generated_and_given_events_have_the_answer_of_sql(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bids = pq.read_table(generate(tmp_path / "given", "bids", FEW))
    expected = answer("5", {"bids": bids})
    for source in ("--events 5000 --events-per-s 200", "--data given"):
        words = f"run nexmark --query 5 --on inline --json --overwrite {source}".split()
        assert main(words) == 0
        told = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert told["rows_in"] == {"bids": 4_600}
        assert told["settings"]["query"] == "5"
        assert told["rows_out"] == expected.num_rows
        found = pq.read_table(tmp_path / "out" / "nexmark").cast(expected.schema)
        order = [(name, "ascending") for name in expected.column_names]
        assert found.sort_by(order).to_pydict() == expected.sort_by(order).to_pydict()


def test_a_folder_without_the_stream_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "nexmark", "--query", "5", "--on", "inline", "--data", "."]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "whale-ray: --data . has no bids: put bids.parquet there, a file or a folder of files"
    )


STREAMS = {"bids": "5", "auctions": "9", "persons": "8"}
"""Each stream → a query that reads it."""


@pytest.fixture
def given_streams(tmp_path: Path) -> dict[str, pa.Table]:
    return {name: pq.read_table(generate(tmp_path, name, FEW)) for name in STREAMS}


def refused(query: str, capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """Return the one line with which a query over the files here ends."""
    words = ["run", "nexmark", "--query", query, "--on", "inline", "--data", ".", "--overwrite"]
    assert main(words) == code
    lines = capsys.readouterr().err.splitlines()
    (told,) = (line for line in lines if not line.startswith("nexmark: "))
    return told.removeprefix("whale-ray: ")


@pytest.mark.parametrize("stream", STREAMS)
def test_files_that_do_not_fit_are_refused_in_one_line(
    stream: str,
    given_streams: dict[str, pa.Table],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows, path, query = given_streams[stream], tmp_path / f"{stream}.parquet", STREAMS[stream]
    place = rows.column_names.index("date_time")
    pq.write_table(rows.drop_columns(["date_time"]), path)
    assert f"{stream}.parquet: no column 'date_time'; it has" in refused(query, capsys)
    pq.write_table(rows.set_column(place, "date_time", pa.array(["x"] * len(rows))), path)
    assert "column 'date_time' has type string" in refused(query, capsys)
    pq.write_table(rows.set_column(place, "date_time", pa.nulls(len(rows), "timestamp[us]")), path)
    assert "'date_time' is null" in refused(query, capsys, 1)
    path.unlink()
    assert refused(query, capsys).startswith(f"--data . has no {stream}: put {stream}.parquet")
    path.mkdir()
    assert "holds no Parquet file" in refused(query, capsys)


@pytest.mark.parametrize(
    ("query", "column", "message"),
    [
        ("4", "price", "avg(final) AS avg_final of a column of type string"),
        ("9", "auction", "join compares 'auction', which is string, with 'id', which is int64"),
        ("14", "price", "cannot multiply string and double: cast both to numbers"),
        ("15", "price", "string and int32 have no common type: cast one of them"),
    ],
)
def test_a_column_of_another_type_is_refused_in_one_line(
    query: str,
    column: str,
    message: str,
    given_streams: dict[str, pa.Table],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bids = given_streams["bids"]
    texts = pa.array(["x"] * len(bids))
    spoilt = bids.set_column(bids.column_names.index(column), column, texts)
    pq.write_table(spoilt, tmp_path / "bids.parquet")
    assert message in refused(query, capsys)


@pytest.mark.parametrize("kind", ["string", "float64"])
def test_the_one_to_many_query_refuses_prices_that_are_not_whole(
    kind: str,
    given_streams: dict[str, pa.Table],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bids = given_streams["bids"]
    prices = bids["price"].cast(getattr(pa, kind)())
    spoilt = bids.set_column(bids.column_names.index("price"), "price", prices)
    pq.write_table(spoilt, tmp_path / "bids.parquet")
    told = refused("7-one-to-many", capsys)
    assert f"bids: column 'price' is {kind} where int64 is needed: cast it" in told


def with_nulls(rows: pa.Table, column: str) -> pa.Table:
    """Return the rows with a third of a column's values null."""
    empty = pa.array(np.random.default_rng(1).random(len(rows)) < 0.3)
    values = pa.compute.if_else(empty, None, rows[column])
    return rows.set_column(rows.column_names.index(column), column, values)


@pytest.mark.parametrize(
    ("query", "columns"),
    [
        ("5", ["auction", "price"]),
        ("7", ["auction", "price"]),
        ("7-one-to-many", ["price"]),
        ("9", ["auction", "price"]),
    ],
)
def test_null_keys_and_prices_are_treated_as_sql_does(
    query: str,
    columns: list[str],
    given_streams: dict[str, pa.Table],
    tmp_path: Path,
) -> None:
    bids = given_streams["bids"]
    for column in columns:
        bids = with_nulls(bids, column)
    pq.write_table(bids, tmp_path / "bids.parquet")
    expected = answer(query, {**given_streams, "bids": bids})
    words = ["run", "nexmark", "--query", query, "--on", "inline", "--data", ".", "--overwrite"]
    assert main(words) == 0
    found = pq.read_table(tmp_path / "out" / "nexmark").cast(expected.schema)
    order = [(name, "ascending") for name in expected.column_names]
    assert found.num_rows > 0
    assert found.sort_by(order).to_pydict() == expected.sort_by(order).to_pydict()


def test_the_one_to_many_query_refuses_null_auctions_in_one_line(
    given_streams: dict[str, pa.Table], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(with_nulls(given_streams["bids"], "auction"), tmp_path / "bids.parquet")
    assert "a row with a null key to 'highest-bids'" in refused("7-one-to-many", capsys, 1)
