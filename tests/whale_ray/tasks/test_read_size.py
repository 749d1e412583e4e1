"""How many rows sources read at a time, as a sink sees it that is fused behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from whale_ray.operators.sinks.collect import CollectWriter
from whale_ray.tasks.read_size import (
    DIVISOR_MAX,
    HURRIED_NS,
    READ_BYTES,
    ROWS,
    ROWS_IN_COLUMNS,
    ROWS_MAX,
    TURN_NS,
    ReadSize,
)
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.column import Column
from whale_ray.transport.wire.types import Schema

TOTAL = 3 * ROWS_IN_COLUMNS + 100


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that receives the number of rows of each batch that is collected."""
    found: list[int] = []
    write = CollectWriter.write

    def noted(self: CollectWriter, batch: Batch) -> None:
        found.append(batch.num_rows)
        write(self, batch)

    monkeypatch.setattr(CollectWriter, "write", noted)
    return found


def run(topology: whale.Topology, stream: Any, **settings: object) -> None:
    stream.sink(whale.sinks.collect(), id="out")
    whale.run(topology, settings=settings)


def numbers(folder: Path, kind: str) -> tuple[whale.Topology, Any]:
    """Return a topology and in it the stream of a file of numbers."""
    table = pa.table({"n": np.arange(TOTAL)})
    path = folder / f"n.{kind}"
    if kind == "parquet":
        pq.write_table(table, path, row_group_size=TOTAL)
    else:
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    source = whale.sources.parquet(path) if kind == "parquet" else whale.sources.ipc(path)
    topology = whale.Topology("sizes")
    return topology, topology.source(source, id="numbers")


@pytest.mark.parametrize(("kind", "most"), [("parquet", ROWS_IN_COLUMNS), ("ipc", TOTAL)])
def test_files_of_columns_are_read_in_large_parts(
    tmp_path: Path, kind: str, most: int, sizes: list[int]
) -> None:
    topology, stream = numbers(tmp_path, kind)
    run(topology, stream.filter(whale.col("n") >= 0, id="all"))
    assert ROWS_IN_COLUMNS <= max(sizes) <= most, "how many depends on how long they take"
    assert sum(sizes) == TOTAL


def test_a_function_of_python_gets_fewer_rows_at_a_time(tmp_path: Path, sizes: list[int]) -> None:
    topology, stream = numbers(tmp_path, "ipc")
    run(topology, stream.filter(lambda row: row.n >= 0, id="all"))
    assert max(sizes) == ROWS
    assert sum(sizes) == TOTAL


def test_the_setting_wins(tmp_path: Path, sizes: list[int]) -> None:
    run(*numbers(tmp_path, "ipc"), **{"runtime.source_batch_rows": 1000})
    assert max(sizes) == 1000
    assert sum(sizes) == TOTAL


def test_wide_rows_are_read_in_small_parts() -> None:
    size = ReadSize(ROWS, ROWS_MAX)
    assert size.rows == ROWS
    for width, rows in ((8, ROWS_MAX), (128, READ_BYTES // 128), (4096, ROWS)):
        columns = [Column.of(np.zeros(10)) for _ in range(width // 8)]
        schema = Schema.of(**{f"c{at}": "double" for at in range(len(columns))})
        size.note(Batch(schema, columns, 10))
        assert size.rows == rows
    size.note(Batch.empty(Schema.of(n="int64")))
    assert size.rows == ROWS


def test_a_read_has_many_rows_only_while_that_is_a_short_turn() -> None:
    size = ReadSize(ROWS, ROWS_MAX)
    size.note(Batch(Schema.of(n="int64"), [Column.of(np.zeros(10, np.int64))], 10))
    for rows, expected in (
        (ROWS_MAX, ROWS_MAX),
        (ROWS_MAX // 2, ROWS_MAX // 2),
        (ROWS_IN_COLUMNS // 2, ROWS_IN_COLUMNS),
    ):
        for _ in range(40):
            size.note_time(rows, TURN_NS)
        assert size.rows == expected
    size.note_time(ROWS_MAX, TURN_NS)
    size.hurries = True
    assert size.rows == ROWS_MAX * HURRIED_NS // TURN_NS
    for _ in range(80):
        size.note_time(1, TURN_NS)
    assert size.rows == ROWS_IN_COLUMNS // DIVISOR_MAX


def test_hurried_reads_are_as_short_as_they_are_to_be_however_long_rows_take() -> None:
    size = ReadSize(ROWS, ROWS)
    size.hurries = True
    assert size.rows == ROWS, "nobody knows yet how long it takes"
    size.note_time(0, 10 * HURRIED_NS)
    assert size.rows == ROWS
    size.note_time(ROWS, HURRIED_NS)
    assert size.rows == ROWS
    for _ in range(40):  # a read that was interrupted says little, many of them do
        size.note_time(ROWS, 4 * HURRIED_NS)
    assert size.rows == ROWS // 4
    size.note_time(ROWS, HURRIED_NS)
    assert size.rows == ROWS
    for _ in range(40):
        size.note_time(ROWS, 1000 * HURRIED_NS)
    assert size.rows == ROWS // DIVISOR_MAX
    size.hurries = False
    assert size.rows == ROWS
    tiny = ReadSize(1, 1)
    tiny.hurries = True
    tiny.note_time(1, 1000 * HURRIED_NS)
    assert tiny.rows == 1


def test_a_source_learns_how_long_its_reads_take(monkeypatch: pytest.MonkeyPatch) -> None:
    took: list[tuple[int, int]] = []
    monkeypatch.setattr(ReadSize, "note_time", lambda _, rows, ns: took.append((rows, ns)))
    topology = whale.Topology("sizes")
    rows = [{"n": n} for n in range(10)]
    topology.source(whale.sources.iterable(rows), id="numbers").sink(whale.sinks.collect(), id="o")
    whale.run(topology, settings={"runtime.source_batch_rows": 4})
    assert [rows for rows, _ in took] == [4, 4, 2]
    assert all(ns > 0 for _, ns in took)
