"""What the commands of the applications have in common.

The steps and the progress go to standard error, the result to standard output.
"""

from __future__ import annotations

import argparse
import json
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
from ...transport.clock import SystemClock
from .phases import Phases
from .report import Run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ...api.job import Job
    from ...api.topology import Topology
    from ...configs.settings import Settings
    from ...control.supervisor import JobOutcome
    from ...metrics.job_metrics import JobMetrics
    from ...metrics.operator_metrics import OperatorMetrics
    from ...operators.sinks.base import Sink, SinkResult
    from ...operators.sources.base import Source

__all__ = [
    "ProgressLine",
    "add_on_bad_rows",
    "add_result",
    "check_spark",
    "kept_as_files",
    "kept_input",
    "parquet_sink",
    "progress",
    "run_of",
    "say",
    "say_stopped",
    "spark_for",
    "stream",
    "tell",
    "told_phases",
]


ProgressLine: TypeAlias = "Callable[[JobMetrics], str]"


def add_on_bad_rows(group: argparse._ArgumentGroup, rows: str = "rows") -> None:
    """Add `--on-bad-rows`; `rows` says which."""
    group.add_argument(
        "--on-bad-rows",
        choices=("drop", "fail"),
        default="drop",
        help=f"{rows} that cannot be used: leave out and count (default), or refuse",
    )


def add_result(
    parser: argparse.ArgumentParser, *output: str, **how: Any
) -> argparse._ArgumentGroup:
    """Add what becomes of the result, and return the group; `output` names the folder's option."""
    group = parser.add_argument_group("result")
    group.add_argument(*output, metavar="DIR", **how)
    group.add_argument("--overwrite", action="store_true", help="replace an output of before")
    group.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return group


def say(application: str, step: str) -> None:
    """Tell what comes next."""
    sys.stderr.write(f"{application}: {step}\n")
    sys.stderr.flush()


def say_stopped(application: str, *results: SinkResult) -> None:
    """Tell that a job was stopped before it had read its input, and where what it had read is."""
    places = " and ".join(result.path for result in results if result.path is not None)
    say(application, f"stopped early: what had been read until then is in {places or 'memory'}")


def tell(result: Mapping[str, Any], shown: str, *, as_json: bool) -> None:
    """Write a result, as people read it and, if wanted, as programs do."""
    sys.stdout.write(f"{shown}\n")
    if as_json:
        sys.stdout.write(json.dumps(result) + "\n")


def run_of(
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
    """Return what there is to say of a job that has ended; the latency is that of a sink."""
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
    """Return a sink that can be written to; an output at the default place is replaced.

    Raises:
        OutputError: there is an output that must not be replaced.
    """
    from ... import sinks

    sink = sinks.parquet(str(path), overwrite=options.overwrite or options.output == default)
    sink.check()  # before minutes of preparation
    return sink


def check_spark(what: str, otherwise: str) -> None:
    """Look for all that Spark needs; raises ResourceError.

    Args:
        what: what needs it, such as the option that asks for it.
        otherwise: how to do without.
    """
    require_extra("spark", what, otherwise)
    from ...spark.java import find_java

    find_java()


@contextmanager
def spark_for(
    application: str,
    phases: Phases,
    settings: Settings,
    *,
    on_ray: bool = False,
    address: str | None = None,
) -> Iterator[SparkSession]:
    """Start Spark, on Ray or here, and end it on leaving; both are phases.

    The first time, a phase more keeps Spark's classes for later starts.

    Raises:
        SparkFailedError: what is asked of Spark fails; in one line, with the file if it is one.
    """
    from ... import spark
    from ...spark import class_archive

    name = "Ray and Spark" if on_ray else "Spark"
    end_of_start = phases.begin(f"start of {name}")
    if on_ray:
        say(application, "starting Ray and Spark (10 to 20 s)")
        started = spark.spark_on_ray(application, settings.spark, address)
    else:
        say(application, "starting Spark (3 to 8 s)")
        started = spark.spark_locally(application, settings.spark)
    with started as session, _told_in_one_line():
        end_of_start()
        yield session
        end_of_end = phases.begin(f"end of {name}")
    end_of_end()
    if class_archive.is_recorded():
        say(application, "keeping Spark's classes for later starts (once, 10 to 30 s)")
        with phases.phase("keeping Spark's classes"):
            class_archive.make_archive()


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    """Turn errors of Java into one of ours, while Java can still be asked for their text."""
    from ...spark.java_errors import is_of_java, reason_of

    try:
        yield
    except Exception as error:
        if not is_of_java(error):
            raise
        msg = f"Spark failed: {reason_of(error)}"
        raise SparkFailedError(msg) from error


def stream(
    phases: Phases,
    topology: Topology,
    options: argparse.Namespace,
    settings: Settings,
    line: ProgressLine,
) -> Job:
    """Start a job and wait for its end, as `start_job` does; a detached one has no phases."""
    clock = SystemClock()
    since_ns = clock.monotonic_ns()
    job = start_job(topology, options, settings, line)
    if not options.detach:
        told_phases(phases, job, (clock.monotonic_ns() - since_ns) / 1e9)
    return job


def told_phases(phases: Phases, job: Job, seconds: float) -> None:
    """Divide the seconds that a job took in all between its workers and the streaming."""
    streaming_s = job.outcome().seconds
    phases.add("start and end of the workers", max(0.0, seconds - streaming_s))
    phases.add("streaming", streaming_s)


def kept_input(options: argparse.Namespace, *names: str) -> list[Path]:
    """Return the folders in which a detached job finds its prepared input, beside its output.

    Raises:
        OutputError: something stands there that `kept_as_files` has not written.
    """
    from ...operators.sinks.staging import OutputFolder

    folder = Path(f"{options.output}-input").absolute()
    paths = [folder / name for name in names]
    for path in paths:
        OutputFolder(str(path), overwrite=True).check()
    return paths


def check_detached(options: argparse.Namespace, *names: str) -> None:
    """Refuse a detached job that could not outlive this command, before its input is prepared.

    Raises:
        OutputError, UsageError, ResourceError: see `kept_input` and `check_outlives_process`.
    """
    from ...ray_bridge.session import check_outlives_process

    kept_input(options, *names)
    check_outlives_process(options.address)


def kept_as_files(frame: DataFrame, path: Path) -> Source:
    """Return a source of a frame's rows that outlives Spark; see `kept_input` for the path."""
    from ... import sources
    from ...operators.sinks.manifest import write_manifest

    frame.write.mode("overwrite").parquet(str(path))
    write_manifest(str(path), sorted(os.listdir(path)))
    return sources.parquet(str(path))


def progress(
    needed: Collection[str], shown: Callable[[Mapping[str, OperatorMetrics]], str]
) -> ProgressLine:
    """Return what writes the progress line.

    Args:
        needed: the operators that it speaks of; until all have begun, it says nothing.
        shown: makes the line of operator → what it has done.
    """

    def line(metrics: JobMetrics) -> str:
        by_id = {operator.operator_id: operator for operator in metrics.operators}
        return shown(by_id) if by_id.keys() >= set(needed) else ""

    return line
