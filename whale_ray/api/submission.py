"""`run`, `submit` and `resume`: start jobs."""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, cast

from ..configs.errors import UsageError, WhaleError
from ..configs.loading import load_settings
from ..configs.settings import Settings
from ..control.job_states import ALIVE
from ..control.supervisor import Supervisor
from ..deployment.signals import draining_signals
from ..metrics.job_metrics import JobMetrics
from ..operators.arguments import check_bool
from ..operators.sources.base import Source
from ..operators.windows.durations import Duration
from ..plan.assignment import Assignment, job_is_bounded
from ..plan.logical import LogicalPlan, OperatorKind
from ..plan.preflight import check_outputs, preflight
from ..plan.rescaling import rescaled
from ..records.recorder import recorder_of
from ..transport.clock import Clock, SystemClock
from .checkpoints import CheckpointOptions, Where, as_resumed, load_job, save_for_resume
from .cluster_options import RayOptions
from .job import Job, JobRunner
from .job_requests import Decisions, JobRequest, NewJob, ResumedJob
from .submit_arguments import check_run, check_where
from .supervisor_runners import CallingThreadRunner, ThreadRunner
from .topology import Topology
from .topology.checks import describe_value
from .watch import Watch, watching

if TYPE_CHECKING:
    from ..deployment.processes.process_fleet import HostPlace

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
    checkpoints: str | Path | None = None,
    checkpoint_interval: Duration | None = None,
    checkpoint_timeout: Duration | None = None,
    restore: str | Path | None = None,
    restore_without: Collection[str] = (),
    optimize: bool = False,
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
            back-pressure of every operator.
        checkpoints: as for `submit`, like all that follow.
        checkpoint_interval: from one checkpoint to the next.
        checkpoint_timeout: for each step of a checkpoint.
        restore: where to continue.
        restore_without: operators that are gone.
        optimize: as for `submit`; trials run on processes, with one worker.

    Raises:
        WhaleError: the error with which the job failed.
        KeyboardInterrupt: a second Ctrl-C, which ends the job at once; nothing is published.
    """
    options = CheckpointOptions(
        checkpoints, checkpoint_interval, checkpoint_timeout, restore, restore_without, "run"
    )
    check_run(clock, watch, line, optimize)
    resolved = options.configured(_settings(settings)).with_overrides({"runtime.hosts": 1})
    clock = clock or SystemClock()
    logical, decisions = _optimized(topology, resolved, 1, optimize=optimize)
    assignment = NewJob.checked(logical, resolved, 1, options, decisions).assignment(resolved)
    from ..deployment.local_fleet import (
        LocalFleet,  # imports all modules of a worker, which `submit` does not need
    )

    runner = CallingThreadRunner(
        Supervisor(assignment, LocalFleet(clock), clock, recorder=recorder_of(assignment, clock))
    )
    job = _job_of(assignment, runner)
    job.decided = decisions
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
    checkpoints: str | Path | None = None,
    checkpoint_interval: Duration | None = None,
    checkpoint_timeout: Duration | None = None,
    restore: str | Path | None = None,
    restore_without: Collection[str] = (),
    optimize: bool = False,
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
        detach: let the job outlive this process (Ray only); see `whale-ray list` and `stop`. The
            call returns once the job runs or waits for room.
        queue: if other jobs hold the resources that the workers need, wait for them without limit
            (Ray only). Otherwise the job is refused after five seconds. In both cases a message
            names the jobs that hold the resources.
        runtime_env: Ray's runtime environment of the job's actors: env_vars, pip, working_dir, …
            (Ray only).
        checkpoints: the folder, or URL of an object store, in which the job keeps its state, so
            that it continues where it was after a failure; None: as in the settings, by default
            nowhere. All hosts must reach it.
        checkpoint_interval: from the beginning of one checkpoint to that of the next, such as
            "10 seconds"; unbounded jobs make their output visible as often.
        checkpoint_timeout: for all snapshots of a checkpoint to be written, and for each step after
            it; one that takes longer fails, and the job runs on.
        restore: where to continue: "latest", the newest checkpoint in that folder, if there is
            one; a folder, for the newest in that; or the path of a checkpoint or savepoint.
        restore_without: ids of operators that the topology no longer has, whose state is discarded.
        optimize: whether to measure first what the operators cost, in trials on processes of this
            machine that publish nothing, and to choose the batches, and the parallelism where it is
            not set, that carry most (Aeolus); `job.decisions` has every decision.

    Raises:
        UsageError: the topology cannot be planned or sent to workers, or cannot resume from there.
        ResourceError: there is not enough memory for the rings, the cluster lacks resources for the
            workers, or no cluster was found.
    """
    checkpointing = CheckpointOptions(
        checkpoints, checkpoint_interval, checkpoint_timeout, restore, restore_without
    )
    check_bool("submit", "optimize", optimize)
    resolved = checkpointing.configured(_settings(settings))
    on_ray = RayOptions(address, detach, queue, runtime_env)
    check_where(on, places, on_ray)
    logical, decisions = _optimized(topology, resolved, workers, optimize=optimize)
    if on == "processes":
        resolved = _hosts_of_places(resolved, places)
    request = NewJob.checked(logical, resolved, workers, checkpointing, decisions)
    job = _started(request, on, places, on_ray)
    job.decided = decisions
    return job


