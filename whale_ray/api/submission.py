"""`run` and `submit`: how a topology becomes a job."""

from __future__ import annotations

import atexit
import logging
import re
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

from ..configs.errors import UsageError, WhaleError
from ..configs.loading import load_settings
from ..configs.settings import Settings
from ..control.supervisor import ALIVE, JobOutcome, Supervisor
from ..deployment.signals import draining_signals
from ..metrics.job_metrics import JobMetrics
from ..operators.sinks.base import Sink
from ..operators.sources.base import Source
from ..plan.assignment import (
    Assignment,
)
from ..plan.logical import LogicalPlan, OperatorKind
from ..plan.physical import PhysicalPlan
from ..plan.planner import plan
from ..plan.preflight import preflight
from ..transport.clock import Clock, SystemClock
from .job import Job, JobRunner, ThreadRunner
from .watch import Watch, watching

if TYPE_CHECKING:
    from ..deployment.processes.process_fleet import HostPlace
    from ..multicast.tree_state import (
        ReconfigurationRequest,
    )
    from ..plan.requests import ClusterNode
    from .topology import Topology

SettingsLike = Settings | Mapping[str, object] | None
"""Settings, or overrides of the defaults: `{"transport.mms_bytes": 65536}`."""

_log = logging.getLogger(__name__)

_WATCH_S = 1.0

_active: dict[str, Job] = {}
"""Jobs that end with this process, by id. Held until their end is known: a notebook's cell may
submit a job and keep nothing of it."""


def run(
    topology: Topology,
    *,
    settings: SettingsLike = None,
    clock: Clock | None = None,
    watch: TextIO | None = None,
    line: Callable[[JobMetrics], str] | None = None,
) -> Job:
    """Run a topology to its end in the calling thread, without Ray or Java, and return the job.

    The quickest way to try and to test. All instances share one worker. Ctrl-C drains: the
    sources end, what was read comes out. With a virtual clock waiting takes no time.

    Args:
        topology: what to run.
        settings: settings, or a mapping of overrides.
        clock: where time comes from; the system's if left out.
        watch: a stream such as `sys.stderr`; lines on it tell how far the job is, as in `Job.wait`.
        line: makes these lines of the metrics; by default they tell of every operator.

    Raises:
        WhaleError: what the job failed with.
        KeyboardInterrupt: a second Ctrl-C, at once; nothing is published.
    """
    resolved = _settings(settings).with_overrides({"runtime.hosts": 1})
    clock = clock or SystemClock()
    assignment = _assign(topology, resolved, 1, needs_cluster=False)
    from ..deployment.local_fleet import (
        LocalFleet,  # all that a worker needs, which `submit` does not
    )

    here = _Here(Supervisor(assignment, LocalFleet(clock), clock))
    job = Job(assignment.job_id, topology.name, here, lambda: release(assignment))
    lines = Watch(topology.name, watch, _WATCH_S)
    looking = nullcontext() if watch is None else watching(lines, lambda: job.look(lines, line))
    try:
        with draining_signals(here.stop, interrupt=True), closing(lines), looking:
            here.run()
    except BaseException:
        release(assignment)
        raise
    return job.wait(watch=watch, line=line)


def submit(
    topology: Topology,
    *,
    on: Literal["ray", "processes"] = "ray",
    address: str | None = None,
    workers: int | None = None,
    settings: SettingsLike = None,
    detach: bool = False,
    places: Sequence[HostPlace] = (),
    queue: bool = False,
    runtime_env: Mapping[str, Any] | None = None,
) -> Job:
    """Start a topology and return at once.

    Args:
        topology: what to run.
        on: Ray actors, or plain processes of this host.
        address: of a running Ray ("auto" finds it); None joins the one this process is connected
            to or finds, else starts one. Ray is neither stopped nor reconfigured.
        workers: worker processes; None leaves it to the settings.
        settings: settings, or a mapping of overrides.
        places: with on="processes", one for each of `runtime.hosts`: where it lives. Without it all
            are logical hosts of this machine.
        detach: let the job outlive this process (Ray only); see `whale-ray list` and `stop`.
        queue: where others hold the room that the workers need, wait for it as long as it takes
            (Ray only). Otherwise the job is refused after five seconds; both say who holds it.
        runtime_env: of the job's actors, as Ray takes it: env_vars, pip, working_dir, … (Ray only).

    Raises:
        UsageError: the topology cannot be planned or sent to workers.
        ResourceError: there is no room for its rings or its workers, or no Ray.
    """
    resolved = _settings(settings)
    if on == "processes":
        if detach:
            msg = "only a job on Ray can be detached; leave out on='processes'"
            raise UsageError(msg)
        if queue or runtime_env is not None:
            named = "queue" if queue else "runtime_env"
            msg = f"{named}= means something on Ray alone; leave it out, or on='processes'"
            raise UsageError(msg)
        return _submit_to_processes(topology, resolved, workers, places)
    if places:
        msg = "places are for on='processes'; under Ray the hosts are its nodes"
        raise UsageError(msg)
    if on != "ray":
        msg = f"on={on!r} is not known; use on='ray' or on='processes'"
        raise UsageError(msg)
    from .ray_submission import RayOptions, submit_to_ray

    _replace_earlier(topology.name)
    options = RayOptions(address, detach, queue, runtime_env)
    job = submit_to_ray(topology, resolved, workers, options, assign, release)
    if not detach:
        _active[job.id] = job
    return job


