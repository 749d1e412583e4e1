"""Shared by the commands of the applications: options, Spark, running the job, printing the result.

Steps and progress go to standard error, the result to standard output.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ...cli.running import start_job
from ...configs.errors import SparkFailedError
from ...configs.extras import require_extra
from ...configs.json_text import json_text
from ...transport.clock import SystemClock
from .phases import Phases
from .report import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ...api.job import Job
    from ...api.topology import Topology
    from ...configs.settings import Settings
    from ...control.outcome import JobOutcome
    from ...metrics.job_metrics import JobMetrics
    from ...metrics.operator_metrics import OperatorMetrics
    from ...operators.sinks.base import Sink, SinkResult
    from ...operators.sources.base import Source

__all__ = [
    "ProgressLine",
    "add_on_bad_rows",
    "add_result_options",
    "check_spark",
    "describe_run",
    "kept_input_folders",
    "log_early_stop",
    "log_step",
    "parquet_sink",
    "print_result",
    "progress_line",
    "record_phases",
    "run_job",
    "save_as_files",
    "spark_session",
]


ProgressLine: TypeAlias = "Callable[[JobMetrics], str]"


def add_on_bad_rows(group: argparse._ArgumentGroup, rows: str = "rows") -> None:
    """Add the option `--on-bad-rows`; its help text calls the affected rows `rows`."""
    group.add_argument(
        "--on-bad-rows",
        choices=("drop", "fail"),
        default="drop",
        help=f"{rows} that cannot be used: leave out and count (default), or refuse",
    )


def add_result_options(
    parser: argparse.ArgumentParser, *output: str, **how: Any
) -> argparse._ArgumentGroup:
    """Add the options for the result: output folder, `--overwrite` and `--json`.

    Args:
        parser: receives the options.
        output: names of the option for the output folder.
        how: further arguments of `add_argument` for that option.

    Returns:
        The group, for more options.
    """
    group = parser.add_argument_group("result")
    group.add_argument(*output, metavar="DIR", **how)
    group.add_argument("--overwrite", action="store_true", help="replace an output of before")
    group.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return group


def log_step(application: str, step: str) -> None:
    """Write the next step to standard error."""
    sys.stderr.write(f"{application}: {step}\n")
    sys.stderr.flush()


def log_early_stop(application: str, *results: SinkResult) -> None:
    """Write that the job stopped before the end of its input, and where the partial results are."""
    places = " and ".join(result.path for result in results if result.path is not None)
    log_step(application, f"stopped early: the results until then are in {places or 'memory'}")


def print_result(result: Mapping[str, Any], shown: str, *, as_json: bool) -> None:
    """Print the result: `shown` for people, then one line of JSON for programs if `as_json`."""
    sys.stdout.write(f"{shown}\n")
    if as_json:
        sys.stdout.write(json_text(result) + "\n")


def describe_run(
    options: argparse.Namespace,
    command: Sequence[str],
    outcome: JobOutcome,
    sink_id: str,
    *,
    rows_in: Mapping[str, int],
    rows_rejected: Mapping[str, int],
    streamed: int,
    phases: Phases,
    more_settings: Mapping[str, object],
) -> Run:
    """Return the report of a job that has ended, with the latency of the sink `sink_id`."""
    sink = outcome.metrics.operator(sink_id)
    return Run(
        command=shlex.join(command),
        rows_in=rows_in,
        rows_rejected=rows_rejected,
        streamed=streamed,
        seconds=outcome.seconds,
        restarts=outcome.restarts,
        latency_ms=(sink.latency_p50_ms, sink.latency_p99_ms),
        phases_s=phases.seconds,
        more_settings={
            "on": options.on,
            "workers": outcome.workers,
            "data": options.data,
            **more_settings,
        },
    )


def parquet_sink(options: argparse.Namespace, default: str | None, path: str | Path) -> Sink:
    """Return a Parquet sink; existing output in the default folder is replaced.

    Raises:
        OutputError: another folder has output already, and `--overwrite` is not given.
    """
    from ... import sinks

    sink = sinks.parquet(str(path), overwrite=options.overwrite or options.output == default)
    sink.check()  # before minutes of preparation
    return sink


def check_spark(what: str, otherwise: str) -> None:
    """Check that pyspark and Java are installed; raises ResourceError.

    Args:
        what: what needs Spark, such as an option.
        otherwise: how to run without Spark.
    """
    require_extra("spark", what, otherwise)
    from ...spark.java import find_java

    find_java()


@contextmanager
def spark_session(
    application: str,
    phases: Phases,
    settings: Settings,
    *,
    on_ray: bool = False,
    address: str | None = None,
) -> Iterator[SparkSession]:
    """Start Spark, on Ray or locally, and stop it at the end of the block; both are timed phases.

    The first run on a machine also stores an archive of Spark's classes, for faster later starts.

    Raises:
        SparkFailedError: Spark raised an error within the block; one line, with the file if known.
    """
    from ... import spark
    from ...spark import class_archive

    name = "Ray and Spark" if on_ray else "Spark"
    end_of_start = phases.begin(f"start of {name}")
    if on_ray:
        log_step(application, "starting Ray and Spark (10 to 20 s)")
        started = spark.spark_on_ray(application, settings.spark, address)
    else:
        log_step(application, "starting Spark (3 to 8 s)")
        started = spark.spark_locally(application, settings.spark)
    with started as session, _java_error_in_one_line():
        end_of_start()
        yield session
        end_of_end = phases.begin(f"end of {name}")
    end_of_end()
    if class_archive.is_recorded():
        log_step(application, "keeping Spark's classes for later starts (once, 10 to 30 s)")
        with phases.phase("keeping Spark's classes"):
            class_archive.make_archive()


@contextmanager
def _java_error_in_one_line() -> Iterator[None]:
    """Convert an error from Java into SparkFailedError, while Java still runs and has its text."""
    from ...spark.java_errors import is_of_java, reason_of

    try:
        yield
    except Exception as error:
        if not is_of_java(error):
            raise
        msg = f"Spark failed: {reason_of(error)}"
        raise SparkFailedError(msg) from error


def run_job(
    phases: Phases,
    topology: Topology,
    options: argparse.Namespace,
    settings: Settings,
    line: ProgressLine,
) -> Job:
    """Start a job and wait for its end, see `start_job`; not timed if the job is detached."""
    clock = SystemClock()
    since_ns = clock.monotonic_ns()
    job = start_job(topology, options, settings, line)
    if not options.detach:
        record_phases(phases, job, (clock.monotonic_ns() - since_ns) / 1e9)
    return job


def record_phases(phases: Phases, job: Job, seconds: float) -> None:
    """Record a job's total `seconds` as two phases: streaming, and the workers' start and end."""
    streaming_s = job.outcome().seconds
    phases.add("start and end of the workers", max(0.0, seconds - streaming_s))
    phases.add("streaming", streaming_s)


def kept_input_folders(options: argparse.Namespace, *names: str) -> list[Path]:
    """Return the folders for a detached job's prepared input, beside its output folder.

    Raises:
        OutputError: a folder has content that `save_as_files` has not written.
    """
    from ...operators.sinks.staging import OutputFolder

    folder = Path(f"{options.output}-input").absolute()
    paths = [folder / name for name in names]
    for path in paths:
        OutputFolder(str(path), overwrite=True).check()
    return paths


def check_detached(options: argparse.Namespace, *names: str) -> None:
    """Check, before the input is prepared, that a detached job can outlive this command.

    Raises:
        OutputError: see `kept_input_folders`.
        UsageError, ResourceError: see `check_outlives_process`.
    """
    from ...ray_bridge.session import check_outlives_process

    kept_input_folders(options, *names)
    check_outlives_process(options.address)


def save_as_files(frame: DataFrame, path: Path) -> Source:
    """Write a DataFrame to `path`, from `kept_input_folders`; return a source that reads it.

    The source needs no Spark.
    """
    from ... import sources
    from ...operators.sinks.manifest import write_manifest

    frame.write.mode("overwrite").parquet(str(path))
    write_manifest(str(path), sorted(os.listdir(path)))
    return sources.parquet(str(path))


def progress_line(
    needed: Collection[str], shown: Callable[[Mapping[str, OperatorMetrics]], str]
) -> ProgressLine:
    """Return a function that formats a job's metrics as a progress line.

    Args:
        needed: ids of the operators in the line; it stays empty until all of them have metrics.
        shown: formats operator id → metrics.
    """

    def line(metrics: JobMetrics) -> str:
        by_id = {operator.operator_id: operator for operator in metrics.operators}
        return shown(by_id) if by_id.keys() >= set(needed) else ""

    return line
