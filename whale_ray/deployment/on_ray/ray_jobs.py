"""Finds running jobs on a Ray cluster, and ends them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from ...configs.errors import ResourceError, UsageError, WhaleError
from ...ray_bridge.session import connect_ray
from ...transport.clock import SystemClock
from .ray_controller import controller_name, job_of
from .ray_fleet import NAMESPACE

HowToStop: TypeAlias = Literal["drain", "now", "savepoint"]
"""After all rows read have come out, at once, or after a savepoint."""

_ANSWER_TIMEOUT_S = 10.0
_RESTART_POLL_NS = 100_000_000
UNKNOWN_NAME = "?"
"""The name of a listed job that does not answer."""


@dataclass(frozen=True)
class RunningJob:
    """A job found on a cluster."""

    id: str
    name: str
    state: str


def list_jobs(address: str | None) -> list[RunningJob]:
    """Return the jobs that run on a cluster, detached or not; raises ResourceError without one."""
    with connect_ray(address or "auto"):
        found = []
        for entry in ray.util.list_named_actors(all_namespaces=True):
            job_id = job_of(entry["name"])
            if entry["namespace"] != NAMESPACE or job_id is None:
                continue
            controller = controller_of(job_id)
            if controller is None:
                continue
            try:
                asked = controller.describe.options(max_task_retries=0).remote()
                answer = ray.get(asked, timeout=_ANSWER_TIMEOUT_S)
            except (GetTimeoutError, RayActorError):
                answer = (job_id, UNKNOWN_NAME, "does not answer")
            found.append(RunningJob(*answer))
        return sorted(found, key=lambda job: job.id)


def take_savepoint(named: str, address: str | None, timeout_s: float) -> str:
    """Let a job on a cluster take a savepoint; return its path.

    Raises:
        UsageError: there is no such job, it has ended, or it takes no checkpoints.
        ResourceError: there was none in time.
    """
    job_id = find_job(named, list_jobs(address)).id
    clock = SystemClock()
    until_ns = clock.monotonic_ns() + round(timeout_s * 1e9)
    with connect_ray(address or "auto"):
        controller = controller_of(job_id)
        try:
            number: int | None = None
            while controller is not None and clock.monotonic_ns() < until_ns:
                if number is None:
                    number = ray.get(
                        controller.request_savepoint.remote(), timeout=_ANSWER_TIMEOUT_S
                    )
                place = ray.get(controller.savepoint_of.remote(number), timeout=_ANSWER_TIMEOUT_S)
                if place:
                    return str(place)
                if place is not None:
                    number = None  # another controller leads the job now
                clock.sleep_ns(_RESTART_POLL_NS)
        except RayTaskError as error:
            if isinstance(error.cause, WhaleError):
                raise error.cause from None
            raise
        except (GetTimeoutError, RayActorError) as error:
            msg = f"job {job_id!r} has ended, or its controller is being restarted; ask again"
            raise ResourceError(msg) from error
    msg = f"job {job_id!r} has taken no savepoint within {timeout_s:g} s"
    raise ResourceError(msg)


def stop_job(named: str, how: HowToStop, address: str | None, timeout_s: float) -> str:
    """End a job on a cluster and wait until its controller is gone; return its id.

    `named` is its id, or its name if no other job has that.

    Raises:
        UsageError: there is no such job, it has ended, or several have that name, which the
            message lists; or it takes no checkpoints, and so no savepoint.
        ResourceError: it did not end in time.
    """
    job_id = find_job(named, list_jobs(address)).id
    clock = SystemClock()
    until_ns = clock.monotonic_ns() + round(timeout_s * 1e9)
    with connect_ray(address or "auto"):
        while (controller := controller_of(job_id)) is not None:
            left_s = max(0.0, (until_ns - clock.monotonic_ns()) / 1e9)
            if not _end(controller, how, left_s):
                msg = f"job {job_id!r} has not ended within {timeout_s:g} s; try stop --now"
                raise ResourceError(msg)
            clock.sleep_ns(_RESTART_POLL_NS)
    return job_id


def _end(controller: ActorHandle[Any], how: HowToStop, timeout_s: float) -> bool:
    """Ask a controller to end its job; return whether its process ended in time.

    Ray restarts a controller that was killed; the new process has not received the stop. So the
    caller checks whether there still is a controller, and asks again.
    """
    # With retries these would wait for a controller that is being restarted, and Ray would print
    # that the actor is dead, which is what is expected here.
    if how == "savepoint":
        asked = controller.stop_with_savepoint.options(max_task_retries=0).remote()
    else:
        asked = controller.stop.options(max_task_retries=0).remote(how == "drain")
    gone = controller.wait_until_gone.options(max_task_retries=0).remote(timeout_s)
    try:
        ray.get(asked, timeout=_ANSWER_TIMEOUT_S)
    except (RayActorError, GetTimeoutError):
        pass  # `gone` shows the outcome
    except RayTaskError as error:
        if isinstance(error.cause, WhaleError):
            raise error.cause from None
        raise
    try:
        ray.get(gone, timeout=timeout_s)
    except GetTimeoutError:
        return False
    except RayError:
        return True
    return False


def controller_of(job_id: str) -> ActorHandle[Any] | None:
    """Return a job's controller; None if the job has ended since it was listed."""
    try:
        return ray.get_actor(controller_name(job_id), namespace=NAMESPACE)
    except ValueError:
        return None


def find_job(named: str, running: list[RunningJob]) -> RunningJob:
    """Return the job of that id, or the only one of that name.

    Raises:
        UsageError: there is none, several have that name, or it has ended: then it says how.
    """
    from ...ui.ended_jobs import describe_ended

    found = [job for job in running if job.id == named]
    found = found or [job for job in running if job.name == named]
    if len(found) > 1:
        msg = f"several jobs are named {named!r}; pass an id: {', '.join(job.id for job in found)}"
        raise UsageError(msg)
    if not found:
        if (ended := describe_ended(named)) is not None:
            raise UsageError(ended)
        known = ", ".join(job.id for job in running) or "none runs"
        msg = f"there is no job {named!r}; running: {known}"
        silent = [job.id for job in running if job.name == UNKNOWN_NAME]
        if silent:
            ids = ", ".join(silent)
            msg += f"; unless it is one that does not answer: then pass its id ({ids})"
        raise UsageError(msg)
    return found[0]
