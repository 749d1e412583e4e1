"""`whale-ray run nexmark`, over generated events and over a user's files."""

from __future__ import annotations

import json
from pathlib import Path

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


def test_bids_without_a_column_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = pa.array([0], pa.timestamp("us"))
    pq.write_table(pa.table({"date_time": times, "price": [1]}), tmp_path / "bids.parquet")
    assert main(["run", "nexmark", "--query", "5", "--on", "inline", "--data", "."]) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert "'auction'" in told
