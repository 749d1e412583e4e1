"""Submit a job to Ray, and follow it to its end."""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    RayActorError,
    RayError,
    RayTaskError,
    RuntimeEnvSetupError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ..configs.errors import (
    FolderInUseError,
    ResourceError,
    UsageError,
    WhaleError,
    WorkerDiedError,
)
from ..control.outcome import JobOutcome
from ..deployment.envelope import Envelope, seal
from ..deployment.on_ray.ray_controller import (
    RESTARTS_MAX,
    THREADS,
    ControllerActor,
    controller_name,
)
from ..deployment.on_ray.ray_fleet import NAMESPACE, create_members, kill_all
from ..deployment.on_ray.ray_jobs import controller_of
from ..deployment.on_ray.ray_journal import forget, keep_envelope
from ..deployment.on_ray.ray_nodes import cluster_nodes, places_of_hosts, spread_over
from ..deployment.on_ray.ray_output import OutputFollower, logs_place, ray_prints_output
from ..deployment.on_ray.ray_room import Room
from ..metrics.job_metrics import JobMetrics
from ..multicast.tree_state import ReconfigurationRequest
from ..plan.assignment import Assignment, job_is_bounded
from ..plan.logical import OperatorKind
from ..plan.preflight import unbounded_sources
from ..plan.requests import worker_demands
from ..ray_bridge.session import RaySession, check_outlives_process, connect_ray
from ..transport.clock import Clock, SystemClock
from .checkpoints import check_claimable, forget_saved, save_for_resume
from .cluster_options import RayOptions
from .job import Job, JobRunner
from .job_requests import JobRequest

_ANSWER_TIMEOUT_S = 10.0
_PROCESS_END_TIMEOUT_NS = 10_000_000_000
_PROCESS_END_POLL_NS = 50_000_000
_NO_METRICS = JobMetrics((), 0.0, 0)

_log = logging.getLogger(__name__)


def submit_to_ray(
    request: JobRequest, options: RayOptions, release: Callable[[Assignment], None]
) -> Job:
    """Create the actors of a job on Ray and return its handle; see `submit`.

    Args:
        request: the job.
        options: how Ray is used.
        release: called at the job's end, or if it does not begin once it is planned.
    """
    detach = options.detach
    if detach:
        check_outlives_process(options.address)
    with ExitStack() as undo:
        session = undo.enter_context(
            connect_ray(options.address, dashboard=bool(unbounded_sources(request.logical)))
        )
        check_runtime_env(options.runtime_env)
        nodes = cluster_nodes()
        settings = spread_over(nodes, request.settings, request.workers)
        places = places_of_hosts(nodes, settings.runtime.hosts)
        assignment = request.assignment(settings, places)
        undo.callback(release, assignment)
        if detach:
            _check_detachable(assignment)
        await_claimable(assignment, SystemClock())  # before actors are created: that takes seconds
        save_for_resume(assignment, "ray")
        undo.callback(forget_saved, assignment)
        plan, job_id = assignment.plan, assignment.job_id
        follows = not detach and not ray_prints_output()
        keep_envelope(job_id, _sealed(assignment, options.runtime_env, follows))
        undo.callback(forget, job_id)
        demands = worker_demands(plan, session.worker_cpus)
        room = Room(job_id, plan, places, demands, detached=detach)
        undo.callback(room.release)
        room.take(queue=options.queue)
        ids = [place.id for place in places]
        actors = create_members(plan, ids, job_id, room, detach, options.runtime_env)
        undo.callback(kill_all, actors)
        controller = _create_controller(assignment, ids, room, options, session.dashboard_url)
        undo.callback(kill_all, [controller])
        if detach:
            _start_detached(controller)
        runner = (
            DetachedRunner(job_id, controller, session)
            if detach
            else RayRunner(job_id, controller, actors, plan.workers, session, room, follows)
        )
        undo.pop_all()
    return Job(
        job_id,
        request.logical.name,
        runner,
        lambda: release(assignment),
        logs_place(),
        session.dashboard_url,
        assignment.settings.records,
        bounded=job_is_bounded(assignment),
    )


