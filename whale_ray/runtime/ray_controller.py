"""The controller's actor: leads a job's worker actors, one per job.

It is named `whale-ray:JOB:controller` in the namespace `whale-ray`, so that `whale-ray list` and
`stop` find it. What it decides is `JobController`'s; this is only where that runs.
"""

from __future__ import annotations

import pickle
import threading
from typing import Any

import cloudpickle
import ray
from ray.actor import ActorHandle

from ..transport.clock import SystemClock
from .envelope import Envelope, unseal
from .ray_fleet import RayFleet
from .supervisor import Supervisor

THREADS = 6


class ControllerActor:
    """Runs a job's supervisor on a fleet of worker actors that the driver made."""

    def __init__(self, envelope: bytes, workers: list[ActorHandle[Any]]) -> None:
        opened: Envelope = pickle.loads(envelope)  # noqa: S301  # from our own driver
        assignment = unseal(opened)
        timeout_ns = assignment.settings.runtime.start_timeout_ms * 1_000_000
        self._job_id = assignment.job_id
        self._name = assignment.plan.name
        fleet = RayFleet(workers, timeout_ns)
        self._supervisor = Supervisor(assignment, fleet, SystemClock())
        self._started = threading.Lock()

    def run(self) -> bytes:
        """Run the job to its end; return the pickled outcome."""
        with self._started:
            return cloudpickle.dumps(self._supervisor.run())

    def describe(self) -> tuple[str, str, str]:
        """Return the job's id, name and state."""
        return self._job_id, self._name, self._supervisor.state

    def state(self) -> str:
        """Return the job's state."""
        return self._supervisor.state

    def metrics(self) -> bytes:
        """Return the pickled counters."""
        return cloudpickle.dumps(self._supervisor.metrics())

    def stop(self, drain: bool) -> None:
        """Ask for the end."""
        self._supervisor.stop(drain)

    def wait_for_end(self) -> str:
        """Return how the job ended, once it has."""
        with self._started:
            return self._supervisor.state

    def run_detached(self) -> None:
        """Run the job without a driver that waits, then leave nothing behind."""
        self.run()
        ray.actor.exit_actor()


def controller_name(job_id: str) -> str:
    """Return the name of a job's controller actor."""
    return f"whale-ray:{job_id}:controller"


def job_of(actor_name: str) -> str | None:
    """Return the job whose controller bears `actor_name`, or None if it is no controller's."""
    parts = actor_name.split(":")
    is_ours = len(parts) == 3 and parts[0] == "whale-ray" and parts[2] == "controller"
    return parts[1] if is_ours else None
