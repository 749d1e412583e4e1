"""The controller's actor, one per job: runs the supervisor of the job's member actors.

It is named `whale-ray:JOB:controller` in the namespace `whale-ray`, so that `whale-ray list` and
`stop` find it. `JobController` makes the decisions; the actor is only where it runs.
"""

from __future__ import annotations

import logging
import os
import pickle
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import cloudpickle
import ray
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup

from ...configs.errors import JobError, UsageError, WhaleError
from ...control.job_states import QUEUED
from ...control.outcome import JobOutcome
from ...control.supervisor import Supervisor
from ...metrics.job_metrics import JobMetrics
from ...plan.assignment import Assignment
from ...records.recorder import recorder_of
from ...tasks.printed import Fetched
from ...transport.clock import Clock, SystemClock
from ..envelope import unseal
from ..signals import leave_stops_to_the_controller
from .followers import Followers
from .ray_fleet import NAMESPACE, RayFleet, kill_all, member_name
from .ray_journal import RayJournal, fetch_envelope, forget
from .ray_metrics import INTERVAL_S, RayExport
from .ray_output import ActorOutput, fetched
from .ray_room import give_back

THREADS = 8
RESTARTS_MAX = 5
"""How often Ray restarts a controller that has died; it resumes from its journal."""

_ROOM_POLL_S = 1.0
_START_POLL_S = 0.05
_STARTED = frozenset({"running", "draining", "stopping", QUEUED})
"""The states of a job that runs, or will once there is room for it."""
_LEAVE_S = 10.0
"""How long the actor of a detached job that has ended waits for its driver to hear of it."""

_log = logging.getLogger(__name__)


