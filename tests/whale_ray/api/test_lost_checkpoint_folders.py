"""A folder of checkpoints on a disk that is full, read-only or gone for a while (real mounts).

The job runs on and says so; nothing that no checkpoint covers becomes visible. When the disk is
back, the next checkpoint counts.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import whale_ray as whale
from tests.whale_ray.api.test_checkpoints import (
    COUNT,
    GATE,
    checkpoints_of,
    numbers,
    until,
    visible,
)
from tests.whale_ray.user_code.gated_numbers import expected

pytestmark = pytest.mark.usefixtures("no_leaks")

SETTINGS = {
    "checkpoints.tries_max": 1_000,
    "checkpoints.interval_ms": 20,
    "checkpoints.retry_ms": 1,
}
Break = Callable[[], Callable[[], None]]
"""Breaks the disk, and returns what mends it."""


def mount(*options: str) -> None:
    subprocess.run(["mount", *options], check=True)


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Disk:
    """A small file system, which other mounts may hide."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"
        self._mounts: list[Path] = []

    def mount(self, *options: str, at: Path) -> None:
        mount(*options, str(at))
        self._mounts.append(at)

    def unmount(self) -> None:
        unmount(self._mounts.pop())

    def close(self) -> None:
        while self._mounts:
            self.unmount()

    def fill(self) -> Callable[[], None]:
        """Take all room that is left."""
        with suppress(OSError), self._filler.open("wb", buffering=0) as stream:
            while True:
                stream.write(bytes(4_096))
        assert not os.statvfs(self.folder).f_bavail
        return self._filler.unlink

    def forbid(self) -> Callable[[], None]:
        """Make it read-only."""
        self.mount("--bind", str(self.folder), at=self.folder)
        mount("-o", "remount,bind,ro", str(self.folder))
        return self.unmount

    def take_away(self) -> Callable[[], None]:
        """Leave its mount point alone, which is empty."""
        kept = self.folder.with_name("kept")
        kept.mkdir()
        self.mount("--bind", str(self.folder), at=kept)
        unmount(self.folder)
        self._mounts.remove(self.folder)
        assert not os.listdir(self.folder)
        return lambda: self.mount("--bind", str(kept), at=self.folder)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """Yield a disk of 1 MiB, if this process may mount one."""
    disk = Disk(tmp_path / "disk")
    disk.folder.mkdir()
    try:
        disk.mount("-t", "tmpfs", "-o", "size=1M", "tmpfs", at=disk.folder)
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a small disk cannot be mounted here: {error}")
    yield disk
    disk.close()


@pytest.mark.parametrize(
    ("how", "place", "said"),
    [
        (Disk.fill, "state", "No space left on device"),
        (Disk.forbid, "state", "Read-only file system"),
        (Disk.take_away, "state", "has vanished"),
        (Disk.take_away, "", "bring it back"),
    ],
    ids=["full", "read-only", "vanished", "an empty mount point"],
)
def test_the_job_runs_on_until_its_folder_can_be_used_again(
    disk: Disk,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    how: Callable[[Disk], Callable[[], None]],
    place: str,
    said: str,
) -> None:
    state = disk.folder / place
    topology = numbers(tmp_path)
    with caplog.at_level(logging.WARNING):
        job = whale.submit(
            topology, on="processes", workers=2, checkpoints=state, settings=SETTINGS
        )
        until(lambda: len(visible(tmp_path)) == GATE, "the first half is not visible")
        mend = how(disk)
        until(lambda: failures_of(job) > 2, "no checkpoint fails, or none is tried again")
        (tmp_path / "go").touch()
        until(lambda: rows_into_the_sink(job) == COUNT, "the job does not run on")
        assert visible(tmp_path) == expected(GATE)
        assert job.state == "running"
        counted = checkpoints_of(job)
        mend()
        job.wait(60)
    assert job.state == "finished"
    assert visible(tmp_path) == expected(COUNT)
    assert checkpoints_of(job) > counted
    told = [one.getMessage() for one in caplog.records if "failed" in one.getMessage()]
    assert any(said in one and str(state) in one for one in told), told
    assert all(len(one.splitlines()) == 1 for one in told)


def failures_of(job: whale.Job) -> int:
    metrics = job.metrics().checkpoints
    return 0 if metrics is None else metrics.failures


def rows_into_the_sink(job: whale.Job) -> int:
    return sum(one.rows_in for one in job.metrics().operators if one.operator_id == "out")