def await_claimable(assignment: Assignment, clock: Clock) -> None:
    """Check that a job gets the folder of its checkpoints; see `check_claimable`.

    An actor that is killed is dead for Ray at once, while its process may still have the folder
    for a moment: that is waited for.
    """
    until_ns = clock.monotonic_ns() + _PROCESS_END_TIMEOUT_NS
    while True:
        try:
            return check_claimable(assignment)
        except FolderInUseError as refused:
            is_ending = refused.is_locked and controller_of(refused.job) is None
            if not is_ending or clock.monotonic_ns() >= until_ns:
                raise
        clock.sleep_ns(_PROCESS_END_POLL_NS)


def check_runtime_env(runtime_env: Mapping[str, Any] | None) -> None:
    """Check that Ray accepts a runtime environment.

    Raises:
        UsageError: Ray rejects it.
    """
    if runtime_env is None:
        return
    try:
        ray.runtime_env.RuntimeEnv(**runtime_env)
    except Exception as error:
        msg = f"runtime_env is not one that Ray takes: {error}"
        raise UsageError(msg) from error


def _sealed(
    assignment: Assignment, runtime_env: Mapping[str, Any] | None, follows: bool
) -> Envelope:
    envelope = seal(assignment, forward_output=follows)
    if runtime_env is not None and "working_dir" in runtime_env:
        return replace(envelope, working_directory="")  # workers keep the one that Ray created
    return envelope


def _create_controller(
    assignment: Assignment,
    nodes: Sequence[str],
    room: Room,
    options: RayOptions,
    dashboard_url: str,
) -> ActorHandle[Any]:
    job_id = assignment.job_id
    environment = (
        _opentelemetry_variables(options) if assignment.settings.metrics.opentelemetry else {}
    )
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return (
        ray.remote(ControllerActor)
        .options(
            num_cpus=0,
            max_concurrency=THREADS,
            max_restarts=RESTARTS_MAX,
            max_task_retries=-1,
            scheduling_strategy=here,
            name=controller_name(job_id),
            namespace=NAMESPACE,
            lifetime="detached" if options.detach else None,
            runtime_env=None if options.runtime_env is None else dict(options.runtime_env),
        )
        .remote(job_id, options.detach, nodes, room.group, environment, dashboard_url)
    )


def _opentelemetry_variables(options: RayOptions) -> dict[str, str]:
    """Return what OpenTelemetry is told here and by `runtime_env`: the controller sends."""
    given = {**os.environ, **(options.runtime_env or {}).get("env_vars", {})}
    return {name: value for name, value in given.items() if name.startswith("OTEL_")}


def _check_detachable(assignment: Assignment) -> None:
    logical = assignment.plan.logical
    for kind in (OperatorKind.SOURCE, OperatorKind.SINK):
        for node in logical.of_kind(kind):
            if not getattr(node.payload, "outlives_driver", True):
                msg = (
                    f"{kind.value} {node.id!r} depends on this process, and the job is detached: "
                    "read rows from files, and write them to files"
                )
                raise UsageError(msg)


