"""Every program in examples/ runs as a user runs it, and its result is the right one.

What is right is computed here in another way: by plain Python, Decimal, numpy or pandas.
"""

from __future__ import annotations

import collections
import csv
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests.whale_ray.api.test_notebook import opened, shown

EXAMPLES = Path(__file__).parents[1] / "examples"
DATA = EXAMPLES / "data"

Run = Callable[..., tuple[dict, list[list[str]]]]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys) -> Run:
    """Return a function that runs a program in an empty folder; it returns names, printed words."""
    monkeypatch.chdir(tmp_path)

    def run_program(name: str) -> tuple[dict, list[list[str]]]:
        monkeypatch.setattr(sys, "argv", [name])
        names = runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return names, [line.split() for line in capsys.readouterr().out.splitlines()]

    return run_program


def run_apart(name: str, folder: Path) -> str:
    """Run a program as a process, as those that start Ray or Spark are; return what it printed."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_program_is_run_here():
    named = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    tested = Path(__file__).read_text(encoding="utf-8")
    assert named
    assert not [name for name in named if f'"{name}"' not in tested]


def test_every_program_begins_with_what_it_shows_and_how_to_run_it():
    for path in EXAMPLES.glob("*.py"):
        head = path.read_text(encoding="utf-8").split('"""')[1]
        assert f"Run it by `python examples/{path.name}" in head, path.name


def test_word_count(run):
    _, printed = run("word_count.py")
    lines = (DATA / "reviews.jsonl").read_text(encoding="utf-8").splitlines()
    texts = " ".join(json.loads(line)["text"].lower() for line in lines)
    counted = collections.Counter(re.findall(r"[a-z]+", texts))
    assert printed[0] == ["word", "count"]
    assert {word: int(count) for word, count in printed[1:]} == counted
    written = pd.concat(pd.read_csv(path) for path in Path("out/word-count").glob("*.csv"))
    assert dict(zip(written["word"], written["count"], strict=True)) == counted


def test_tweets(run, monkeypatch):
    monkeypatch.setenv("TWEETS", "300")
    _, printed = run("tweets.py")
    texts = pq.read_table("out/tweets.parquet")["text"].to_pylist()
    counted = collections.Counter(" ".join(texts).split())
    found = {word: int(times) for word, times in printed}
    assert len(texts) == 300
    assert sorted(found.values(), reverse=True) == [n for _, n in counted.most_common(5)]
    assert all(counted[word] == times for word, times in found.items())


def test_clean_with_expressions(run):
    _, printed = run("clean_with_expressions.py")
    with (DATA / "trips.csv").open(encoding="utf-8") as file:
        trips = [row for row in csv.DictReader(file) if row["km"] not in ("eight", "0.0")]
    expected = [
        {
            "cab": row["cab"],
            "hour": int(row["started"][11:13]),
            "length": "short" if Decimal(row["km"]) < 10 else "long",
            "euro_per_km": float(
                round(Decimal(row["fare_cents"]) / 100 / Decimal(row["km"]), ndigits=2)
            ),
        }
        for row in trips
    ]
    assert pq.read_table("out/clean-trips").to_pylist() == expected
    assert " ".join(printed[-1]) == "left out: {'malformed line': 1}"


@pytest.mark.long
def test_nearest(run, no_leaks):
    names, _ = run("nearest.py")
    found = names["main"]("processes")
    random = np.random.default_rng(1)
    cabs, requests = random.uniform(0, 100, 1_000), random.uniform(0, 100, 200)
    away = np.abs(cabs[np.newaxis, :] - requests[:, np.newaxis])
    assert found["request"].tolist() == list(range(200))
    assert found["cab"].tolist() == away.argmin(axis=1).tolist()
    assert found["away_km"].tolist() == away.min(axis=1).tolist()


def test_sessions(run):
    _, printed = run("sessions.py")
    assert [(user, int(minutes), int(clicks)) for user, minutes, clicks in printed[1:]] == [
        ("ann", 0, 1),  # 60
        ("ann", 12, 3),  # 0, 10, 12
        ("bob", 25, 2),  # 5, 30
    ]


def test_as_of_join(run):
    _, printed = run("as_of_join.py")
    quotes, trades = (
        pd.read_csv(DATA / f"{name}.csv", parse_dates=["time"]) for name in ("quotes", "trades")
    )
    expected = pd.merge_asof(trades, quotes, on="time", by="symbol")
    found = [(f"{day} {time}", symbol, float(value)) for day, time, symbol, value in printed[1:]]
    assert found == [
        (str(row.time), row.symbol, row.quantity * row.price) for row in expected.itertuples()
    ]


def test_table_lookup(run):
    _, printed = run("table_lookup.py")
    trades, companies = (pd.read_csv(DATA / f"{name}.csv") for name in ("trades", "companies"))
    expected = trades.merge(companies, on="symbol", how="left").to_csv(index=False)
    assert [" ".join(words) for words in printed] == expected.splitlines()


def test_own_source_and_sink(run):
    _, printed = run("own_source_and_sink.py")
    assert printed == [["sum", "of", "squares:", str(sum(n * n for n in range(100)))]]


def test_own_transport(run, no_leaks):
    _, printed = run("own_transport.py")
    assert printed[-1] == ["sum", "of", "squares:", str(sum(n * n for n in range(1000)))]
    assert any("datagrams" in line for line in printed)  # the plan names what carries the rows


@pytest.mark.long
def test_notebook(tmp_path, no_leaks):
    cells = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    with opened(tmp_path) as notebook:
        *earlier, last = [notebook.execute(source) for source in code]
    assert "<table" in shown(earlier[-1])["text/html"]
    euros = re.findall(r"<td>(\w+)</td>\s*<td>([\d.]+)</td>", shown(last)["text/html"])
    assert [(zone, float(euro)) for zone, euro in euros] == [
        ("north", (0 + 2 + 4 + 6 + 8) * 2.0),
        ("south", (1 + 3 + 5 + 7 + 9) * 3.0),
    ]


@pytest.mark.long
@pytest.mark.ray
@pytest.mark.spark
def test_spark_dataframes(tmp_path, no_leaks):
    printed = run_apart("spark_dataframes.py", tmp_path)
    cells = [re.findall(r"[^|\s]+", line) for line in printed.splitlines() if "|" in line]
    assert cells == [["cab", "trip", "total_km"], ["b", "2", "9.5"], ["b", "3", "21.5"]]


@pytest.mark.long
@pytest.mark.ray
def test_ray_datasets(tmp_path, no_leaks):
    printed = run_apart("ray_datasets.py", tmp_path)
    counted = collections.Counter(n % 3 for n in range(100))
    assert [[int(word) for word in line.split()] for line in printed.splitlines()[1:]] == [
        [sensor, counted[sensor]] for sensor in range(3)
    ]