def _submit_to_processes(
    topology: Topology, settings: Settings, workers: int | None, places: Sequence[HostPlace]
) -> Job:
    from ..deployment.processes.process_fleet import ProcessFleet

    if places:
        hosts = settings.runtime.hosts or len(places)
        if hosts != len(places):
            msg = f"{len(places)} places for {hosts} hosts (runtime.hosts): name one for each"
            raise UsageError(msg)
        settings = settings.with_overrides({"runtime.hosts": hosts})
    assignment = _assign(topology, settings, workers, needs_cluster=False)
    _replace_earlier(topology.name)
    supervisor = Supervisor(assignment, ProcessFleet(places), SystemClock())
    runner = ThreadRunner(
        topology.name,
        supervisor.run,
        lambda: supervisor.state,
        supervisor.metrics,
        supervisor.stop,
        supervisor.reconfigure,
    )
    job = Job(assignment.job_id, topology.name, runner, lambda: release(assignment))
    _active[job.id] = job
    return job


def assign(
    topology: Topology, settings: Settings, workers: int | None, nodes: Sequence[ClusterNode]
) -> Assignment:
    """Plan a topology for a cluster, `nodes` has one of each host; its sources may use Ray."""
    return _assign(topology, settings, workers, nodes, needs_cluster=True)


def release(assignment: Assignment) -> None:
    """Forget a job that has ended, and give back what its sources made for it."""
    _active.pop(assignment.job_id, None)
    for node in assignment.plan.logical.of_kind(OperatorKind.SOURCE):
        cast(Source, node.payload).release()


def _assign(
    topology: Topology,
    settings: Settings,
    workers: int | None,
    nodes: Sequence[ClusterNode] = (),
    *,
    needs_cluster: bool,
) -> Assignment:
    written = topology.logical_plan()
    preflight(written)
    if not needs_cluster:
        _tell_of_requests(written)
    logical = _prepare(written, settings, needs_cluster)
    physical: PhysicalPlan = plan(logical, settings, workers, nodes=nodes)
    return Assignment(new_job_id(topology.name), physical, settings)


def _prepare(logical: LogicalPlan, settings: Settings, cluster: bool) -> LogicalPlan:
    """Let sources turn what only the driver has into what travels, and sinks take the settings."""
    nodes = []
    for node in logical.nodes:
        payload = node.payload
        if node.kind is OperatorKind.SOURCE:
            payload = cast(Source, payload).materialize(cluster=cluster)
        elif node.kind is OperatorKind.SINK:
            payload = cast(Sink, payload).configured(settings)
        nodes.append(replace(node, payload=payload))
    return replace(logical, nodes=tuple(nodes))


def _tell_of_requests(logical: LogicalPlan) -> None:
    """Say that what operators ask Ray for means nothing here."""
    asking = [f"{node.id!r} ({node.request.describe()})" for node in logical.nodes if node.request]
    if asking:
        _log.warning(
            "topology %r: what %s asks Ray for means nothing without Ray",
            logical.name,
            ", ".join(asking),
        )


def new_job_id(name: str) -> str:
    """Return a unique id, fit for the name of a file or an actor."""
    return f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')[:40]}-{secrets.token_hex(4)}"


def _settings(settings: SettingsLike) -> Settings:
    if isinstance(settings, Settings):
        return settings
    return load_settings(overrides=settings)


def _replace_earlier(name: str) -> None:
    """In a notebook or an interactive session, end the job that an earlier run of a cell left."""
    if not hasattr(sys, "ps1") and "ipykernel" not in sys.modules:
        return
    for job in list(_active.values()):
        if job.state not in ALIVE:
            del _active[job.id]
        elif job.name == name:
            with suppress(WhaleError):  # how the earlier one ends is not the new one's matter
                job.stop(drain=False)


@atexit.register
def _end_with_the_driver() -> None:
    """End what still runs: a job that was not detached dies with its driver."""
    for job in list(_active.values()):
        with suppress(Exception):  # what led it may be gone, and nobody is left to be told
            if job.state in ALIVE:
                job.abandon()


class _Here(JobRunner):
    """A job that runs in the calling thread; other threads may ask how far it is."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._outcome: JobOutcome | None = None

    def run(self) -> None:
        """Run it to its end."""
        self._outcome = self._supervisor.run()

    def state(self) -> str:
        """See `JobRunner.state`."""
        return self._supervisor.state

    def metrics(self) -> JobMetrics:
        """See `JobRunner.metrics`."""
        return self._supervisor.metrics()

    def stop(self, drain: bool) -> None:
        """See `JobRunner.stop`."""
        self._supervisor.stop(drain)

    def wish(self, wish: ReconfigurationRequest) -> None:
        """See `JobRunner.wish`."""
        self._supervisor.reconfigure(wish)

    def join(self, timeout_s: float) -> JobOutcome | None:
        """Return how it ended; nobody else waits for it."""
        return self._outcome
