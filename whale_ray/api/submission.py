"""`run` and `submit`: plan a topology and start it as a job."""

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
from ..plan.column_pruning import prune_columns
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
"""Jobs that end with this process, by id. They are kept here until their end, since a notebook cell
may submit a job without assigning it to a variable."""


def run(
    topology: Topology,
    *,
    settings: SettingsLike = None,
    clock: Clock | None = None,
    watch: TextIO | None = None,
    line: Callable[[JobMetrics], str] | None = None,
) -> Job:
    """Run a topology to its end in the calling thread, without Ray or Java, and return the job.

    This is the quickest way to try and to test a topology. All instances share one worker. Ctrl-C
    drains the job: its sources end, and all rows read so far are processed.

    Args:
        topology: the topology to run.
        settings: settings, or a mapping of overrides.
        clock: the source of time; by default the system's. With a virtual clock, waiting takes no
            time.
        watch: a stream such as `sys.stderr`, on which to print progress lines, as in `Job.wait`.
        line: returns the text of a progress line for the metrics; by default rate, lag and
            backpressure of every operator.

    Raises:
        WhaleError: the error with which the job failed.
        KeyboardInterrupt: a second Ctrl-C, which ends the job at once; nothing is published.
    """
    resolved = _settings(settings).with_overrides({"runtime.hosts": 1})
    clock = clock or SystemClock()
    assignment = _assign(topology, resolved, 1, needs_cluster=False)
    from ..deployment.local_fleet import (
        LocalFleet,  # imports all modules of a worker, which `submit` does not need
    )

    runner = CallingThreadRunner(Supervisor(assignment, LocalFleet(clock), clock))
    job = Job(assignment.job_id, topology.name, runner, lambda: release(assignment))
    lines = Watch(topology.name, watch, _WATCH_S)
    reporting = (
        nullcontext()
        if watch is None
        else watching(lines, lambda: job.report_progress(lines, line))
    )
    try:
        with draining_signals(runner.stop, interrupt=True), closing(lines), reporting:
            runner.run()
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
    """Start a topology and return its job at once.

    Args:
        topology: the topology to run.
        on: "ray": the workers are Ray actors; "processes": they are processes of this machine.
        address: the address of a running Ray cluster ("auto" finds it). None: the cluster that this
            process is connected to or finds, else a new one. A running cluster is neither stopped
            nor reconfigured.
        workers: the number of worker processes; None: as in the settings.
        settings: settings, or a mapping of overrides.
        places: with on="processes", the location of each of the `runtime.hosts` hosts. By default
            all are logical hosts of this machine.
        detach: let the job outlive this process (Ray only); see `whale-ray list` and `stop`.
        queue: if other jobs hold the resources that the workers need, wait for them without limit
            (Ray only). Otherwise the job is refused after five seconds. In both cases a message
            names the jobs that hold the resources.
        runtime_env: Ray's runtime environment of the job's actors: env_vars, pip, working_dir, …
            (Ray only).

    Raises:
        UsageError: the topology cannot be planned or sent to workers.
        ResourceError: there is not enough memory for the rings, the cluster lacks resources for the
            workers, or no cluster was found.
    """
    resolved = _settings(settings)
    if on == "processes":
        if detach:
            msg = "only a job on Ray can be detached; leave out on='processes'"
            raise UsageError(msg)
        if queue or runtime_env is not None:
            named = "queue" if queue else "runtime_env"
            msg = f"{named}= has an effect only on Ray; leave it out, or on='processes'"
            raise UsageError(msg)
        return _submit_to_processes(topology, resolved, workers, places)
    if places:
        msg = "places are for on='processes'; under Ray the hosts are its nodes"
        raise UsageError(msg)
    if on != "ray":
        msg = f"on={on!r} is not known; use on='ray' or on='processes'"
        raise UsageError(msg)
    from .ray_submission import RayOptions, submit_to_ray

    _stop_earlier_job(topology.name)
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
    _stop_earlier_job(topology.name)
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
    """Plan a topology for a Ray cluster; `nodes` has the node of each host."""
    return _assign(topology, settings, workers, nodes, needs_cluster=True)


def release(assignment: Assignment) -> None:
    """Forget a job that has ended, and release the resources that its sources hold for it."""
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
    unprepared = topology.logical_plan()
    preflight(unprepared)
    if not needs_cluster:
        _warn_of_requests(unprepared)
    logical = _prepare(prune_columns(unprepared), settings, needs_cluster)
    physical: PhysicalPlan = plan(logical, settings, workers, nodes=nodes)
    return Assignment(new_job_id(topology.name), physical, settings)


def _prepare(logical: LogicalPlan, settings: Settings, cluster: bool) -> LogicalPlan:
    """Make sources serializable (they may refer to objects of the driver), and configure sinks."""
    nodes = []
    for node in logical.nodes:
        payload = node.payload
        if node.kind is OperatorKind.SOURCE:
            payload = cast(Source, payload).materialize(cluster=cluster)
        elif node.kind is OperatorKind.SINK:
            payload = cast(Sink, payload).configured(settings).for_operator(node.id)
        nodes.append(replace(node, payload=payload))
    return replace(logical, nodes=tuple(nodes))


def _warn_of_requests(logical: LogicalPlan) -> None:
    """Log a warning if operators request Ray resources, which have no effect without Ray."""
    named = [f"{node.id!r} ({node.request.describe()})" for node in logical.nodes if node.request]
    if named:
        _log.warning(
            "topology %r: what %s asks Ray for has no effect without Ray",
            logical.name,
            ", ".join(named),
        )


def new_job_id(name: str) -> str:
    """Return a unique id, usable as the name of a file or an actor."""
    return f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')[:40]}-{secrets.token_hex(4)}"


def _settings(settings: SettingsLike) -> Settings:
    if isinstance(settings, Settings):
        return settings
    return load_settings(overrides=settings)


def _stop_earlier_job(name: str) -> None:
    """In an interactive session, cancel the job of the same name from an earlier run of a cell."""
    if not hasattr(sys, "ps1") and "ipykernel" not in sys.modules:
        return
    for job in list(_active.values()):
        if job.state not in ALIVE:
            del _active[job.id]
        elif job.name == name:
            with suppress(WhaleError):  # an error of the earlier job does not concern the new one
                job.stop(drain=False)


@atexit.register
def _cancel_jobs_at_exit() -> None:
    """Cancel jobs that still run: a job that is not detached ends with its driver."""
    for job in list(_active.values()):
        with suppress(Exception):  # its controller may be gone, and the process ends anyway
            if job.state in ALIVE:
                job.abandon()


class CallingThreadRunner(JobRunner):
    """Runs a job's supervisor in the calling thread; other threads may call its other methods."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._outcome: JobOutcome | None = None

    def run(self) -> None:
        """Run the job to its end."""
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

    def reconfigure(self, request: ReconfigurationRequest) -> None:
        """See `JobRunner.reconfigure`."""
        self._supervisor.reconfigure(request)

    def join(self, timeout_s: float) -> JobOutcome | None:
        """Return the outcome at once; None while `run` has not returned."""
        return self._outcome
