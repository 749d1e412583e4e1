"""`whale-ray run ride-hailing`: Spark prepares the input, the topology streams, Spark reads on.

The steps and the progress go to standard error, the result to standard output.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ...cli.running import (
    add_placement,
    add_settings,
    check_placement,
    explained,
    settings_of,
    start_job,
)
from ...configs.errors import EXIT_INTERRUPTED, UsageError
from ..shared import command as shared
from .application import describe_result, render_result
from .prepare import InputPaths, Prepared, input_paths, prepare
from .settings import RideHailingSettings
from .topology import APPLICATION, build

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...configs.settings import Settings
    from ...operators.sources.base import Source
    from ...plan.explanation import Explanation
    from ...runtime.job import Job
    from ...runtime.metrics import OperatorMetrics

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
    shared.add_on_bad_rows(source)
    question = parser.add_argument_group("question")
    question.add_argument("--radius-m", type=float, default=2000.0)
    question.add_argument("--max-age-s", type=float, default=600.0)
    question.add_argument(
        "--parallelism", type=int, default=16, help="matching instances (default 16)"
    )
    shared.add_result(parser, "--output", default=DEFAULT_OUTPUT)
    add_placement(parser)
    add_settings(parser)


def main(arguments: Sequence[str], parser: argparse.ArgumentParser) -> int:
    """Run the application; return the exit code."""
    add_arguments(parser)
    return run(parser.parse_args(arguments), ["whale-ray", "run", "ride-hailing", *arguments])


def explain(arguments: Sequence[str], parser: argparse.ArgumentParser) -> Explanation:
    """Return the plan of what `main` would run, over empty inputs."""
    from ... import sinks, sources
    from .generator import POSITIONS_SCHEMA, REQUESTS_SCHEMA

    add_arguments(parser)
    options = parser.parse_args(arguments)
    positions, requests = (
        sources.arrow(schema.empty_table()) for schema in (POSITIONS_SCHEMA, REQUESTS_SCHEMA)
    )
    sink = sinks.parquet(options.output, overwrite=True)
    return explained(build(positions, requests, sink, _question(options)), options)


def run(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Carry out parsed options; `command` is shown with the result."""
    settings = settings_of(options)
    check_placement(options, settings)
    question = _question(options)
    sink = shared.parquet_sink(options, DEFAULT_OUTPUT, options.output)
    shared.check_java()
    with ExitStack() as stack:
        paths = _input(options, stack)
        spark = stack.enter_context(_spark(options, settings))
        _say("Spark prepares the input")
        prepared = prepare(spark, paths, limit=options.limit, on_bad_rows=options.on_bad_rows)
        positions, requests = _sources(options, prepared)
        topology = build(positions, requests, sink, question, on_bad_rows=options.on_bad_rows)
        _say("streaming")
        job = start_job(topology, options, settings, _progress(prepared))
        if options.detach:
            return 0
        return _report(options, question, command, prepared, job, spark)


def _question(options: argparse.Namespace) -> RideHailingSettings:
    if options.limit is not None and options.limit < 1:
        msg = f"--limit {options.limit} leaves nothing to do; give 1 or more"
        raise UsageError(msg)
    return RideHailingSettings(
        radius_m=options.radius_m,
        max_age_s=options.max_age_s,
        matching_instances=options.parallelism,
    )


def _input(options: argparse.Namespace, stack: ExitStack) -> InputPaths:
    if options.data is not None:
        return input_paths(options.data)
    from .generator import GeneratorSettings, generate

    chosen = GeneratorSettings(vehicles=options.vehicles, hours=options.hours, seed=options.seed)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="whale-ray-"))
    _say(f"generating {options.hours:g} hours of {options.vehicles:,} vehicles")
    made = generate(folder, chosen)
    return InputPaths(str(made.positions_path), str(made.requests_path))


def _spark(options: argparse.Namespace, settings: Settings) -> AbstractContextManager[SparkSession]:
    return shared.spark_for(
        APPLICATION, settings, on_ray=options.on == "ray", address=options.address
    )


def _sources(options: argparse.Namespace, prepared: Prepared) -> tuple[Source, Source]:
    """Return the prepared rows as sources; for a detached job, which outlives Spark, as files."""
    from ... import sources

    if not options.detach:
        return sources.spark(prepared.positions), sources.spark(prepared.requests)
    folder = Path(f"{options.output}-input").absolute()
    _say(f"writing the prepared input to {folder}: the job outlives Spark")
    return (
        shared.kept_as_files(prepared.positions, folder / "positions"),
        shared.kept_as_files(prepared.requests, folder / "requests"),
    )


def _progress(prepared: Prepared) -> shared.ProgressLine:
    """Return what tells how much of the input has been read, how fast, and what came out."""
    rows = _streamed(prepared)

    def shown(by_id: Mapping[str, OperatorMetrics]) -> str:
        read = by_id["positions"].rows_in + by_id["requests"].rows_in
        rate = by_id["positions"].rate_per_s + by_id["requests"].rate_per_s
        return (
            f"{read / max(rows, 1):4.0%} of {rows:,} rows, {rate:,.0f}/s, "
            f"{by_id['match'].rows_out:,} matches, {by_id['out'].rows_in:,} requests answered"
        )

    return shared.progress({"positions", "requests", "match", "out"}, shown)


def _streamed(prepared: Prepared) -> int:
    return sum(prepared.rows_in.values()) - sum(prepared.rejected.values())


def _report(
    options: argparse.Namespace,
    question: RideHailingSettings,
    command: Sequence[str],
    prepared: Prepared,
    job: Job,
    spark: SparkSession,
) -> int:
    from ...spark import to_spark

    published = job.results("out")
    answers = to_spark(published, spark)
    first = [row.asDict() for row in answers.orderBy("request_id").take(_PREVIEW_ROWS)]
    run = shared.run_of(
        options,
        command,
        job.outcome(),
        "out",
        rows_in=prepared.rows_in,
        rows_rejected=prepared.rejected,
        streamed=_streamed(prepared),
        more_settings={
            "vehicles": None if options.data else options.vehicles,
            "hours": None if options.data else options.hours,
            "seed": None if options.data else options.seed,
            "limit": options.limit,
        },
    )
    result = describe_result(run, question, rows_out=published.rows, output=published.path)
    if job.state == "drained":
        shared.say_stopped(APPLICATION, published)
    shared.tell(result, render_result(result, first, published.load_line), as_json=options.json)
    return 0 if job.state == "finished" else EXIT_INTERRUPTED


def _say(step: str) -> None:
    shared.say(APPLICATION, step)
