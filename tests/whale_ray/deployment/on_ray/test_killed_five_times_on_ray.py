"""All actors of a job are killed five times; its output is that of one that was not."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

import whale_ray as whale
from tests.whale_ray.api.test_checkpoints import until
from tests.whale_ray.user_code.killed_windows import EXACTLY_ONCE, check_output, topology
from whale_ray.configs.errors import WorkerDiedError
from whale_ray.deployment.on_ray.ray_controller import controller_name
from whale_ray.deployment.on_ray.ray_fleet import NAMESPACE
from whale_ray.transport.clock import SystemClock

pytestmark = [pytest.mark.ray, pytest.mark.long]

FOR_GOOD = (True, False, True, False, True)
"""Whether the actors stay dead at each kill, so that the user resumes; else Ray restarts them."""


def actors_of(job: whale.Job) -> list[dict[str, Any]]:
    """Return Ray's entries of a job's living actors: the controller, the workers, the relays."""
    from ray._private.state import actors

    ours = f"whale-ray:{job.id}:"
    return [
        one for one in actors().values() if one["Name"].startswith(ours) and one["State"] == "ALIVE"
    ]


def kill_all_processes(job: whale.Job) -> None:
    for one in actors_of(job):
        os.kill(one["Pid"], signal.SIGKILL)


def kill_all_for_good(ray: Any, job: whale.Job) -> None:
    names = [one["Name"] for one in actors_of(job)]
    names.sort(key=controller_name(job.id).__eq__, reverse=True)
    for name in names:
        ray.kill(ray.get_actor(name, namespace=NAMESPACE))


def test_a_job_whose_actors_are_killed_five_times_has_each_result_once(
    cluster: Any, tmp_path: Path
) -> None:
    clock, moments = SystemClock(), random.Random(14)
    state = tmp_path / "state"
    manifests = state / "manifests"
    job = whale.submit(
        topology(tmp_path), workers=2, address="auto", settings=EXACTLY_ONCE, checkpoints=state
    )
    for for_good in FOR_GOOD:
        before = set(os.listdir(manifests)) if manifests.exists() else set()
        until(
            lambda before=before: manifests.exists() and not set(os.listdir(manifests)) <= before,
            "it does not go on",
        )
        clock.sleep_ns(int(moments.uniform(0, 1.2) * 1e9))
        assert len(actors_of(job)) == 3
        if for_good:
            kill_all_for_good(cluster, job)
            with pytest.raises(WorkerDiedError, match="controller is gone"):
                job.wait(60)
            job = whale.resume(state, address="auto")
        else:
            kill_all_processes(job)
    job.wait(60)
    check_output(tmp_path)
