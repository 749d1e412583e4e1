"""Temporary folders go with their process, however it ends, and never before."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from whale_ray.configs.errors import ResourceError
from whale_ray.operators.sinks.held_folders import FolderHold, remove_unless_held
from whale_ray.ray_bridge import folders

MAKE = """\
import sys
from whale_ray.ray_bridge.folders import new_folder
print(new_folder("rows"), flush=True)
sys.stdin.read()
"""


def start(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """Start a process that makes a folder in `parent` and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAKE],
        env=os.environ | {"TMPDIR": str(parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.communicate(timeout=60)


def test_a_folder_ends_with_its_process(tmp_path: Path) -> None:
    process, folder = start(tmp_path)
    assert folder.is_dir()
    end(process)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("no_leaks")
def test_a_killed_process_leaves_its_folder_to_the_next(tmp_path: Path) -> None:
    killed, left = start(tmp_path)
    (left / "rows.parquet").write_bytes(b"rows")
    living, kept = start(tmp_path)
    killed.send_signal(signal.SIGKILL)
    end(killed)
    assert left.is_dir()

    next_one, _ = start(tmp_path)
    assert not left.exists()
    assert kept.is_dir()
    end(next_one)
    end(living)
    assert not list(tmp_path.iterdir())


def test_a_sweep_between_making_and_holding_a_folder_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process sweeps right before the folder is locked: it makes another one."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "_folder", folders._ProcessFolder())
    lock, swept = fcntl.flock, []

    def sweep_first(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_SH and len(swept) < 3:
            swept.append(os.readlink(f"/proc/self/fd/{descriptor}"))
            folders._sweep()
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    made = Path(folders.new_folder("rows"))
    assert len(set(swept)) == 3
    assert made.is_dir()
    folders._sweep()  # now it is held
    assert made.is_dir()
    assert list(tmp_path.iterdir()) == [made.parent]
    assert made.parent.stat().st_mode & 0o777 == 0o700


def test_a_hold_counts_only_on_the_folder_that_bears_the_name(tmp_path: Path) -> None:
    folder = tmp_path / "held"
    hold = FolderHold.make(str(folder))
    assert not remove_unless_held(str(folder))
    folder.rename(tmp_path / "moved")
    folder.mkdir()  # nobody holds this one
    assert remove_unless_held(str(folder))
    assert not remove_unless_held(str(tmp_path / "moved"))
    hold.close()
    hold.close()
    assert remove_unless_held(str(tmp_path / "moved"))
    assert FolderHold.take(str(folder)) is None


def test_a_full_temporary_directory_is_reported_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "_folder", folders._ProcessFolder())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "mkdir", full)
    with pytest.raises(ResourceError) as error:
        folders.new_folder("rows")
    assert str(error.value) == (
        f"cannot hand rows over in {tmp_path}: No space left on device; make room there, or name "
        "another folder in the environment variable TMPDIR"
    )
    assert error.value.__suppress_context__
