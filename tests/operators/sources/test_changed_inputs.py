"""Inputs that are others than those of a checkpoint: refused by name, in one line."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.operators.sources.opened import Opened
from whale_ray.configs.errors import InputError
from whale_ray.operators import sources
from whale_ray.operators.sources.base import Source
from whale_ray.operators.sources.files_passed import FilesPassed


def begun(source: Source, rows: int = 3) -> list[Any]:
    opened = Opened(source, 0, 1)
    opened.read(rows)
    positions = [opened.position()]
    opened.reader.close()
    return positions


def refusal(source: Source, positions: list[Any], parallelism: int = 1) -> str:
    def read() -> None:
        for instance in range(parallelism):
            list(Opened(source, instance, parallelism, positions).rest())

    with pytest.raises(InputError) as error:
        read()
    assert "\n" not in str(error.value)
    return str(error.value)


def write_numbers(path: Path, count: int) -> Source:
    """Write numbers from 0 into a file; return the source of its folder."""
    table = pa.table({"n": range(count)})
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return sources.parquet(path.parent)
    if path.suffix == ".arrow":
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
        return sources.ipc(path.parent)
    if path.suffix == ".jsonl":
        path.write_text("".join(f'{{"n": {n}}}\n' for n in range(count)))
        return sources.json_lines(path.parent)
    content = "n\n" + "".join(f"{n}\n" for n in range(count))
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return sources.csv(path.parent)


FORMATS = [".csv", ".jsonl", ".parquet", ".arrow", ".csv.gz"]


@pytest.mark.parametrize("name", [f"a{suffix}" for suffix in FORMATS])
def test_a_file_that_has_changed_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name

    source = write_numbers(path, 50)
    positions = begun(source)
    write_numbers(path, 40)
    for parallelism in (1, 3):
        message = refusal(source, positions, parallelism)
        assert message.startswith(
            f"{path}: a part of it was read before the checkpoint, and it has"
        )
        assert message.endswith("bring the input back as it was, or start without restoring")
    path.rename(tmp_path / f"other.{name.split('.', 1)[1]}")
    assert f"the file {name!r}, of which a part was read, is missing" in refusal(source, positions)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_file_that_was_read_to_its_end_and_has_changed_is_named(
    tmp_path: Path, suffix: str, parallelism: int
) -> None:
    paths = [tmp_path / f"{name}{suffix}" for name in "abcd"]
    (source, *_) = (write_numbers(path, 50) for path in paths)
    readers = [Opened(source, instance, parallelism) for instance in range(parallelism)]
    for opened in readers:
        while opened.position().get("passed", 0) < 1:
            opened.read(10)
    positions = [opened.position() for opened in readers]
    changed = paths[0]
    write_numbers(changed, 49)
    for others in (1, 2, 3):
        message = refusal(source, positions, others)
        assert message.startswith(f"{changed} was read before the checkpoint, and has changed")
        assert message.endswith("bring the input back as it was, or start without restoring")


@pytest.mark.parametrize("suffix", FORMATS)
def test_the_last_file_counts_as_read_at_the_end(tmp_path: Path, suffix: str) -> None:
    source = write_numbers(tmp_path / f"a{suffix}", 50)
    readers = [Opened(source, instance, 2) for instance in range(2)]
    for opened in readers:
        list(opened.rest())
    positions = [opened.position() for opened in readers]
    again = [Opened(source, instance, 2, positions) for instance in range(2)]
    assert [row for opened in again for row in opened.rest()] == []
    os.utime(tmp_path / f"a{suffix}", ns=(0, 0))
    assert "has changed since: its size or its time" in refusal(source, positions, 2)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_that_nobody_has_come_to_may_change(tmp_path: Path, suffix: str) -> None:
    paths = [tmp_path / f"{name}{suffix}" for name in "ab"]
    (source, *_) = (write_numbers(path, 50) for path in paths)
    positions = begun(source, 10)
    write_numbers(paths[1], 20)
    opened = Opened(source, 0, 1, positions)
    assert list(opened.rest()) == [repr({"n": n}) for n in (*range(10, 50), *range(20))]
    write_numbers(paths[0], 10)  # what the first restore passed is known at the second
    assert str(paths[0]) in refusal(source, [opened.position()])


def test_of_many_files_the_newest_that_may_have_changed_is_named(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{number:03}") for number in range(150)]
    for path in paths:
        Path(path).write_text("1")
    passed = FilesPassed(paths)
    for number in range(101):
        passed.begin(number)
    position = passed.facts()
    assert position["passed"] == 100
    assert len(position["digests"]) == 34
    FilesPassed.of_positions(paths, [position, {}], "do something")
    Path(paths[100]).write_text("12")
    FilesPassed.of_positions(paths, [position], "do something")
    Path(paths[4]).write_text("12")
    with pytest.raises(InputError, match=r"/004, or another of the 3 files from .*/003' to .*/005"):
        FilesPassed.of_positions(paths, [position], "do something")


def test_files_that_have_come_are_refused(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text("n\n1\n2\n")
    positions = begun(sources.csv(tmp_path), 1)
    (tmp_path / "c.csv").write_text("n\n3\n")
    message = refusal(sources.csv(tmp_path), positions)
    assert "3 instead of 2" in message
    assert str(tmp_path / "c.csv") in message
    assert "growing_folder" in message


def test_other_inputs_are_refused() -> None:
    rows = [{"n": number} for number in range(9)]
    table = pa.Table.from_pylist(rows)
    positions = begun(sources.arrow(table))
    assert "had 9 rows when a part" in refusal(sources.arrow(table.slice(1)), positions)
    positions = begun(sources.iterable(rows))
    assert "there were 9 rows when a part" in refusal(sources.iterable(rows[1:]), positions)
    of_seed = [sources.poisson(1e3, lambda n, _: {"n": n}, limit=9, seed=seed) for seed in (1, 2)]
    assert "seed=1 were emitted" in refusal(of_seed[1], begun(of_seed[0]))