class _ControllerRunner(JobRunner):
    """A job that runs under a controller actor, and what the actor is asked for."""

    def __init__(self, job_id: str, controller: ActorHandle[Any]) -> None:
        self._job_id = job_id
        self._controller = controller
        self._asked: dict[str, Any] = {}  # calls without an answer yet, by the method

    def metrics(self) -> JobMetrics:
        """Return the newest counters; empty if the controller does not answer."""
        if not ray.is_initialized():  # a remote call would start another Ray
            return _NO_METRICS
        try:
            packed = ray.get(self._controller.metrics.remote(), timeout=_ANSWER_TIMEOUT_S)
        except RayError:
            return _NO_METRICS
        metrics = pickle.loads(packed)  # noqa: S301  # from our own controller
        assert isinstance(metrics, JobMetrics)
        return metrics

    def reconfigure(self, request: ReconfigurationRequest) -> None:
        """See `JobRunner.reconfigure`."""
        self._check_connected()
        _answer_of(self._controller.reconfigure.remote(pickle.dumps(request)))

    def stop_with_savepoint(self) -> bool:
        """See `JobRunner.stop_with_savepoint`."""
        ended = self._ended_call("stop_with_savepoint")
        if ended is not None:
            _answer_of(ended)
        return ended is not None

    def request_savepoint(self) -> int | None:
        """See `JobRunner.request_savepoint`."""
        ended = self._ended_call("request_savepoint")
        return None if ended is None else int(_answer_of(ended))

    def _ended_call(self, method: str) -> Any:
        """Call a method of the controller, unless a call of it has no answer yet; wait a while.

        Ray keeps calls of an actor that is being created, or restarted. That may take minutes, such
        as with packages in its runtime environment. So this returns None if there is no answer.
        """
        self._check_connected()
        call = self._asked.pop(method, None) or getattr(self._controller, method).remote()
        done, _ = ray.wait([call], timeout=_ANSWER_TIMEOUT_S)
        if done:
            return call
        self._asked[method] = call
        return None

    def savepoint_of(self, number: int) -> str | None:
        """See `JobRunner.savepoint_of`; None, too, if the controller does not answer."""
        if not ray.is_initialized():
            return None
        try:
            place = ray.get(self._controller.savepoint_of.remote(number), timeout=_ANSWER_TIMEOUT_S)
        except RayError:
            return None
        return None if place is None else str(place)

    def _check_connected(self) -> None:
        """Raise UsageError if this process has left Ray: a remote call would start another one."""
        if not ray.is_initialized():
            msg = (
                f"this process has left Ray (ray.shutdown()), so job {self._job_id!r} cannot be"
                " asked; call ray.init(address=…) and, for a job that outlives this process,"
                " whale_ray.attach"
            )
            raise UsageError(msg)


class RayRunner(_ControllerRunner):
    """A job that runs under a controller actor and ends with this process.

    A thread waits for the end of the job and then removes its actors, even if no method is called.
    """

    def __init__(
        self,
        job_id: str,
        controller: ActorHandle[Any],
        members: list[ActorHandle[Any]],
        workers: int,
        session: RaySession,
        room: Room,
        follows_output: bool,
    ) -> None:
        super().__init__(job_id, controller)
        self._members = members
        self._workers = workers
        self._session = session
        self._room = room
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
        except RuntimeEnvSetupError as error:
            refused = ResourceError(f"Ray cannot set the runtime_env up: {_reason(error)}")
            outcome = JobOutcome("failed", {}, _NO_METRICS, 0.0, 0, self._workers, refused)
        except SystemExit:  # raised by Ray in calls that wait while this process leaves it
            left = WorkerDiedError("this process has left Ray (ray.shutdown()): the job ended")
            outcome = JobOutcome("failed", {}, _NO_METRICS, 0.0, 0, self._workers, left)
        except Exception as error:  # noqa: BLE001  # every failure must end `join`
            lost = WorkerDiedError(
                f"the job's controller is gone, and the job with it: {_reason(error)}"
            )
            outcome = JobOutcome("failed", {}, _NO_METRICS, 0.0, 0, self._workers, lost)
        self._output.finish()
        if outcome.error is not None and outcome.state == "failed":
            outcome.error.add_note(self._logs_place)
        try:
            if ray.is_initialized():
                kill_all([*self._members, self._controller])
                forget(self._job_id)  # the controller did this already, unless it died
                self._room.release()
        except Exception as error:  # noqa: BLE001  # Ray may be shut down at any moment
            _log.warning("job %s may have left entries in Ray: %s", self._job_id, error)
        finally:
            self._outcome = outcome

    def state(self) -> str:
        """See `JobRunner.state`."""
        if self._outcome is not None:
            return self._outcome.state
        if not ray.is_initialized():  # a remote call would start another Ray
            return "finishing"
        try:
            return str(ray.get(self._controller.state.remote(), timeout=_ANSWER_TIMEOUT_S))
        except GetTimeoutError:
            return "starting"
        except ActorUnavailableError:
            return "restarting"  # the controller, not the job
        except RayActorError:
            return "finishing"

    def stop(self, drain: bool) -> None:
        """See `JobRunner.stop`."""
        if ray.is_initialized():  # else Ray has ended the job
            self._controller.stop.remote(drain)

    def join(self, timeout_s: float) -> JobOutcome | None:
        """See `JobRunner.join`; a Ray that was started for this job is stopped at its end."""
        self._thread.join(timeout_s)
        if self._outcome is not None:
            self._session.close()
        return self._outcome


