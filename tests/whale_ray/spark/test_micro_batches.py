"""Micro-batches in a folder: taken once, read once, also by other numbers of instances.

Spark itself hands them over in `exchange/test_with_spark.py`; here the folder is filled without it.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from whale_ray.configs.errors import InputError, UsageError
from whale_ray.operators.sources.base import Source, SourceReader
from whale_ray.spark.micro_batch_folder import MicroBatchFolder
from whale_ray.spark.micro_batch_source import MicroBatchSource, micro_batches
from whale_ray.testing import check_source, instance_context
from whale_ray.transport.wire.types import Schema

COLUMNS = Schema.of(id="int64", day="date32")


def hand_over(folder: Path, number: int, *parts: range) -> None:
    """Do what `take` does, with these ids in the parts that Spark would write."""
    here = MicroBatchFolder(str(folder))
    here.begin("query-1", COLUMNS)
    if here.has(number):
        here.note_last()
        return
    place = Path(here.new_place())
    place.mkdir()
    (place / "_SUCCESS").touch()
    for index, ids in enumerate(parts):
        days = pa.array([one % 100 for one in ids], pa.int32())  # as Spark writes dates here
        table = pa.table({"c0": pa.array(ids, pa.int64()), "c1": days})
        pq.write_table(table, place / f"part-{index:05d}-abc.parquet", row_group_size=7)
    here.add(number, str(place))
    here.note_last()


def drained(reader: SourceReader, max_rows: int = 10, rows: int = 1 << 30) -> list[int]:
    """Return the ids that a reader has at present, about `rows` at most."""
    ids: list[int] = []
    while len(ids) < rows and (batch := reader.read(max_rows)) is not None:
        ids += batch.to_arrow()["id"].to_pylist()
    return ids


def opened(source: Source, parallelism: int, positions: Any = None) -> list[SourceReader]:
    contexts = [instance_context(number, parallelism) for number in range(parallelism)]
    if positions is None:
        return [source.open(context) for context in contexts]
    return [source.open_at(context, positions) for context in contexts]


def test_the_source_keeps_its_promises(tmp_path: Path) -> None:
    for number in range(4):
        hand_over(tmp_path, number, *(range(k, k + 40) for k in range(0, 400, 100)))
    check_source(lambda: micro_batches(tmp_path), max_rows=(1, 1000), unbounded_rows=50)


def test_a_repeated_batch_is_taken_once_and_an_empty_one_is_none(tmp_path: Path) -> None:
    source = micro_batches(tmp_path)
    assert source.schema() is None
    (reader,) = opened(source, 1)
    assert drained(reader) == []
    assert reader.next_ready_ns() is not None
    hand_over(tmp_path, 0, range(0))
    hand_over(tmp_path, 1, range(5), range(0), range(5, 9))
    assert drained(reader) == list(range(9))
    hand_over(tmp_path, 1, range(5), range(5, 9))
    hand_over(tmp_path, 3, range(9, 12))
    assert drained(reader) == [9, 10, 11]
    assert not reader.finished
    assert source.schema() == COLUMNS
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "batch-000000001-000000000",
        "batch-000000003-000000002",
        "last.json",
        "query.json",
    ]
    reader.close()


@pytest.mark.parametrize("seed", range(20))
def test_every_row_is_read_once_by_any_instances(tmp_path: Path, seed: int) -> None:
    """Instances go on from positions at any row, while batches come, as more or fewer."""
    chance = random.Random(seed)
    source = micro_batches(tmp_path)
    readers = opened(source, chance.randint(1, 4))
    seen: list[int] = []
    total = 0
    for number in range(12):
        parts = [range(chance.randint(0, 30)) for _ in range(chance.randint(1, 4))]
        shifted = []
        for part in parts:
            shifted.append(range(total, total + len(part)))
            total += len(part)
        hand_over(tmp_path, number, *shifted)
        for reader in readers:
            seen += drained(reader, chance.randint(1, 20), chance.choice([0, 10, 1000]))
        if chance.random() < 0.5:
            positions = [reader.position() for reader in readers]
            for reader in readers:
                drained(reader, 3, 5)  # rows behind the positions are read again
                reader.close()
            parallelism = chance.choice([len(readers), chance.randint(1, 4)])
            readers = opened(source, parallelism, positions)
    for reader in readers:
        seen += drained(reader)
        reader.close()
    assert sorted(seen) == list(range(total))


def test_what_a_killed_handler_was_writing_is_removed(tmp_path: Path) -> None:
    hand_over(tmp_path, 0, range(3))
    here = MicroBatchFolder(str(tmp_path))
    half, note = Path(here.new_place()), Path(here.new_place())
    half.mkdir()
    (half / "part-00000.parquet").touch()
    note.touch()
    hand_over(tmp_path, 1, range(3, 6))
    assert not half.exists() and not note.exists()
    assert drained(opened(micro_batches(tmp_path), 1)[0]) == list(range(6))


def test_what_is_hidden_in_the_folder_and_of_others_stays(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").touch()
    hand_over(tmp_path, 0, range(3))
    assert (tmp_path / ".git" / "HEAD").exists()


def _another_query(folder: Path) -> None:
    hand_over(folder, 0, range(3))
    MicroBatchFolder(str(folder)).begin("query-2", COLUMNS)


def _other_columns(folder: Path) -> None:
    hand_over(folder, 0, range(3))
    MicroBatchFolder(str(folder)).begin("query-1", Schema.of(id="int64"))


def _a_file(folder: Path) -> None:
    folder.touch()
    micro_batches(folder).check()


def _gone(folder: Path, *numbers: int, rows: int) -> tuple[MicroBatchSource, list[Any]]:
    for number in range(4):
        hand_over(folder, number, range(number * 10, number * 10 + 10))
    source = micro_batches(folder)
    (reader,) = opened(source, 1)
    drained(reader, 5, rows)
    for number in numbers:
        shutil.rmtree(next(folder.glob(f"batch-{number:09d}-*")))
    return source, [reader.position()]


def _needed_batch_is_gone(folder: Path) -> None:
    source, positions = _gone(folder, 0, 1, rows=15)
    opened(source, 1, positions)


def _all_batches_are_gone(folder: Path) -> None:
    source, positions = _gone(folder, 0, 1, 2, 3, rows=15)
    (reader,) = opened(source, 1, positions)
    hand_over(folder, 4, range(40, 45))
    drained(reader)


def _batch_between_is_gone(folder: Path) -> None:
    source, positions = _gone(folder, 2, rows=15)
    drained(opened(source, 1, positions)[0])


def _another_querys_position(folder: Path) -> None:
    source, positions = _gone(folder, rows=15)
    opened(source, 1, [{**positions[0], "query": "query-0"}])


def _damaged(folder: Path) -> None:
    hand_over(folder, 0, range(3))
    next(folder.glob("batch-*/part-*")).write_bytes(b"PAR1")
    drained(opened(micro_batches(folder), 1)[0])


REFUSED: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "another query": (_another_query, UsageError, "micro-batches of another query (query-1)"),
    "other columns": (
        _other_columns,
        UsageError,
        "of the columns (id: int64, day: date32), and the query has others now",
    ),
    "a file": (_a_file, InputError, "is a file: name a folder"),
    "a URL": (lambda _: micro_batches("s3://bucket/x"), UsageError, "name a folder on a local"),
    "a batch that is needed": (
        _needed_batch_is_gone,
        InputError,
        "those before 2 are gone, and have rows that were not read",
    ),
    "all batches": (_all_batches_are_gone, InputError, "those before 4 are gone, and have rows"),
    "a batch between": (_batch_between_is_gone, InputError, "one before 3 is gone, whose rows"),
    "another query's position": (
        _another_querys_position,
        InputError,
        "had micro-batches of query query-0 when a part of it was read",
    ),
    "a damaged part": (_damaged, InputError, "cannot be read ("),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    refuse, kind, told = REFUSED[case]
    with pytest.raises(kind) as error:
        refuse(tmp_path / "batches")
    assert told in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_batches_that_a_checkpoint_has_behind_it_may_be_removed(tmp_path: Path) -> None:
    source, positions = _gone(tmp_path, 0, rows=15)
    (reader,) = opened(source, 1, positions)
    assert drained(reader) == list(range(15, 40))
    hand_over(tmp_path, 3, range(99))  # Spark repeats none before the last
    hand_over(tmp_path, 4, range(40, 45))
    assert drained(reader) == list(range(40, 45))


def test_the_last_batch_may_be_removed_too(tmp_path: Path) -> None:
    """Parts are numbered on: else those of the next batch would count as read."""
    source, positions = _gone(tmp_path, 0, 1, 2, 3, rows=40)
    (goes_on,) = opened(source, 1, positions)
    hand_over(tmp_path, 3, range(99))
    hand_over(tmp_path, 4, range(40, 45))
    assert drained(goes_on) == list(range(40, 45))
    (resumed,) = opened(source, 1, positions)
    assert drained(resumed) == list(range(40, 45))


def test_a_job_with_checkpoints_goes_on_where_it_was(tmp_path: Path, no_leaks: None) -> None:
    """Killed is the same as stopped here: what counts is what the next job finds."""
    batches = tmp_path / "batches"

    def build() -> whale.Topology:
        topology = whale.Topology("streamed")
        source = topology.source(whale.sources.micro_batches(batches), id="rows")
        source.sink(whale.sinks.parquet(tmp_path / "out"), id="out")
        return topology

    def ids() -> list[int]:
        found = (tmp_path / "out").glob("part-*")
        return sorted(one for path in found for one in pq.read_table(path)["id"].to_pylist())

    for number in range(3):
        hand_over(batches, number, range(number * 10, number * 10 + 10))
    store = f"file://{tmp_path}/store"
    for number in (3, 4):
        job = whale.submit(build(), on="processes", workers=1, checkpoints=store, restore="latest")
        while len(ids()) < number * 10:
            job.savepoint()
        job.stop(savepoint=True)
        hand_over(batches, number, range(number * 10, number * 10 + 10))
    assert ids() == list(range(40))
