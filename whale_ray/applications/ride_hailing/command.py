"""`whale-ray run ride-hailing`: Spark prepares input, the topology runs, Spark reads the output.

Generated input needs no Spark, except on Ray, where the run demonstrates the hand-over from Spark
and back. Steps and progress go to standard error, the result to standard output.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ...cli.running import (
    add_placement,
    add_settings,
    check_placement,
    explained,
    settings_of,
)
from ...configs.errors import EXIT_INTERRUPTED, UsageError
from ..shared import command as shared
from ..shared.phases import Phases
from ..shared.ranges import named_as_options
from .prepare import PreparedRides, RideInputPaths, input_paths, prepare
from .report import describe_result, render_result
from .settings import RideHailingSettings
from .topology import APPLICATION, build

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...api.job import Job
    from ...cli.parser import Parser
    from ...configs.settings import Settings
    from ...metrics.operator_metrics import OperatorMetrics
    from ...operators.sinks.base import SinkResult
    from ...operators.sources.base import Source
    from ...plan.explanation import Explanation
    from .generator import Generated

DEFAULT_OUTPUT = "out/ride-hailing"
_PREVIEW_ROWS = 5
_KEPT_INPUTS = ("positions", "requests")


@dataclass(frozen=True)
class _RideInput:
    """The two inputs, sorted by time, and the number of rows read and left out."""

    positions: Source
    requests: Source
    rows_in: Mapping[str, int]
    rejected: Mapping[str, int]
    spark: SparkSession | None = None

    @property
    def streamed(self) -> int:
        """Rows that the topology reads."""
        return sum(self.rows_in.values()) - sum(self.rejected.values())


def add_arguments(parser: Parser) -> None:
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
    shared.add_result_options(parser, "--output", default=DEFAULT_OUTPUT)
    parser.exclude("--data", "--vehicles", "--hours", "--seed")
    add_placement(parser)
    add_settings(parser)


def main(arguments: Sequence[str], parser: Parser) -> int:
    """Run the application; return the exit code."""
    add_arguments(parser)
    return run(parser.parse_args(arguments), ["whale-ray", "run", "ride-hailing", *arguments])


def explain(arguments: Sequence[str], parser: Parser) -> Explanation:
    """Return the plan of what `main` would run, over empty inputs."""
    from ... import sinks, sources
    from .generator import POSITIONS_SCHEMA, REQUESTS_SCHEMA

    add_arguments(parser)
    options = parser.parse_args(arguments)
    positions, requests = (
        sources.arrow(schema.empty_table()) for schema in (POSITIONS_SCHEMA, REQUESTS_SCHEMA)
    )
    sink = sinks.parquet(options.output, overwrite=True)
    return explained(build(positions, requests, sink, _matching_settings(options)), options)


def run(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Run the application with parsed options; the report quotes `command`."""
    settings = settings_of(options)
    check_placement(options, settings)
    question = _matching_settings(options)
    sink = shared.parquet_sink(options, DEFAULT_OUTPUT, options.output)
    phases = Phases(APPLICATION)
    with ExitStack() as stack:
        rides = _input(options, settings, phases, stack)
        topology = build(
            rides.positions, rides.requests, sink, question, on_bad_rows=options.on_bad_rows
        )
        _log_step("streaming")
        job = shared.run_job(phases, topology, options, settings, _progress_line(rides))
        if options.detach:
            return 0
        return _report(options, question, command, rides, job, phases)


def _matching_settings(options: argparse.Namespace) -> RideHailingSettings:
    """Return the settings from the options; raises UsageError for any number out of range."""
    from .generator import CabGeneratorSettings

    if options.limit is not None and options.limit < 1:
        msg = f"--limit {options.limit} leaves nothing to do; give 1 or more"
        raise UsageError(msg)
    with named_as_options(matching_instances="--parallelism"):
        CabGeneratorSettings(vehicles=options.vehicles, hours=options.hours, seed=options.seed)
        return RideHailingSettings(
            radius_m=options.radius_m,
            max_age_s=options.max_age_s,
            matching_instances=options.parallelism,
        )


def _input(
    options: argparse.Namespace, settings: Settings, phases: Phases, stack: ExitStack
) -> _RideInput:
    """Return the input, prepared by Spark; generated input needs Spark on Ray only."""
    if options.detach:
        shared.check_detached(options, *_KEPT_INPUTS)  # before minutes of preparation
    if options.data is not None:
        shared.check_spark("--data", "generate the input, and add --on processes")
    elif options.on == "ray":
        shared.check_spark("ride-hailing on Ray", "add --on processes, which works without Spark")
    made = None if options.data is not None else _generated(options, phases, stack)
    if made is not None and options.on != "ray":
        return _taken(made, options.limit, phases)
    paths = (
        input_paths(options.data)
        if made is None
        else RideInputPaths(str(made.positions_path), str(made.requests_path))
    )
    on_ray = options.on == "ray"
    spark = stack.enter_context(
        shared.spark_session(APPLICATION, phases, settings, on_ray=on_ray, address=options.address)
    )
    _log_step("Spark prepares the input")
    with phases.phase("preparation"):
        prepared = prepare(spark, paths, limit=options.limit, on_bad_rows=options.on_bad_rows)
    with phases.phase("hand-over of the rows"):
        positions, requests = _sources(options, prepared)
    return _RideInput(positions, requests, prepared.rows_in, prepared.rejected, spark)


