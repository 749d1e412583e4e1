"""Disks that go while a job with checkpoints runs: nothing is written where they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.operators.sinks.test_epoch_parts import numbers, rows_in, stage
from whale_ray.configs.errors import OutputError
from whale_ray.operators import sinks
from whale_ray.operators.sinks import epoch_part, staging
from whale_ray.operators.sinks.base import CommitId
from whale_ray.testing import instance_context


def test_a_disk_that_goes_before_the_first_rows_of_a_resumed_job_gets_no_second_output(
    tmp_path: Path,
) -> None:
    disk, gone = tmp_path / "disk", tmp_path / "gone"
    sink = sinks.csv(disk / "out")
    sink.commit(CommitId("a", 1), [stage(sink, "a", numbers(1), 1)])
    sink.recover("b", [], bounded=False)
    writer = sink.open(instance_context(0, 1), "b")
    disk.rename(gone)
    disk.mkdir()
    writer.write(numbers(4))
    stage_it = writer.cut_epoch(2)
    assert stage_it is not None
    with pytest.raises(OutputError, match=r"disk/out' is gone, or its disk is,"):
        stage_it()
    assert list(disk.iterdir()) == []
    disk.rmdir()
    gone.rename(disk)
    sink.commit(CommitId("b", 2), [stage_it()])
    writer.abort()
    assert rows_in(disk / "out") == [1, 2, 3, 4, 5, 6]


def test_a_disk_that_goes_before_the_first_rows_of_a_job_gets_no_second_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = 1
    monkeypatch.setattr(epoch_part, "device_of", lambda path: device)
    sink = sinks.csv(tmp_path / "out")
    writer = sink.open(instance_context(0, 1), "a")
    writer.write(numbers(1))
    stage_it = writer.cut_epoch(1)
    assert stage_it is not None
    device = 2  # of the folder that the disk is mounted on
    with pytest.raises(OutputError, match=r"out' is gone, or its disk is,"):
        stage_it()
    assert list(tmp_path.iterdir()) == []
    device = 1
    sink.commit(CommitId("a", 1), [stage_it()])
    writer.abort()
    assert rows_in(tmp_path / "out") == [1, 2, 3]


def test_a_disk_that_comes_back_is_written_to_again(tmp_path: Path) -> None:
    disk, gone = tmp_path / "disk", tmp_path / "gone"
    sink = sinks.csv(disk / "out")
    writer = sink.open(instance_context(0, 1), "a")
    writer.write(numbers(1))
    first = writer.stage_epoch(1)
    assert first is not None
    disk.rename(gone)
    writer.write(numbers(4))
    stage_it = writer.cut_epoch(2)
    assert stage_it is not None
    with pytest.raises(OutputError, match=r"out' is gone, or its disk is,"):
        stage_it()
    gone.rename(disk)
    sink.commit(CommitId("a", 2), [first, stage_it()])
    writer.abort()
    assert rows_in(disk / "out") == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("is_named", [False, True])
def test_rows_that_came_while_the_disk_was_gone_are_copied_to_it(
    tmp_path: Path, other_disk: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    if is_named:  # a file system without nameless files
        monkeypatch.setattr(staging, "_nameless", lambda folder: None)
    disk, gone = tmp_path / "disk", tmp_path / "gone"
    disk.symlink_to(other_disk)
    sink = sinks.csv(disk / "out")
    sink.commit(CommitId("a", 1), [stage(sink, "a", numbers(1), 1)])
    writer = sink.open(instance_context(0, 1), "a")
    disk.rename(gone)
    disk.mkdir()  # what it was mounted on
    writer.write(numbers(4))
    stage_it = writer.cut_epoch(2)
    assert stage_it is not None
    with pytest.raises(OutputError, match="out' is gone, or its disk is,"):
        stage_it()
    disk.rename(tmp_path / "beneath")
    gone.rename(disk)
    sink.commit(CommitId("a", 2), [stage_it()])
    writer.abort()
    assert rows_in(disk / "out") == [1, 2, 3, 4, 5, 6]


@pytest.fixture
def other_disk() -> Iterator[Path]:
    """Return a folder on another file system than that of temporary files."""
    with TemporaryDirectory(prefix="other-disk-", dir="/dev/shm") as folder:
        yield Path(folder)
