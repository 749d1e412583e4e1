"""`whale-ray run file.py`: which topology of a user's file is meant, and how its rows are shown."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from whale_ray.cli.main import main

BUILD = """
import whale_ray as whale

def build(name):
    topology = whale.Topology(name)
    rows = topology.source(whale.sources.iterable([{"v": i} for i in range(10)]), id="rows")
    rows.sink(whale.sinks.collect(), id="out")
    return topology
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: Any) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_only_topology_of_a_file_needs_no_name(capsys: Any) -> None:
    Path("stocks.py").write_text(f"{BUILD}\nstocks = alias = build('stocks')\n")
    assert main(["run", "stocks.py", "--on", "inline"]) == 0
    assert "out: 10 rows" in capsys.readouterr().out
    assert main(["explain", "stocks.py"]) == 0
    assert "topology stocks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("a, b = build('a'), build('b')", "stocks.py has several topologies; name one:"
         " stocks.py:a or stocks.py:b"),
        ("a = 5", "stocks.py has no topology; assign whale.Topology(...) to a name"),
    ],
)  # fmt: skip
def test_a_file_with_none_or_several(code: str, told: str, capsys: Any) -> None:
    Path("stocks.py").write_text(f"{BUILD}\n{code}\n")
    assert main(["run", "stocks.py", "--on", "inline"]) == 2
    assert capsys.readouterr().err == f"whale-ray: {told}\n"


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])  # the latter in the locale C
def test_rows_that_the_terminal_cannot_show_are_escaped(
    errors: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=errors)
    monkeypatch.setattr(sys, "stdout", stream)
    Path("arrows.py").write_text(f"{BUILD.replace('i}', 'chr(8592 + i)}')}\nmine = build('a')\n")
    assert main(["run", "arrows.py", "--on", "inline"]) == 0
    assert "\n  \\u2191\n" in stream.buffer.getvalue().decode("ascii")


def test_a_plan_is_printed_as_json(capsys: Any) -> None:
    Path("stocks.py").write_text(f"{BUILD}\nstocks = build('stocks')\n")
    for app in ("stocks.py", "ride-hailing"):
        assert main(["explain", app, "--on", "processes", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["title"].startswith("topology ")
        assert all(table["title"] and table["rows"] is not None for table in found["tables"])
        assert any("operator" in row for table in found["tables"] for row in table["rows"])