def _generated(options: argparse.Namespace, phases: Phases, stack: ExitStack) -> Generated:
    from .generator import CabGeneratorSettings, generate

    chosen = CabGeneratorSettings(vehicles=options.vehicles, hours=options.hours, seed=options.seed)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="whale-ray-"))
    _log_step(f"generating {options.hours:g} hours of {options.vehicles:,} vehicles")
    with phases.phase("generating"):
        return generate(folder, chosen)


def _taken(made: Generated, limit: int | None, phases: Phases) -> _RideInput:
    from ... import sources
    from .generated_input import take

    with phases.phase("preparation"):
        rides = take(made, limit)
    positions, requests = sources.parquet(rides.positions), sources.parquet(rides.requests)
    return _RideInput(positions, requests, rides.rows_in, rides.rejected)


def _sources(options: argparse.Namespace, prepared: PreparedRides) -> tuple[Source, Source]:
    """Return sources of the prepared rows; a detached job outlives Spark, so it reads files."""
    from ... import sources

    if not options.detach:
        cluster = options.on == "ray"
        frames = (prepared.positions, prepared.requests)
        positions, requests = (
            sources.spark(frame).materialize(cluster=cluster) for frame in frames
        )
        return positions, requests
    positions_path, requests_path = shared.kept_input_folders(options, *_KEPT_INPUTS)
    _log_step(f"writing the prepared input to {positions_path.parent}: the job outlives Spark")
    return (
        shared.save_as_files(prepared.positions, positions_path),
        shared.save_as_files(prepared.requests, requests_path),
    )


def _progress_line(rides: _RideInput) -> shared.ProgressLine:
    """Return a progress line: share of the input read, rows per second, matches, answers."""
    rows = rides.streamed

    def shown(by_id: Mapping[str, OperatorMetrics]) -> str:
        read = by_id["positions"].rows_in + by_id["requests"].rows_in
        rate = by_id["positions"].rate_per_s + by_id["requests"].rate_per_s
        return (
            f"{read / max(rows, 1):4.0%} of {rows:,} rows, {rate:,.0f}/s, "
            f"{by_id['match'].rows_out:,} matches, {by_id['out'].rows_in:,} requests answered"
        )

    return shared.progress_line({"positions", "requests", "match", "out"}, shown)


def _report(
    options: argparse.Namespace,
    question: RideHailingSettings,
    command: Sequence[str],
    rides: _RideInput,
    job: Job,
    phases: Phases,
) -> int:
    published = job.results("out")
    with phases.phase("reading the output"):
        first = _first_answers(published, rides.spark)
    run = shared.describe_run(
        options,
        command,
        job.outcome(),
        "out",
        rows_in=rides.rows_in,
        rows_rejected=rides.rejected,
        streamed=rides.streamed,
        phases=phases,
        more_settings={
            "vehicles": None if options.data else options.vehicles,
            "hours": None if options.data else options.hours,
            "seed": None if options.data else options.seed,
            "limit": options.limit,
        },
    )
    result = describe_result(run, question, rows_out=published.rows, output=published.path)
    if job.state == "drained":
        shared.log_early_stop(APPLICATION, published)
    shared.print_result(
        result, render_result(result, first, published.load_line), as_json=options.json
    )
    return 0 if job.state == "finished" else EXIT_INTERRUPTED


def _first_answers(published: SinkResult, spark: SparkSession | None) -> list[dict[str, Any]]:
    """Return the answers to the first requests, read by Spark if there is one."""
    if spark is None:
        rows = published.to_arrow()
        ordered = rows.sort_by("request_id") if rows.num_rows else rows
        return [
            {name: _as_shown(value) for name, value in row.items()}
            for row in ordered.slice(0, _PREVIEW_ROWS).to_pylist()
        ]
    from ...spark import to_spark

    answers = to_spark(published, spark).orderBy("request_id")
    return [row.asDict() for row in answers.take(_PREVIEW_ROWS)]


def _as_shown(value: Any) -> Any:
    """Return a time as Spark shows it: in UTC, without a zone."""
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def _log_step(step: str) -> None:
    shared.log_step(APPLICATION, step)
