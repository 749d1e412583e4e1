"""Submits a job to Ray, and finds jobs that were submitted before."""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    RayActorError,
    RayError,
    RayTaskError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..configs.errors import ResourceError, UsageError, WhaleError, WorkerDiedError
from ..configs.settings import Settings
from ..plan.logical import OperatorKind
from ..ray_bridge.session import RaySession, connect_ray
from ..topology import Topology
from .envelope import seal
from .fleet import Assignment
from .job import Job, JobRunner
from .metrics import JobMetrics
from .ray_controller import RESTARTS_MAX, THREADS, ControllerActor, controller_name, job_of
from .ray_fleet import NAMESPACE, create_members, kill_all
from .ray_journal import forget, keep_envelope
from .ray_output import OutputFollower, logs_place, ray_prints_output
from .supervisor import JobOutcome
from .tree_keeper import Wish

Assign = Callable[[Topology, Settings, int | None, Sequence[int]], Assignment]

_ANSWER_TIMEOUT_S = 10.0

_log = logging.getLogger(__name__)


def submit_to_ray(
    topology: Topology,
    settings: Settings,
    workers: int | None,
    address: str | None,
    detach: bool,
    assign: Assign,
    release: Callable[[Assignment], None],
) -> Job:
    """Start a job's actors and return its handle; see `api.submit`."""
    with ExitStack() as undo:
        session = undo.enter_context(connect_ray(address))
        if detach and session.started_here:
            msg = (
                "a detached job needs a Ray that outlives this process; "
                "start one with `ray start --head`"
            )
            raise UsageError(msg)
        nodes = cluster_nodes()
        settings = spread_over(nodes, settings, workers)
        places = places_of_hosts(nodes, settings.runtime.hosts)
        assignment = assign(topology, settings, workers, [place.cpus for place in places])
        undo.callback(release, assignment)
        if detach:
            _check_outlives(assignment)
        follows = not detach and not ray_prints_output()
        keep_envelope(assignment.job_id, seal(assignment, forward_output=follows))
        undo.callback(forget, assignment.job_id)
        plan, ids = assignment.plan, [place.id for place in places]
        actors = create_members(plan, ids, assignment.job_id, session.worker_cpus, detach)
        undo.callback(kill_all, actors)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        controller = (
            ray.remote(ControllerActor)
            .options(
                num_cpus=0,
                max_concurrency=THREADS,
                max_restarts=RESTARTS_MAX,
                max_task_retries=-1,
                scheduling_strategy=here,
                name=controller_name(assignment.job_id),
                namespace=NAMESPACE,
                lifetime="detached" if detach else None,
            )
            .remote(assignment.job_id, detach, ids)
        )
        undo.callback(kill_all, [controller])
        runner = (
            DetachedRunner(assignment.job_id, controller)
            if detach
            else RayRunner(assignment.job_id, controller, actors, plan.workers, session, follows)
        )
        undo.pop_all()
    return Job(assignment.job_id, topology.name, runner, lambda: release(assignment), logs_place())


@dataclass(frozen=True)
class ClusterNode:
    """A node of the Ray cluster that can run workers, or a host's part of one."""

    id: str
    cpus: int


def cluster_nodes() -> list[ClusterNode]:
    """Return the nodes with processors, that of this process first; at least this one."""
    here = ray.get_runtime_context().get_node_id()
    found = [
        ClusterNode(node["NodeID"], int(node["Resources"].get("CPU", 0)))
        for node in ray.nodes()
        if node["Alive"]
    ]
    usable = [node for node in found if node.cpus > 0 or node.id == here]
    usable = [node for node in usable if node.cpus > 0] or usable
    return sorted(usable, key=lambda node: (node.id != here, node.id))


def spread_over(nodes: Sequence[ClusterNode], settings: Settings, workers: int | None) -> Settings:
    """Return the settings of a job on these nodes.

    Without `runtime.hosts` there is one host per node, unless there are fewer workers; on several
    nodes a job without a number of workers has one for each processor.
    """
    runtime = settings.runtime
    count = workers or runtime.workers
    if runtime.hosts:
        return settings
    if len(nodes) > 1 and not count:
        count = sum(node.cpus for node in nodes)
        settings = settings.with_overrides({"runtime.workers": count})
    hosts = max(1, min(len(nodes), count))
    return settings.with_overrides({"runtime.hosts": hosts})


