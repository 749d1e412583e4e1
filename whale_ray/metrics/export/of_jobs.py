"""The metrics of a job as a whole, and of its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

from ..checkpoint_metrics import CheckpointMetrics
from .metric import Group, JobStatus, Metric, Subject, counter, seconds


def _job(job: JobStatus) -> Iterator[Subject]:
    yield Subject((), job)


def _checkpoints(job: JobStatus) -> Iterator[Subject]:
    if job.metrics.checkpoints is not None:
        yield Subject((), job.metrics.checkpoints)


def _snapshots_awaited(checkpoints: CheckpointMetrics) -> int:
    under_way = checkpoints.under_way
    return 0 if under_way is None else under_way.participants - under_way.snapshots


JOB = Group(
    "The job",
    (),
    _job,
    (
        Metric(
            "whale_ray_build_info",
            "Always 1; the label says the version of whale-ray.",
            lambda _: {version("whale-ray"): 1},
            by="version",
        ),
        Metric(
            "whale_ray_job_state",
            "1 for the state that the job is in, such as running or restarting; 0 for the others.",
            lambda job: {state: int(state == job.state) for state in sorted(job.states)},
            by="state",
        ),
        Metric(
            "whale_ray_job_attempt",
            "Number of the present attempt, 0 for the first; each restart adds one.",
            lambda job: job.metrics.attempt,
        ),
    ),
)

CHECKPOINTS = Group(
    "Checkpoints",
    (),
    _checkpoints,
    (
        counter("whale_ray_checkpoints_total", "Checkpoints that count.", lambda one: one.count),
        counter(
            "whale_ray_checkpoint_failures_total",
            "Checkpoints that failed; the job ran on.",
            lambda one: one.failures,
        ),
        Metric(
            "whale_ray_checkpoint_epoch",
            "Number of the last checkpoint that counts, 0 if there is none.",
            lambda one: one.epoch,
        ),
        Metric(
            "whale_ray_checkpoint_size_bytes",
            "What the last checkpoint consists of.",
            lambda one: one.nbytes,
            unit="bytes",
        ),
        Metric(
            "whale_ray_checkpoint_written_bytes",
            "What was written for the last checkpoint.",
            lambda one: one.new_nbytes,
            unit="bytes",
        ),
        Metric(
            "whale_ray_checkpoint_duration_seconds",
            "From the beginning of the last checkpoint until its manifest was in the store.",
            lambda one: seconds(one.duration_ms),
            unit="seconds",
        ),
        Metric(
            "whale_ray_checkpoint_age_seconds",
            "Since the last checkpoint that counts began.",
            lambda one: seconds(one.age_ms),
            unit="seconds",
        ),
        Metric(
            "whale_ray_checkpoint_alignment_p99_seconds",
            "From the beginning of a checkpoint until its markers had come everywhere, 99th "
            "percentile.",
            lambda one: seconds(one.aligned_p99_ms),
            unit="seconds",
        ),
        Metric(
            "whale_ray_checkpoint_under_way_seconds",
            "Since the checkpoint under way began; none if none is.",
            lambda one: seconds(None if one.under_way is None else one.under_way.age_ms),
            unit="seconds",
        ),
        Metric(
            "whale_ray_checkpoint_snapshots_awaited",
            "Snapshots that the checkpoint under way lacks yet; 0 if none is.",
            _snapshots_awaited,
        ),
    ),
)
