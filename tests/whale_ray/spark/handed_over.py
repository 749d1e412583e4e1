"""Micro-batches handed over without Spark, and their readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from whale_ray.operators.sources.base import Source, SourceReader
from whale_ray.spark.micro_batch_folder import MicroBatchFolder
from whale_ray.testing import instance_context
from whale_ray.transport.wire.types import Schema

COLUMNS = Schema.of(id="int64", day="date32")


def hand_over(folder: Path, number: int, *parts: range) -> None:
    """Do what `take` does, with these ids in the parts that Spark would write."""
    here = MicroBatchFolder(str(folder))
    with here.lock(number, 0):
        here.begin("query-1", COLUMNS)
        if here.has(number):
            here.note_last()
        else:
            here.add(number, written(here, *parts))


def written(here: MicroBatchFolder, *parts: range) -> str:
    """Write parts as Spark does, into a hidden place; return its path."""
    place = Path(here.new_place())
    place.mkdir()
    (place / "_SUCCESS").touch()
    for index, ids in enumerate(parts):
        days = pa.array([one % 100 for one in ids], pa.int32())  # as Spark writes dates here
        table = pa.table({"c0": pa.array(ids, pa.int64()), "c1": days})
        pq.write_table(table, place / f"part-{index:05d}-abc.parquet", row_group_size=7)
    return str(place)


def drained(reader: SourceReader, max_rows: int = 10, rows: int = 1 << 30) -> list[int]:
    """Return the ids that a reader has at present, about `rows` at most."""
    ids: list[int] = []
    while len(ids) < rows and (batch := reader.read(max_rows)) is not None:
        ids += batch.to_arrow()["id"].to_pylist()
    return ids


def opened(source: Source, parallelism: int, positions: Any = None) -> list[SourceReader]:
    """Return the readers of all instances, from positions if there are any."""
    contexts = [instance_context(number, parallelism) for number in range(parallelism)]
    if positions is None:
        return [source.open(context) for context in contexts]
    return [source.open_at(context, positions) for context in contexts]