def places_of_hosts(nodes: Sequence[ClusterNode], hosts: int) -> list[ClusterNode]:
    """Return for each host its node, and how many of the node's processors are its own.

    Several hosts may share a node, in blocks; their processors then add up to the node's.
    """
    used = nodes[:hosts]
    node_of = [host * len(used) // hosts for host in range(hosts)]
    return [
        ClusterNode(
            used[node].id,
            (used[node].cpus + host - node_of.index(node)) // node_of.count(node),
        )
        for host, node in enumerate(node_of)
    ]


def _check_outlives(assignment: Assignment) -> None:
    logical = assignment.plan.logical
    for kind in (OperatorKind.SOURCE, OperatorKind.SINK):
        for node in logical.of_kind(kind):
            if not getattr(node.payload, "outlives_driver", True):
                msg = (
                    f"{kind.value} {node.id!r} depends on this process, and the job is detached: "
                    "read rows from files, and write them to files"
                )
                raise UsageError(msg)


class RayRunner(JobRunner):
    """A job that a controller actor leads, and that dies with this process.

    A thread waits for its end, so that no actor stays even if nobody asks how the job ended.
    """

    def __init__(
        self,
        job_id: str,
        controller: ActorHandle[Any],
        members: list[ActorHandle[Any]],
        workers: int,
        session: RaySession,
        follows_output: bool,
    ) -> None:
        self._job_id = job_id
        self._controller = controller
        self._members = members
        self._workers = workers
        self._session = session
        self._outcome: JobOutcome | None = None
        self._logs_place = logs_place()
        followed = [*members[:workers], controller] if follows_output else []
        self._output = OutputFollower(followed)
        self._run = controller.run.remote()
        self._thread = threading.Thread(target=self._await_end, name="job's end", daemon=True)
        self._thread.start()

    def _await_end(self) -> None:
        try:
            outcome = pickle.loads(ray.get(self._run))  # noqa: S301  # from our own controller
            assert isinstance(outcome, JobOutcome)
        except Exception as error:  # noqa: BLE001  # whoever waits must learn of the end
            reason = next(iter(str(error).splitlines()), repr(error))
            lost = WorkerDiedError(f"the job's controller is gone, and the job with it: {reason}")
            outcome = JobOutcome("failed", {}, JobMetrics((), 0.0, 0), 0.0, 0, self._workers, lost)
        self._output.finish()
        if outcome.error is not None and outcome.state == "failed":
            outcome.error.add_note(self._logs_place)
        try:
            if ray.is_initialized():
                kill_all([*self._members, self._controller])
                forget(self._job_id)  # the controller did, unless it died
        except Exception as error:  # noqa: BLE001  # Ray may go at any moment
            _log.warning("job %s may have left entries in Ray: %s", self._job_id, error)
        finally:
            self._outcome = outcome

    def state(self) -> str:
        """See `JobRunner.state`."""
        if self._outcome is not None:
            return self._outcome.state
        if not ray.is_initialized():  # asking would start another Ray
            return "finishing"
        try:
            return str(ray.get(self._controller.state.remote(), timeout=_ANSWER_TIMEOUT_S))
        except GetTimeoutError:
            return "starting"
        except ActorUnavailableError:
            return "restarting"  # the controller, not the job
        except RayActorError:
            return "finishing"

    def metrics(self) -> JobMetrics:
        """See `JobRunner.metrics`."""
        return _metrics_of(self._controller)

    def stop(self, drain: bool) -> None:
        """See `JobRunner.stop`."""
        if ray.is_initialized():  # else Ray has ended the job
            self._controller.stop.remote(drain)

    def wish(self, wish: Wish) -> None:
        """See `JobRunner.wish`."""
        _wish(self._controller, wish)

    def join(self, timeout_s: float) -> JobOutcome | None:
        """See `JobRunner.join`; a Ray that was started for this job is stopped at its end."""
        self._thread.join(timeout_s)
        if self._outcome is not None:
            self._session.close()
        return self._outcome


class DetachedRunner(JobRunner):
    """A job that goes on without this process; what it published tells how it ended."""

    def __init__(self, job_id: str, controller: ActorHandle[Any]) -> None:
        self._job_id = job_id
        self._controller = controller
        try:
            ray.get(controller.start_detached.remote())
        except RayTaskError as error:
            if isinstance(error.cause, WhaleError):
                raise error.cause from None
            raise

    def state(self) -> str:
        """Return its state, or "gone" when it has ended."""
        try:
            return str(ray.get(self._controller.state.remote(), timeout=_ANSWER_TIMEOUT_S))
        except RayError:
            return "gone"

    def metrics(self) -> JobMetrics:
        """Return the newest counters, none when it has ended."""
        return _metrics_of(self._controller)

    def stop(self, drain: bool) -> None:
        """Ask for the end."""
        self._controller.stop.remote(drain)

    def wish(self, wish: Wish) -> None:
        """See `JobRunner.wish`."""
        _wish(self._controller, wish)

    def join(self, timeout_s: float) -> JobOutcome | None:
        """Refuse: nobody waits for a detached job."""
        msg = (
            f"job {self._job_id!r} is detached; see `whale-ray list`, end it with "
            f"`whale-ray stop {self._job_id}`, and find its output where its sinks publish"
        )
        raise UsageError(msg)


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
            if entry["namespace"] == NAMESPACE and job_of(entry["name"]) is not None:
                controller = ray.get_actor(entry["name"], namespace=NAMESPACE)
                try:
                    answer = ray.get(controller.describe.remote(), timeout=_ANSWER_TIMEOUT_S)
                except (GetTimeoutError, RayActorError):
                    answer = (job_of(entry["name"]), "?", "does not answer")
                found.append(RunningJob(*answer))
        return sorted(found, key=lambda job: job.id)


def stop_job(job_id: str, drain: bool, address: str | None, timeout_s: float) -> None:
    """End a job on a cluster and wait until its controller is gone.

    Raises:
        UsageError: there is no such job; the message lists those there are.
        ResourceError: it did not end in time.
    """
    running = list_jobs(address)
    if job_id not in {job.id for job in running}:
        known = ", ".join(job.id for job in running) or "none runs"
        msg = f"there is no job {job_id!r}; running: {known}"
        raise UsageError(msg)
    with connect_ray(address or "auto"):
        controller = ray.get_actor(controller_name(job_id), namespace=NAMESPACE)
        ray.get(controller.stop.remote(drain), timeout=_ANSWER_TIMEOUT_S)
        # Retried, it would have Ray print that its actor is dead, which is what it waits for.
        waiting = controller.wait_for_end.options(max_task_retries=0).remote()
        done, _ = ray.wait([waiting], timeout=timeout_s)
        if not done:
            msg = f"job {job_id!r} has not ended within {timeout_s:g} s; try stop --now"
            raise ResourceError(msg)


def _metrics_of(controller: ActorHandle[Any]) -> JobMetrics:
    """Return the newest counters of a job, none if its controller does not answer."""
    if not ray.is_initialized():  # asking would start another Ray
        return JobMetrics((), 0.0, 0)
    try:
        packed = ray.get(controller.metrics.remote(), timeout=_ANSWER_TIMEOUT_S)
    except RayError:
        return JobMetrics((), 0.0, 0)
    metrics = pickle.loads(packed)  # noqa: S301  # from our own controller
    assert isinstance(metrics, JobMetrics)
    return metrics


def _wish(controller: ActorHandle[Any], wish: Wish) -> None:
    """Ask a job's controller; raises UsageError for what it refuses, and if it has ended."""
    try:
        ray.get(controller.wish.remote(pickle.dumps(wish)), timeout=_ANSWER_TIMEOUT_S)
    except RayTaskError as error:
        if isinstance(error.cause, WhaleError):
            raise error.cause from None
        raise
    except RayError as error:
        msg = "the job does not answer: it has ended, or its controller is being restarted"
        raise UsageError(msg) from error
