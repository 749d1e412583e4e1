"""`whale-ray run ride-hailing`: Spark prepares the input, the topology streams, Spark reads on.

Generated input needs no Spark, unless it goes to Ray, where the whole way is shown.
The steps and the progress go to standard error, the result to standard output.
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
from .application import describe_result, render_result
from .prepare import InputPaths, Prepared, input_paths, prepare
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
_KEPT = ("positions", "requests")


@dataclass(frozen=True)
class _Input:
    """Rows in the order of time, and what became of all others."""

    positions: Source
    requests: Source
    rows_in: Mapping[str, int]
    rejected: Mapping[str, int]
    spark: SparkSession | None = None

    @property
    def streamed(self) -> int:
        """Rows that go through the topology."""
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
    shared.add_result(parser, "--output", default=DEFAULT_OUTPUT)
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
    return explained(build(positions, requests, sink, _question(options)), options)


def run(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Carry out parsed options; `command` is shown with the result."""
    settings = settings_of(options)
    check_placement(options, settings)
    question = _question(options)
    sink = shared.parquet_sink(options, DEFAULT_OUTPUT, options.output)
    phases = Phases(APPLICATION)
    with ExitStack() as stack:
        taken = _input(options, settings, phases, stack)
        topology = build(
            taken.positions, taken.requests, sink, question, on_bad_rows=options.on_bad_rows
        )
        _say("streaming")
        job = shared.stream(phases, topology, options, settings, _progress(taken))
        if options.detach:
            return 0
        return _report(options, question, command, taken, job, phases)


def _question(options: argparse.Namespace) -> RideHailingSettings:
    """Return what is asked; raises UsageError for numbers out of range, also of the generator."""
    from .generator import GeneratorSettings

    if options.limit is not None and options.limit < 1:
        msg = f"--limit {options.limit} leaves nothing to do; give 1 or more"
        raise UsageError(msg)
    with named_as_options(matching_instances="--parallelism"):
        GeneratorSettings(vehicles=options.vehicles, hours=options.hours, seed=options.seed)
        return RideHailingSettings(
            radius_m=options.radius_m,
            max_age_s=options.max_age_s,
            matching_instances=options.parallelism,
        )


def _input(
    options: argparse.Namespace, settings: Settings, phases: Phases, stack: ExitStack
) -> _Input:
    """Return the input, prepared by Spark; generated rows need none, unless they go to Ray."""
    if options.detach:
        shared.check_detached(options, *_KEPT)  # before minutes of preparation
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
        else InputPaths(str(made.positions_path), str(made.requests_path))
    )
    on_ray = options.on == "ray"
    spark = stack.enter_context(
        shared.spark_for(APPLICATION, phases, settings, on_ray=on_ray, address=options.address)
    )
    _say("Spark prepares the input")
    with phases.phase("preparation"):
        prepared = prepare(spark, paths, limit=options.limit, on_bad_rows=options.on_bad_rows)
    with phases.phase("hand-over of the rows"):
        positions, requests = _sources(options, prepared)
    return _Input(positions, requests, prepared.rows_in, prepared.rejected, spark)


def _generated(options: argparse.Namespace, phases: Phases, stack: ExitStack) -> Generated:
    from .generator import GeneratorSettings, generate

    chosen = GeneratorSettings(vehicles=options.vehicles, hours=options.hours, seed=options.seed)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="whale-ray-"))
    _say(f"generating {options.hours:g} hours of {options.vehicles:,} vehicles")
    with phases.phase("generating"):
        return generate(folder, chosen)


def _taken(made: Generated, limit: int | None, phases: Phases) -> _Input:
    from ... import sources
    from .generated_input import take

    with phases.phase("preparation"):
        taken = take(made, limit)
    positions, requests = sources.parquet(taken.positions), sources.parquet(taken.requests)
    return _Input(positions, requests, taken.rows_in, taken.rejected)


def _sources(options: argparse.Namespace, prepared: Prepared) -> tuple[Source, Source]:
    """Return the prepared rows as sources; for a detached job, which outlives Spark, as files."""
    from ... import sources

    if not options.detach:
        cluster = options.on == "ray"
        frames = (prepared.positions, prepared.requests)
        positions, requests = (
            sources.spark(frame).materialize(cluster=cluster) for frame in frames
        )
        return positions, requests
    positions_path, requests_path = shared.kept_input(options, *_KEPT)
    _say(f"writing the prepared input to {positions_path.parent}: the job outlives Spark")
    return (
        shared.kept_as_files(prepared.positions, positions_path),
        shared.kept_as_files(prepared.requests, requests_path),
    )


def _progress(taken: _Input) -> shared.ProgressLine:
    """Return what tells how much of the input has been read, how fast, and what came out."""
    rows = taken.streamed

    def shown(by_id: Mapping[str, OperatorMetrics]) -> str:
        read = by_id["positions"].rows_in + by_id["requests"].rows_in
        rate = by_id["positions"].rate_per_s + by_id["requests"].rate_per_s
        return (
            f"{read / max(rows, 1):4.0%} of {rows:,} rows, {rate:,.0f}/s, "
            f"{by_id['match'].rows_out:,} matches, {by_id['out'].rows_in:,} requests answered"
        )

    return shared.progress({"positions", "requests", "match", "out"}, shown)


def _report(
    options: argparse.Namespace,
    question: RideHailingSettings,
    command: Sequence[str],
    taken: _Input,
    job: Job,
    phases: Phases,
) -> int:
    published = job.results("out")
    with phases.phase("reading the output"):
        first = _first_answers(published, taken.spark)
    run = shared.run_of(
        options,
        command,
        job.outcome(),
        "out",
        rows_in=taken.rows_in,
        rows_rejected=taken.rejected,
        streamed=taken.streamed,
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
        shared.say_stopped(APPLICATION, published)
    shared.tell(result, render_result(result, first, published.load_line), as_json=options.json)
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
    """Return a time as Spark does, in UTC and without its zone."""
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def _say(step: str) -> None:
    shared.say(APPLICATION, step)
