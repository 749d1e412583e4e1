"""`whale-ray run ride-hailing`: Spark prepares the input, the topology streams, Spark reads on.

The steps and the progress go to standard error, the result to standard output.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...cli.running import add_placement, add_settings, check_placement, settings_of
from ...configs.errors import EXIT_INTERRUPTED, UsageError
from .application import describe_result, render_result
from .prepare import InputPaths, Prepared, input_paths, prepare
from .settings import RideHailingSettings
from .topology import build

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from ...configs.settings import Settings
    from ...operators.sources.base import Source
    from ...runtime.job import Job
    from ...runtime.metrics import JobMetrics
    from ...topology import Topology

DEFAULT_OUTPUT = "out/ride-hailing"
_PREVIEW_ROWS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the application's options."""
    source = parser.add_argument_group("input: a folder, or generated")
    source.add_argument("--data", metavar="DIR", help="with positions and requests as Parquet")
    source.add_argument("--vehicles", type=int, default=520, help="to generate (default 520)")
    source.add_argument("--hours", type=float, default=24.0, help="to generate (default 24)")
    source.add_argument("--seed", type=int, default=1, help="of the generator (default 1)")
    source.add_argument("--limit", type=int, help="take only the N earliest positions")
    source.add_argument(
        "--on-bad-rows",
        choices=("drop", "fail"),
        default="drop",
        help="rows that cannot be used: leave out and count (default), or refuse",
    )
    question = parser.add_argument_group("question")
    question.add_argument("--radius-m", type=float, default=2000.0)
    question.add_argument("--max-age-s", type=float, default=600.0)
    question.add_argument(
        "--parallelism", type=int, default=16, help="matching instances (default 16)"
    )
    result = parser.add_argument_group("result")
    result.add_argument("--output", default=DEFAULT_OUTPUT, metavar="DIR")
    result.add_argument("--overwrite", action="store_true", help="replace an output of before")
    result.add_argument("--json", action="store_true", help="one JSON object on the last line")
    add_placement(parser)
    add_settings(parser)


def main(arguments: Sequence[str], parser: argparse.ArgumentParser) -> int:
    """Run the application; return the exit code."""
    add_arguments(parser)
    return run(parser.parse_args(arguments), ["whale-ray", "run", "ride-hailing", *arguments])


