"""Loops are compiled or loaded before the first row is read, for the columns that are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numba.core import config

import whale_ray as whale
from whale_ray.tasks import task_builder
from whale_ray.tasks.source_node import SourceNode
from whale_ray.transport import generated


def _run(mode: str, table: pa.Table) -> list[Any]:
    topology = whale.Topology("warm")
    rows = topology.source(whale.sources.arrow(table), id="rows", event_time="at")
    kept = rows.filter(whale.col("n") % 3 == 0, id="kept")
    halves = kept.with_column("half", whale.col("n") / 2, id="halves")
    texts = halves.with_column("text", whale.col("n").cast("string"), id="texts")
    texts.filter(whale.col("half") > 2, id="some").sink(whale.sinks.collect(), id="out")
    settings = {"runtime.pipelines": mode, "runtime.source_batch_rows": 64}
    return whale.run(topology, settings=settings).results("out").to_arrow().to_pylist()


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note what happens: loops that are compiled or loaded, and reads of the source."""
    generated._loaded.cache_clear()  # as in a process that has loaded none
    noted: list[str] = []
    compile_text, read = generated.compile_text, SourceNode._read

    def compiling(*arguments: Any, **options: Any) -> Any:
        noted.append("loop")
        return compile_text(*arguments, **options)

    def reading(node: SourceNode, now_ns: int) -> bool:
        if node.context.operator_id == "rows":
            noted.append("read")
        return read(node, now_ns)

    monkeypatch.setattr(generated, "compile_text", compiling)
    monkeypatch.setattr(SourceNode, "_read", reading)
    return noted


def _table(rows: int = 200) -> pa.Table:
    numbers = np.arange(rows)
    return pa.table({"at": pa.array(numbers, pa.timestamp("ms")), "n": numbers})


@pytest.mark.parametrize("numba_knows", [False, True])
def test_loops_are_there_before_the_first_row(
    events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numba_knows: bool
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path) if numba_knows else "")
    expected = _run("interpreted", _table())
    assert "loop" not in events
    events.clear()
    assert _run("auto", _table()) == expected
    assert "loop" not in events  # few rows, and nothing is kept
    events.clear()
    assert _run("compiled", _table()) == expected
    assert events[:3] == ["loop", "loop", "read"] and events.count("loop") == 2
    events.clear()
    assert _run("auto", _table()) == expected
    assert events[:3] == ["loop", "loop", "read"] and events.count("loop") == 2


def test_a_source_that_knows_its_columns_at_the_driver_only_is_no_hindrance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers need none to read: what its `schema` raises there must not fail the job."""

    def refuse(*_: object) -> object:
        raise FileNotFoundError(2, "No such file or directory", "only-at-the-driver")

    monkeypatch.setattr(task_builder, "known_columns", refuse)
    assert _run("auto", _table()) == _run("interpreted", _table())


def test_loops_for_codes_of_texts_are_there_before_the_first_row(
    events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(config, "CACHE_DIR", "")
    kinds = pa.array([f"kind {number % 3}" for number in range(200)]).dictionary_encode()
    table = pa.table({"n": np.arange(200), "kind": kinds})

    def run(mode: str) -> list[Any]:
        topology = whale.Topology("coded")
        rows = topology.source(whale.sources.arrow(table), id="rows")
        kept = rows.filter(whale.col("kind") == "kind 1", id="kept")
        kept.sink(whale.sinks.collect(), id="out")
        settings = {"runtime.pipelines": mode, "runtime.source_batch_rows": 64}
        assert "texts that stay codes: kind" in str(topology.explain(settings=settings))
        return whale.run(topology, settings=settings).results("out").to_arrow().to_pylist()

    expected = run("interpreted")
    assert [row["n"] for row in expected] == list(range(1, 200, 3))
    events.clear()
    assert run("compiled") == expected
    assert events[:2] == ["loop", "read"] and events.count("loop") == 1


@pytest.mark.parametrize("merged_late", [False, True])
def test_loops_with_tables_are_there_before_the_first_row_of_the_stream(
    events: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merged_late: bool
) -> None:
    """As of Yahoo's benchmark: a table is complete before the stream is read."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(config, "CACHE_DIR", "")
    names = pa.table({"digit": np.arange(3), "name": ["zero", "one", "two"]})

    def run(mode: str) -> list[Any]:
        topology = whale.Topology("looked-up")
        rows = topology.source(whale.sources.arrow(_table()), id="rows", event_time="at")
        kept = rows.filter(whale.col("n") % 2 == 0, id="kept")
        digits = kept.with_column("digit", whale.col("n") % 10, id="digits")
        named = digits.join_table(names, on="digit", id="names")
        if merged_late:
            groups = named.group_by(whale.window("at", "50 ms"), "name")
            named = groups.agg(whale.functions.count(), id="counts", aggregation="late_merge")
        named.sink(whale.sinks.collect(), id="out")
        settings = {"runtime.pipelines": mode, "runtime.source_batch_rows": 64}
        found = whale.run(topology, settings=settings).results("out").to_arrow().to_pylist()
        return sorted(found, key=repr)

    expected = run("interpreted")
    assert len(expected) == (8 if merged_late else 40)
    events.clear()
    assert run("compiled") == expected
    assert events[:2] == ["loop", "read"] and events.count("loop") == 1
