"""Checkpoints of a job on Ray: a worker and the controller are killed, and each row comes once."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import whale_ray as whale
from tests.whale_ray.api.test_checkpoints import COUNT, GATE, OFTEN, numbers, until, visible
from tests.whale_ray.user_code.gated_numbers import expected
from whale_ray.api import ray_submission
from whale_ray.deployment.on_ray.ray_controller import controller_name
from whale_ray.deployment.on_ray.ray_fleet import NAMESPACE
from whale_ray.deployment.on_ray.ray_jobs import take_savepoint

pytestmark = pytest.mark.ray


def kill_controller(ray: Any, job: whale.Job) -> None:
    from ray._private.state import actors

    name = controller_name(job.id)
    pids = [one["Pid"] for one in actors().values() if one["Name"] == name]
    assert ray.get_actor(name, namespace=NAMESPACE) is not None
    os.kill(pids[0], signal.SIGKILL)


@pytest.mark.long
def test_a_detached_job_survives_its_controller_and_a_worker_and_is_resumed(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    job = whale.submit(
        numbers(tmp_path, kill_at=GATE + 500),
        workers=2,
        address="auto",
        detach=True,
        checkpoints=state,
        **OFTEN,
    )
    until(lambda: len(visible(tmp_path)) == GATE, "the first half is not visible")
    kept = Path(take_savepoint(job.id, "auto", 60))
    assert kept.exists()
    with monkeypatch.context() as patched:
        patched.delattr(ray_submission, "create_members")  # it is refused before, in a moment
        with pytest.raises(whale.errors.OutputError, match=f"is in use by job {job.id}"):
            whale.resume(state, address="auto", workers=1)
    kill_controller(cluster, job)
    assert Path(job.savepoint(60)).exists()  # of the controller that took over
    again = whale.attach(job.name)  # as another driver would
    assert again.metrics().checkpoints is not None
    assert again.stop(savepoint=True, timeout_s=60).state == "stopped"
    assert Path(again.outcome().checkpoint).exists()
    assert visible(tmp_path) == expected(GATE)
    (tmp_path / "go").touch()
    second = whale.resume(state, address="auto", workers=2)
    second.wait(60)
    assert second.outcome().restarts == 1
    assert visible(tmp_path) == expected(COUNT)