def run(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Carry out parsed options; `command` is shown with the result."""
    settings = settings_of(options)
    check_placement(options, settings)
    question = RideHailingSettings(
        radius_m=options.radius_m,
        max_age_s=options.max_age_s,
        matching_instances=options.parallelism,
    )
    if options.limit is not None and options.limit < 1:
        msg = f"--limit {options.limit} leaves nothing to do; give 1 or more"
        raise UsageError(msg)
    sink = _sink(options)
    sink.check()  # before minutes of preparation
    _check_java()
    with ExitStack() as stack:
        paths = _input(options, stack)
        spark = stack.enter_context(_spark(options, settings))
        _say("Spark prepares the input")
        prepared = prepare(spark, paths, limit=options.limit, on_bad_rows=options.on_bad_rows)
        positions, requests = _sources(options, prepared)
        topology = build(positions, requests, sink, question, on_bad_rows=options.on_bad_rows)
        job = _start(options, settings, topology, prepared)
        if options.detach:
            sys.stdout.write(f"{job.id}\n")
            return 0
        return _report(options, question, command, prepared, job, spark)


def _check_java() -> None:
    from ...spark.java import find_java

    find_java()


def example_topology() -> Topology:
    """Return the topology over empty inputs, to be explained."""
    from ... import sinks, sources
    from .generator import POSITIONS_SCHEMA, REQUESTS_SCHEMA

    return build(
        sources.arrow(POSITIONS_SCHEMA.empty_table()),
        sources.arrow(REQUESTS_SCHEMA.empty_table()),
        sinks.parquet(DEFAULT_OUTPUT, overwrite=True),
    )


def _sink(options: argparse.Namespace) -> Any:
    from ... import sinks

    overwrite = options.overwrite or options.output == DEFAULT_OUTPUT
    return sinks.parquet(options.output, overwrite=overwrite)


def _input(options: argparse.Namespace, stack: ExitStack) -> InputPaths:
    if options.data is not None:
        return input_paths(options.data)
    from .generator import GeneratorSettings, generate

    chosen = GeneratorSettings(vehicles=options.vehicles, hours=options.hours, seed=options.seed)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="whale-ray-"))
    _say(f"generating {options.hours:g} hours of {options.vehicles:,} vehicles")
    made = generate(folder, chosen)
    return InputPaths(str(made.positions_path), str(made.requests_path))


@contextmanager
def _spark(options: argparse.Namespace, settings: Settings) -> Iterator[SparkSession]:
    from ... import spark

    if options.on == "ray":
        _say("starting Ray and Spark (15 to 40 s)")
        with spark.spark_on_ray("ride-hailing", settings.spark, options.address) as session:
            yield session
    else:
        _say("starting Spark (5 to 15 s)")
        with spark.spark_locally("ride-hailing", settings.spark) as session:
            yield session


def _sources(options: argparse.Namespace, prepared: Prepared) -> tuple[Source, Source]:
    """Return the prepared rows as sources; for a detached job, which outlives Spark, as files."""
    from ... import sources

    if not options.detach:
        return sources.spark(prepared.positions), sources.spark(prepared.requests)
    folder = Path(f"{options.output}-input").absolute()
    _say(f"writing the prepared input to {folder}: the job outlives Spark")
    return _file(prepared.positions, folder / "positions"), _file(
        prepared.requests, folder / "requests"
    )


def _file(frame: DataFrame, path: Path) -> Source:
    from ... import sources

    frame.write.mode("overwrite").parquet(str(path))
    return sources.parquet(path)


def _start(
    options: argparse.Namespace, settings: Settings, topology: Topology, prepared: Prepared
) -> Job:
    from ...runtime.api import run as run_here
    from ...runtime.api import submit

    _say("streaming")
    if options.on == "inline":
        return run_here(topology, settings=settings)
    job = submit(
        topology,
        on=options.on,
        address=options.address,
        workers=options.workers,
        settings=settings,
        detach=options.detach,
    )
    if not options.detach:
        total = sum(prepared.rows_in.values()) - sum(prepared.rejected.values())
        job.wait(watch=sys.stderr, line=None if options.watch else _Progress(total))
    return job


class _Progress:
    """The progress line: how much of the input has been read, how fast, what came out."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __call__(self, metrics: JobMetrics) -> str:
        by_id = {operator.operator_id: operator for operator in metrics.operators}
        if not {"positions", "requests", "match", "out"} <= by_id.keys():
            return "starting the workers"
        read = by_id["positions"].rows_in + by_id["requests"].rows_in
        rate = by_id["positions"].rate_per_s + by_id["requests"].rate_per_s
        return (
            f"{read / max(self._rows, 1):4.0%} of {self._rows:,} rows, {rate:,.0f}/s, "
            f"{by_id['match'].rows_out:,} matches, {by_id['out'].rows_in:,} requests answered"
        )


def _report(
    options: argparse.Namespace,
    question: RideHailingSettings,
    command: Sequence[str],
    prepared: Prepared,
    job: Job,
    spark: SparkSession,
) -> int:
    from ...spark import to_spark

    outcome = job.outcome()
    published = job.results("out")
    answers = to_spark(published, spark)
    first = [row.asDict() for row in answers.orderBy("request_id").take(_PREVIEW_ROWS)]
    sink = outcome.metrics.operator("out")
    result = describe_result(
        command=shlex.join(command),
        settings=question,
        more_settings={
            "on": options.on,
            "workers": outcome.workers,
            "data": options.data,
            "vehicles": None if options.data else options.vehicles,
            "hours": None if options.data else options.hours,
            "seed": None if options.data else options.seed,
            "limit": options.limit,
        },
        rows_in=prepared.rows_in,
        rows_rejected=prepared.rejected,
        rows_out=published.rows,
        seconds=outcome.seconds,
        restarts=outcome.restarts,
        latency_ms=(sink.latency_p50_ms, sink.latency_p99_ms),
        output=published.path,
    )
    if job.state == "drained":
        _say("stopped early: the output answers what had been read until then")
    sys.stdout.write(render_result(result, first, published.load_line) + "\n")
    if options.json:
        sys.stdout.write(json.dumps(result) + "\n")
    return 0 if job.state == "finished" else EXIT_INTERRUPTED


def _say(step: str) -> None:
    sys.stderr.write(f"ride-hailing: {step}\n")
    sys.stderr.flush()