def _start_detached(controller: ActorHandle[Any]) -> None:
    """Start a detached job; raises the WhaleError with which it fails before it runs."""
    try:
        ray.get(controller.start_detached.remote())
    except ActorUnavailableError:
        pass  # the controller died, not the job: Ray restarts it, and it goes on by itself
    except RayTaskError as error:
        if isinstance(error.cause, WhaleError):
            raise error.cause from None
        raise
    except RuntimeEnvSetupError as error:
        msg = f"Ray cannot set the runtime_env up: {_reason(error)}"
        raise ResourceError(msg) from error
    finally:
        # With retries Ray would print that a controller that has ended is dead.
        controller.leave.options(max_task_retries=0).remote()


class DetachedRunner(_ControllerRunner):
    """A job on Ray that runs on without this process, which asks how it ends only in `join`."""

    outlives_process = True

    def __init__(self, job_id: str, controller: ActorHandle[Any], session: RaySession) -> None:
        super().__init__(job_id, controller)
        self._session = session
        self._me = secrets.token_hex(8)  # as a follower of the job
        self._outcome: JobOutcome | None = None
        self._asked_outcome: Any = None  # a call that has no answer yet

    def state(self) -> str:
        """Return the job's state, or "gone" after its end."""
        if self._outcome is not None:
            return self._outcome.state
        self._check_connected()
        try:
            return str(ray.get(self._controller.state.remote(), timeout=_ANSWER_TIMEOUT_S))
        except (ActorUnavailableError, GetTimeoutError):
            return "restarting"  # the controller, not the job
        except RayError:
            return "gone"

    def stop(self, drain: bool) -> None:
        """See `JobRunner.stop`."""
        self._check_connected()
        self._controller.stop.remote(drain)

    def join(self, timeout_s: float) -> JobOutcome | None:
        """See `JobRunner.join`; raises UsageError if the job ended before this process asked."""
        if self._outcome is None:
            packed = self._ask_outcome(timeout_s)
            if packed is None:
                return None
            outcome = pickle.loads(packed)  # noqa: S301  # from our own controller
            assert isinstance(outcome, JobOutcome)
            self._outcome = outcome
            told = self._controller.has_outcome.options(max_task_retries=0).remote(self._me)
            ray.wait([told], timeout=_ANSWER_TIMEOUT_S)  # before the connection is closed
            self._session.close()
        return self._outcome

    def _ask_outcome(self, timeout_s: float) -> bytes | None:
        """Return what the controller has kept of the end; None, after `timeout_s`, if nothing yet.

        A controller that is being restarted may answer a later question.
        """
        self._check_connected()
        clock = SystemClock()
        until_ns = clock.monotonic_ns() + round(timeout_s * 1e9)
        if self._asked_outcome is None:
            asking = self._controller.outcome.options(max_task_retries=0)
            self._asked_outcome = asking.remote(self._me)
        done, _ = ray.wait([self._asked_outcome], timeout=timeout_s)
        if not done:
            return None
        asked, self._asked_outcome = self._asked_outcome, None
        packed: bytes | None = None
        try:
            packed = ray.get(asked)
        except ActorUnavailableError:
            pass
        except RayError as error:
            from ..ui.ended_jobs import describe_ended

            ended = describe_ended(self._job_id) or f"job {self._job_id!r} has ended"
            msg = f"{ended}, before this process asked; its output is where its sinks publish"
            raise UsageError(msg) from error
        if packed is None:
            clock.sleep_ns(max(0, until_ns - clock.monotonic_ns()))
        return packed


def _reason(error: BaseException) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), repr(error))


def _answer_of(call: Any) -> Any:
    """Return what a job's controller answers to a request.

    Raises:
        UsageError: the controller refuses the request, or the job has ended.
    """
    try:
        return ray.get(call, timeout=_ANSWER_TIMEOUT_S)
    except RayTaskError as error:
        if isinstance(error.cause, WhaleError):
            raise error.cause from None
        raise
    except RayError as error:
        msg = "the job does not answer: it has ended, or its controller is being restarted"
        raise UsageError(msg) from error
