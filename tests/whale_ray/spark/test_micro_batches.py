"""Micro-batches in a folder: taken once, read once, also by other numbers of instances.

Spark itself hands them over in `exchange/test_with_spark.py`; here the folder is filled without it.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from tests.whale_ray.spark.handed_over import COLUMNS, drained, hand_over, opened, written
from whale_ray.configs.errors import InputError, UsageError
from whale_ray.operators.sources.base import SourceReader
from whale_ray.spark.folder_names import FolderNames
from whale_ray.spark.micro_batch_folder import MicroBatchFolder
from whale_ray.spark.micro_batch_source import MicroBatchSource, micro_batches
from whale_ray.testing import check_source, instance_context
from whale_ray.transport.clock import VirtualClock


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
        ".lock",
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
    drained(opened(source, 1, positions)[0])


def _all_batches_are_gone(folder: Path) -> None:
    source, positions = _gone(folder, 0, 1, 2, 3, rows=15)
    (reader,) = opened(source, 1, positions)
    hand_over(folder, 4, range(40, 45))
    drained(reader)


def _batch_between_is_gone(folder: Path) -> None:
    source, positions = _gone(folder, 2, rows=15)
    drained(opened(source, 1, positions)[0])


def _part_is_gone(folder: Path) -> None:
    hand_over(folder, 0, range(3), range(3, 6))
    next(folder.glob("batch-*/part-00000.parquet")).unlink()
    drained(opened(micro_batches(folder), 1)[0])


def _emptied(folder: Path, *, keep: str = "") -> tuple[MicroBatchSource, SourceReader, list[Any]]:
    """Return a source whose folder was emptied after all was read, and began anew."""
    source, positions = _gone(folder, rows=40)
    (reader,) = opened(source, 1, positions)
    assert drained(reader) == []
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != keep:
            path.unlink()
    for number in range(4, 10):
        hand_over(folder, number, range(number * 10, number * 10 + 10))
    return source, reader, positions


def _emptied_while_it_was_read(folder: Path) -> None:
    _, reader, _ = _emptied(folder)
    drained(reader)


def _emptied_before_the_position(folder: Path) -> None:
    source, _, positions = _emptied(folder)
    opened(source, 1, positions)


def _emptied_but_for_the_query(folder: Path) -> None:
    _, reader, _ = _emptied(folder, keep="query.json")
    drained(reader)


def _begun_by_another_query(folder: Path) -> None:
    source, positions = _gone(folder, rows=40)
    (reader,) = opened(source, 1, positions)
    drained(reader)
    shutil.rmtree(folder)
    here = MicroBatchFolder(str(folder))
    here.begin("query-2", COLUMNS)
    here.add(0, written(here, range(3)))
    drained(reader)


def _vanished_while_it_was_read(folder: Path) -> None:
    source, positions = _gone(folder, rows=40)
    (reader,) = opened(source, 1, positions)
    drained(reader)
    shutil.rmtree(folder)
    drained(reader)


def _vanished_before_the_position(folder: Path) -> None:
    source, positions = _gone(folder, rows=40)
    shutil.rmtree(folder)
    opened(source, 1, positions)


def _without_its_query(folder: Path) -> None:
    source, positions = _gone(folder, rows=40)
    (folder / "query.json").unlink()
    opened(source, 1, positions)


def _no_folder_any_more(folder: Path) -> None:
    folder.mkdir()
    (reader,) = opened(micro_batches(folder), 1)
    drained(reader)
    folder.rmdir()
    folder.touch()
    drained(reader)


def _another_querys_position(folder: Path) -> None:
    source, positions = _gone(folder, rows=15)
    opened(source, 1, [{**positions[0], "query": "query-0"}])


def _damaged(folder: Path) -> None:
    hand_over(folder, 0, range(3))
    next(folder.glob("batch-*/part-*")).write_bytes(b"PAR1")
    drained(opened(micro_batches(folder), 1)[0])


REFUSED: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "a file": (_a_file, InputError, "is a file: name a folder"),
    "a URL": (lambda _: micro_batches("s3://bucket/x"), UsageError, "name a folder on a local"),
    "a batch that is needed": (
        _needed_batch_is_gone,
        InputError,
        "those before 2 are gone, or parts of them, and have rows that were not read",
    ),
    "all batches": (_all_batches_are_gone, InputError, "those before 4 are gone, or parts of them"),
    "a batch between": (_batch_between_is_gone, InputError, "those before 3 are gone, or parts"),
    "a part": (_part_is_gone, InputError, "part-00000.parquet is gone, whose rows were not read"),
    "emptied while it was read": (
        _emptied_while_it_was_read,
        InputError,
        "was emptied since then, so that its parts are numbered anew",
    ),
    "emptied before the position": (
        _emptied_before_the_position,
        InputError,
        "was emptied since then, so that its parts are numbered anew",
    ),
    "emptied but for the query": (
        _emptied_but_for_the_query,
        InputError,
        "was emptied since then, so that its parts are numbered anew",
    ),
    "begun by another query": (
        _begun_by_another_query,
        InputError,
        "had those of query query-1 when a part of it was read, and has those of query query-2 now",
    ),
    "vanished while it was read": (
        _vanished_while_it_was_read,
        InputError,
        "and the folder is gone; mount its disk if that is missing",
    ),
    "vanished before the position": (
        _vanished_before_the_position,
        InputError,
        "and the folder is gone; mount its disk if that is missing",
    ),
    "without its query": (_without_its_query, InputError, "and its query.json is gone"),
    "no folder any more": (
        _no_folder_any_more,
        InputError,
        "the folder cannot be read (Not a directory)",
    ),
    "another query's position": (
        _another_querys_position,
        InputError,
        "had those of query query-0 when a part of it was read, and has those of query query-1 now",
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
    hand_over(tmp_path, 3, range(99))  # Spark repeats the last
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


@pytest.mark.parametrize("parallelism", [1, 3, 4])
def test_a_job_that_began_at_a_later_batch_goes_on(tmp_path: Path, parallelism: int) -> None:
    """Also its instances that have read nothing yet need no batch before."""
    for number in range(3):
        hand_over(tmp_path, number, range(number * 10, number * 10 + 10))
    for number in (0, 1):
        shutil.rmtree(next(tmp_path.glob(f"batch-{number:09d}-*")))
    source = micro_batches(tmp_path)
    readers = opened(source, 3)
    assert sorted(one for reader in readers for one in drained(reader)) == list(range(20, 30))
    hand_over(tmp_path, 3, range(30, 35), range(35, 40))
    resumed = opened(source, parallelism, [reader.position() for reader in readers])
    assert sorted(one for reader in resumed for one in drained(reader)) == list(range(30, 40))


@pytest.mark.parametrize("removed", [["part-00000"], ["part-00001"], ["part-00000", "part-00001"]])
def test_a_batch_that_was_read_may_be_half_removed(tmp_path: Path, removed: list[str]) -> None:
    """An `rm -r` may have come to its middle, or may have been killed there."""
    source = micro_batches(tmp_path)
    for number in range(3):
        hand_over(tmp_path, number, *(range(k, k + 5) for k in (number * 10, number * 10 + 5)))
    (reader,) = opened(source, 1)
    drained(reader)
    positions = [reader.position()]
    for batch in (*tmp_path.glob("batch-000000000-*"), *tmp_path.glob("batch-000000002-*")):
        for name in removed:
            (batch / f"{name}.parquet").unlink()
    (resumed,) = opened(source, 1, positions)
    assert drained(resumed) == []
    hand_over(tmp_path, 3, range(30, 35))
    assert drained(resumed) == list(range(30, 35))


def test_what_the_file_system_keeps_in_a_batch_is_no_part(tmp_path: Path) -> None:
    hand_over(tmp_path, 0, range(3))
    (next(tmp_path.glob("batch-*")) / ".nfs0001").touch()
    hand_over(tmp_path, 1, range(3, 6))
    assert drained(opened(micro_batches(tmp_path), 1)[0]) == list(range(6))


def test_a_folder_that_does_not_change_is_hardly_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listing many names takes long; yet changes that its times do not show are found."""
    clock = VirtualClock()
    listed: list[object] = []
    really = os.listdir
    hand_over(tmp_path, 0, range(3))
    reader = micro_batches(tmp_path).open(instance_context(clock=clock))
    monkeypatch.setattr(os, "listdir", lambda path: (listed.append(path), really(path))[1])
    assert drained(reader) == [0, 1, 2]
    for _ in range(60 * 20):
        ready_ns = reader.next_ready_ns()
        assert reader.read(10) is None and ready_ns is not None
        clock.sleep_ns(ready_ns - clock.monotonic_ns())
    assert len(listed) < 25
    hand_over(tmp_path, 1, range(3, 6))
    assert drained(reader) == [3, 4, 5]
    monkeypatch.setattr(FolderNames, "_look", lambda _: (0,))
    assert drained(reader) == []
    hand_over(tmp_path, 2, range(6, 9))
    assert drained(reader) == []
    clock.advance(100_000_000)
    assert drained(reader) == [6, 7, 8]


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