def _optimized(
    topology: Topology, settings: Settings, workers: int | None, *, optimize: bool
) -> tuple[LogicalPlan, Decisions]:
    """Return a topology with what the optimizer decided, if it is asked, and its decisions."""
    if not isinstance(topology, Topology):
        msg = (
            f"run and submit take a topology, not {describe_value(topology)}: pass the one that"
            " .source(…) was called on"
        )
        raise UsageError(msg)
    logical = topology.logical_plan()
    if not optimize:
        return logical, ()
    from ..tuning.applying import with_choices
    from ..tuning.optimizing import readable, tune

    preflight(logical, checkpoints=False, restores=False)
    with readable(logical, settings) as prepared:
        tuned = tune(prepared, settings, workers, rounds=1, report=_log.info)
    chosen = tuned.optimization
    changed = with_choices(logical, tuned.calibration.plan, chosen.choices)
    return changed, chosen.steps


def _started(
    request: JobRequest, on: Where, places: Sequence[HostPlace], options: RayOptions
) -> Job:
    """Start a job, and return it at once."""
    if on == "processes":
        return start_on_processes(request.assignment(request.settings), places)
    from .ray_submission import submit_to_ray

    _stop_earlier_job(request.logical.name)
    job = submit_to_ray(request, options, release)
    if not options.detach:
        _active[job.id] = job
    return job


def resume(
    path: str | Path,
    *,
    on: Where | None = None,
    address: str | None = None,
    workers: int | None = None,
    parallelism: Mapping[str, int] | None = None,
    take_over: bool = False,
    detach: bool = False,
    queue: bool = False,
    runtime_env: Mapping[str, Any] | None = None,
) -> Job:
    """Continue a job that was stopped or whose processes have all died; return the new job.

    The submitted topology is kept beside its checkpoints, so neither the script nor the machine on
    which it ran is needed. Its settings stay, and the new job takes checkpoints in their folder.

    Args:
        path: a folder of checkpoints, for the newest, or the path of a checkpoint or savepoint.
        on: as for `submit`, like all that follow; None: where it ran before.
        address: of a Ray cluster.
        workers: the number of worker processes; None: as before.
        parallelism: another number of instances by the ids of operators; those that are fused with
            one get the same. State moves by key.
        take_over: take the folder also from a job that uses it, which can then commit nothing more.
            It is not kept: the next `resume` asks again.
        detach: let the job outlive this process.
        queue: wait for resources.
        runtime_env: Ray's runtime environment.

    Raises:
        UsageError: there is no checkpoint, the job has finished, or `parallelism` names an operator
            that it does not have.
        TopologyError: an operator is to have more instances than there are virtual nodes.
        InputError: a file of the checkpoint is damaged or missing.
        OutputError: another job uses the folder, or an output has other columns by now.
    """
    before, ran_on, point, manifest = load_job(path)
    of_folder = {"checkpoints.url": point.url, "checkpoints.take_over": take_over}
    settings = before.settings.with_overrides(of_folder)
    logical = as_resumed(rescaled(before.plan, {} if parallelism is None else parallelism))
    check_outputs(logical)
    workers = before.plan.workers if workers is None else workers
    options = RayOptions(address, detach, queue, runtime_env)
    on = on or ran_on
    check_where(on, (), options)
    request = ResumedJob(logical, settings, workers, before, point, manifest.lineage)
    return _started(request, on, (), options)


def _hosts_of_places(settings: Settings, places: Sequence[HostPlace]) -> Settings:
    if not places:
        return settings
    hosts = settings.runtime.hosts or len(places)
    if hosts != len(places):
        msg = f"{len(places)} places for {hosts} hosts (runtime.hosts): name one for each"
        raise UsageError(msg)
    return settings.with_overrides({"runtime.hosts": hosts})


def start_on_processes(assignment: Assignment, places: Sequence[HostPlace] = ()) -> Job:
    """Start a job that is planned on processes of this machine, and return it at once."""
    from ..deployment.processes.process_fleet import ProcessFleet

    name = assignment.plan.name
    _stop_earlier_job(name)
    save_for_resume(assignment, "processes")
    clock = SystemClock()
    recorder = recorder_of(assignment, clock)
    supervisor = Supervisor(assignment, ProcessFleet(places), clock, recorder=recorder)
    runner = ThreadRunner(name, supervisor)
    job = _job_of(assignment, runner)
    try:
        _active[job.id] = job
        runner.start()
    except BaseException:  # such as Ctrl-C: nobody has got the job, so nobody could end it
        with suppress(Exception):
            job.abandon()
        if job.id in _active:  # it has not ended yet, or has not begun
            release(assignment)
        raise
    return job


def _job_of(assignment: Assignment, runner: JobRunner) -> Job:
    return Job(
        assignment.job_id,
        assignment.plan.name,
        runner,
        lambda: release(assignment),
        records=assignment.settings.records,
        bounded=job_is_bounded(assignment),
    )


def release(assignment: Assignment) -> None:
    """Forget a job that has ended, and release the resources that its sources hold for it."""
    _active.pop(assignment.job_id, None)
    for node in assignment.plan.logical.of_kind(OperatorKind.SOURCE):
        cast(Source, node.payload).release()


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
