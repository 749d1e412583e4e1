"""All that a job consists of is killed five times; its output is that of one that was not."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import whale_ray as whale
from tests.whale_ray.user_code.killed_windows import EXACTLY_ONCE, check_output, topology
from whale_ray.transport.clock import SystemClock

KILLS = 5


def run(folder: Path, restore: str | None) -> None:
    whale.submit(
        topology(folder),
        on="processes",
        workers=2,
        settings=EXACTLY_ONCE,
        checkpoints=folder / "state",
        restore=restore,
    ).wait()


@pytest.mark.long
def test_a_job_that_is_killed_five_times_has_each_result_once(tmp_path: Path) -> None:
    clock, moments = SystemClock(), random.Random(5)
    state = tmp_path / "state" / "manifests"
    kills = 0
    restore: str | None = None
    while True:
        program = (
            f"from {__name__} import run; from pathlib import Path;"
            f" run(Path({str(tmp_path)!r}), {restore!r})"
        )
        job = subprocess.Popen([sys.executable, "-c", program], start_new_session=True)
        if kills == KILLS:
            assert job.wait(120) == 0
            break
        before = set(os.listdir(state)) if state.exists() else set()
        while not state.exists() or set(os.listdir(state)) <= before:  # it has gone on
            assert job.poll() is None
            clock.sleep_ns(20_000_000)
        clock.sleep_ns(int(moments.uniform(0, 1.2) * 1e9))
        for process in whale_processes(job.pid):
            with contextlib.suppress(ProcessLookupError):  # its driver is dead: it may have ended
                os.kill(process, signal.SIGKILL)
        job.wait()
        kills, restore = kills + 1, "latest"
    check_output(tmp_path)


def whale_processes(driver: int) -> list[int]:
    """Return a driver and all processes that it has started, the driver first."""
    import psutil

    process = psutil.Process(driver)
    return [driver, *(child.pid for child in process.children(recursive=True))]
