"""A detached job with checkpoints whose driver is killed: stopped and resumed, each row once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.whale_ray.api.test_checkpoints import COUNT, GATE, until, visible
from tests.whale_ray.user_code.gated_numbers import expected
from whale_ray.cli.main import main
from whale_ray.deployment.on_ray.ray_jobs import list_jobs

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(600)]

DRIVER = """
import sys
from pathlib import Path
import whale_ray as whale
from tests.whale_ray.api.test_checkpoints import OFTEN, numbers

folder, address = Path(sys.argv[1]), sys.argv[2]
job = whale.submit(
    numbers(folder), workers=2, address=address, detach=True, checkpoints=folder / "state", **OFTEN
)
print(job.id, flush=True)
job.wait()
"""


def job_of_killed_driver(folder: Path, address: str) -> str:
    """Submit a job from another process, which is killed while it waits; return the job's id."""
    command = [sys.executable, "-c", DRIVER, str(folder), address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        try:
            printed = (line.strip() for line in driver.stdout)
            job_id = next((line for line in printed if line.startswith("numbers-")), None)
            assert job_id, "the driver ended without a job"
            until(lambda: len(visible(folder)) == GATE, "the first half is not visible", 150)
        finally:
            os.kill(driver.pid, signal.SIGKILL)
    assert driver.returncode == -signal.SIGKILL
    return job_id


def test_a_detached_job_of_a_killed_driver_is_stopped_and_resumed_from_the_command_line(
    cluster: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Other runs on this machine have a Ray each, so that a new process cannot find "auto".
    job_id = job_of_killed_driver(tmp_path, cluster.get_runtime_context().gcs_address)
    assert job_id in [one.id for one in list_jobs("auto")]
    assert main(["stop", job_id, "--savepoint", "--address", "auto"]) == 0
    until(lambda: job_id not in [one.id for one in list_jobs("auto")], "it does not stop")
    assert visible(tmp_path) == expected(GATE)
    (tmp_path / "go").touch()
    assert main(["resume", str(tmp_path / "state"), "--address", "auto"]) == 0
    assert visible(tmp_path) == expected(COUNT)
