"""Temporary folders go with their process, however it ends, and never before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

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
    process.communicate(timeout=30)


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
