"""The controller's actor: leads a job's worker actors, one per job.

It is named `whale-ray:JOB:controller` in the namespace `whale-ray`, so that `whale-ray list` and
`stop` find it. What it decides is `JobController`'s; this is only where that runs.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import cloudpickle
import ray
from ray.actor import ActorHandle

from ..transport.clock import SystemClock
from .envelope import unseal
from .ray_fleet import NAMESPACE, RayFleet, worker_name
from .ray_journal import RayJournal, fetch_envelope
from .supervisor import Supervisor

THREADS = 6
RESTARTS_MAX = 5
"""How often Ray restarts a controller that died; it resumes from its journal."""

_log = logging.getLogger(__name__)


class ControllerActor:
    """Runs a job's supervisor on a fleet of worker actors that the driver made."""

    def __init__(self, job_id: str) -> None:
        assignment = unseal(fetch_envelope(job_id))
        workers = [
            ray.get_actor(worker_name(job_id, index), namespace=NAMESPACE)
            for index in range(assignment.plan.workers)
        ]
        timeout_ns = assignment.settings.runtime.start_timeout_ms * 1_000_000
        self._job_id = assignment.job_id
        self._name = assignment.plan.name
        fleet = RayFleet(workers, timeout_ns)
        journal = RayJournal(assignment.job_id)
        self._supervisor = Supervisor(assignment, fleet, SystemClock(), journal)
        self._thread: threading.Thread | None = None

    def run(self) -> bytes:
        """Run the job to its end; return the pickled outcome.

        Ray calls it again when it has restarted the actor; the job then goes on where it was.
        """
        return cloudpickle.dumps(self._supervisor.run())

    def start_detached(self) -> None:
        """Begin to run the job in a thread; when it has ended, nothing is left behind.

        Returns at once, so that the driver knows that the job runs before it leaves.
        """
        me = ray.get_runtime_context().current_actor
        self._thread = threading.Thread(target=self._run_detached, args=(me,), daemon=True)
        self._thread.start()

    def _run_detached(self, me: ActorHandle[Any]) -> None:
        outcome = self._supervisor.run()
        how = outcome.state if outcome.error is None else f"{outcome.state}: {outcome.error}"
        _log.warning("job %s %s", self._job_id, how)  # into this actor's log, which Ray keeps
        ray.kill(me)

    def wait_for_end(self) -> None:
        """Return when a detached job has ended; most callers find the actor gone by then."""
        if self._thread is not None:
            self._thread.join()

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


def controller_name(job_id: str) -> str:
    """Return the name of a job's controller actor."""
    return f"whale-ray:{job_id}:controller"


def job_of(actor_name: str) -> str | None:
    """Return the job whose controller bears `actor_name`, or None if it is no controller's."""
    parts = actor_name.split(":")
    is_ours = len(parts) == 3 and parts[0] == "whale-ray" and parts[2] == "controller"
    return parts[1] if is_ours else None