class ControllerActor:
    """Runs a job's supervisor on a fleet of member actors that the driver created.

    `nodes` has the id of each host's Ray node. `group` is the placement group of the workers, whose
    resources Ray may not have given yet. `environment` has variables that hold here too.
    `dashboard_url` comes from the driver: Ray tells its actors the default one, even without any.
    """

    def __init__(
        self,
        job_id: str,
        detached: bool,
        nodes: Sequence[str],
        group: PlacementGroup | None,
        environment: Mapping[str, str],
        dashboard_url: str,
    ) -> None:
        os.environ.update(environment)
        leave_stops_to_the_controller()  # its driver calls `stop`
        self._job_id = job_id
        self._group = group
        self._dashboard_url = dashboard_url
        self._detached = detached
        self._waits_for_room = False
        self._stopped = False
        self._nodes = nodes
        self._name = job_id
        self._workers = 0
        self._members: list[ActorHandle[Any]] = []
        self._supervisor: Supervisor | None = None
        self._refused: WhaleError | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._ran = threading.Event()  # and so has ended
        self._failure: WhaleError | None = None
        self._left = threading.Event()  # by the driver
        self._told_ns: int | None = None  # when the driver was answered
        self._followers = Followers()
        self._outcome: bytes | None = None  # pickled
        self._output: ActorOutput | None = None
        try:
            envelope = fetch_envelope(job_id)
            self._output = ActorOutput("controller", envelope)
            self._supervisor = self._make_supervisor(unseal(envelope))
        except WhaleError as error:
            self._refused = error  # not raised: Ray would only report that an actor died
        except Exception as error:  # noqa: BLE001  # as above
            self._refused = JobError(f"job {job_id!r} cannot be led: {error}")
        if detached and ray.get_runtime_context().was_current_actor_reconstructed:
            self.leave()  # the driver may be gone
            self._begin_detached()  # the former process's thread is gone; Ray does not call again

    def _make_supervisor(self, assignment: Assignment) -> Supervisor:
        self._name = assignment.plan.name
        self._workers = assignment.plan.workers
        self._members = [
            ray.get_actor(member_name(assignment.plan, self._job_id, index), namespace=NAMESPACE)
            for index in range(assignment.plan.members)
        ]
        clock = SystemClock()
        timeout_ns = assignment.settings.runtime.start_timeout_ms * 1_000_000
        fleet = RayFleet(self._members, self._nodes, timeout_ns, clock)
        recorder = recorder_of(assignment, clock, self._dashboard_url, detached=self._detached)
        return Supervisor(assignment, fleet, clock, RayJournal(self._job_id), recorder)

    def run(self) -> bytes:
        """Run the job to its end; return the pickled outcome.

        Ray calls it again when it has restarted the actor; the job then continues where it was.
        """
        try:
            self._outcome = cloudpickle.dumps(self._run())
            self._followers.wait()  # its driver ends this actor once it has the outcome
            return self._outcome
        finally:
            self._ended.set()
            if self._output is not None:
                self._output.close()

    def output(self, last_answer: int) -> Fetched:
        """Return what sinks printed here; see `MemberActor.output`."""
        return fetched(self._output, last_answer)

    def outcome(self, follower: str) -> bytes | None:
        """Return the pickled outcome; None while the job runs: ask again soon.

        Any driver may ask, by a name of its own, and then calls `has_outcome`: the actor stays for
        a limited time until it has.
        """
        self._followers.ask(follower)
        return self._outcome

    def has_outcome(self, follower: str) -> None:
        """Learn that a driver has the outcome."""
        self._followers.leave(follower)

    def _run(self) -> JobOutcome:
        if self._supervisor is None:
            return self._without_a_run("failed", self._refused)
        if not self._has_room():
            kill_all(self._members)  # no supervisor has begun that would end them
            forget(self._job_id)
            return self._without_a_run("cancelled", None)
        threading.Thread(target=self._export, name="metrics", daemon=True).start()
        return self._supervisor.run()

    def _without_a_run(self, state: str, error: WhaleError | None) -> JobOutcome:
        none = JobMetrics((), 0.0, 0)
        return JobOutcome(state, {}, none, 0.0, 0, self._workers, error)

    def _has_room(self) -> bool:
        """Wait until Ray has given the workers' resources; False if the job is stopped before."""
        while self._group is not None and not self._group.wait(_ROOM_POLL_S):
            self._waits_for_room = True
            if self._stopped:
                return False
        self._waits_for_room = False
        return True

    def _export(self) -> None:
        """Publish the job's figures to Ray at intervals, until it has ended."""
        assert self._supervisor is not None
        export = RayExport(self._supervisor.reader)
        while not self._ended.wait(INTERVAL_S):
            export.publish()

    def start_detached(self) -> None:
        """Run the job in a thread, which cleans up when the job has ended.

        Returns once the job runs or waits for room, so that the driver knows it before it exits,
        and then calls `leave`. Raises the WhaleError with which the job failed before, if it did.
        """
        if self._refused is not None:
            raise self._refused
        self._begin_detached()
        while not self._ran.wait(_START_POLL_S) and self.state() not in _STARTED:
            pass
        self._told_ns = SystemClock().monotonic_ns()
        if self._failure is not None:
            raise self._failure

    def leave(self) -> None:
        """Learn that the driver has heard how the job started."""
        self._left.set()

    def _begin_detached(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_detached, daemon=True)
            self._thread.start()

    def _run_detached(self) -> None:
        try:
            outcome = self._run()
            self._failure = outcome.error
            self._outcome = cloudpickle.dumps(outcome)
            how = outcome.state if outcome.error is None else f"{outcome.state}: {outcome.error}"
            _log.warning(
                "job %s %s", self._job_id, how
            )  # goes to this actor's log, which Ray keeps
        finally:
            with ExitStack() as last:  # run each of these, the last one first, even if others raise
                last.callback(self._ended.set)
                last.callback(self._end_myself)
                last.callback(self._followers.wait)
                last.callback(self._await_driver, SystemClock())
                last.callback(self._ran.set)
                if self._group is not None:
                    last.callback(give_back, self._group, SystemClock())

    def _await_driver(self, clock: Clock) -> None:
        """Wait until the driver has left, unless it was answered long ago: then it was killed."""
        told_ns = clock.monotonic_ns() if self._told_ns is None else self._told_ns
        since_s = (clock.monotonic_ns() - told_ns) / 1e9
        self._left.wait(max(0.0, _LEAVE_S - since_s))

    def _end_myself(self) -> None:
        ray.kill(ray.get_actor(controller_name(self._job_id), namespace=NAMESPACE))

    def wait_until_gone(self, timeout_s: float) -> None:
        """Wait that long: the call fails when this actor is gone, which is the end of the job.

        The caller waits no longer, and a call without a limit would keep one of the few threads.
        """
        threading.Event().wait(timeout_s)

    def describe(self) -> tuple[str, str, str]:
        """Return the job's id, name and state."""
        return self._job_id, self._name, self.state()

    def state(self) -> str:
        """Return the job's state."""
        if self._waits_for_room:
            return "stopping" if self._stopped else QUEUED
        return "failed" if self._supervisor is None else self._supervisor.state

    def metrics(self) -> bytes:
        """Return the pickled counters."""
        none = JobMetrics((), 0.0, 0)
        return cloudpickle.dumps(none if self._supervisor is None else self._supervisor.metrics())

    def reconfigure(self, request: bytes) -> None:
        """Ask for other trees or another addressing; `request` is pickled."""
        if self._supervisor is not None:
            self._supervisor.reconfigure(pickle.loads(request))  # noqa: S301  # from our own driver

    def stop_with_savepoint(self) -> None:
        """Ask for the end after a savepoint; raises UsageError without checkpoints."""
        self._leading.stop_with_savepoint()

    def request_savepoint(self) -> int:
        """Ask for a savepoint, return its number; raises UsageError without checkpoints."""
        return self._leading.request_savepoint()

    def savepoint_of(self, number: int) -> str | None:
        """Return where the savepoint of a number is; None as long as there is none."""
        return self._leading.savepoint_of(number)

    @property
    def _leading(self) -> Supervisor:
        if self._supervisor is None:
            msg = f"job {self._job_id!r} could not be started"
            raise UsageError(msg)
        return self._supervisor

    def stop(self, drain: bool) -> None:
        """Ask for the end."""
        self._stopped = True
        if self._supervisor is not None:
            self._supervisor.stop(drain)


def controller_name(job_id: str) -> str:
    """Return the name of a job's controller actor."""
    return f"whale-ray:{job_id}:controller"


def job_of(actor_name: str) -> str | None:
    """Return the job whose controller bears `actor_name`, or None if it is no controller's."""
    parts = actor_name.split(":")
    is_ours = len(parts) == 3 and parts[0] == "whale-ray" and parts[2] == "controller"
    return parts[1] if is_ours else None
