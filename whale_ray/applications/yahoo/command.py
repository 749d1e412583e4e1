"""`whale-ray run yahoo`: counts views per campaign, over generated events or a user's own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ...cli.running import explained
from ...configs.errors import InputError, UsageError
from ..shared.benchmark import Benchmark, add_common, given_stream
from ..shared.ranges import check_whole, named_as_options
from .settings import YahooSettings
from .topology import APPLICATION, build

if TYPE_CHECKING:
    import pyarrow as pa

    from ...cli.parser import Parser
    from ...plan.explanation import Explanation

__all__ = ["explain", "main"]

DEFAULT_OUTPUT = "out/yahoo"
_EVENTS = "events"
_INSTANCES_MAX = 4_096


def add_arguments(parser: Parser) -> None:
    """Add the application's options."""
    defaults = YahooSettings()
    source = parser.add_argument_group("input: a folder, or generated")
    source.add_argument(
        "--data", metavar="DIR", help="with events (in order of time) and ads as Parquet"
    )
    source.add_argument(
        "--events", type=int, default=defaults.events, help="to generate (default 10,000,000)"
    )
    source.add_argument(
        "--campaigns", type=int, default=defaults.campaigns, help="to generate (default 100)"
    )
    source.add_argument("--seed", type=int, default=defaults.seed, help="of the generator")
    question = parser.add_argument_group("question")
    question.add_argument(
        "--window", default="10 seconds", help="length of the windows (default '10 seconds')"
    )
    question.add_argument(
        "--parallelism", type=int, help="instances that count (default: one per worker)"
    )
    add_common(parser, DEFAULT_OUTPUT)
    parser.exclude("--data", "--events", "--campaigns", "--seed")


def main(arguments: Sequence[str], parser: Parser) -> int:
    """Run the application; return the exit code."""
    add_arguments(parser)
    options = parser.parse_args(arguments)
    generated = _generated(options)
    return _benchmark(options, generated).run(
        options, ["whale-ray", "run", APPLICATION, *arguments]
    )


def explain(arguments: Sequence[str], parser: Parser) -> Explanation:
    """Return the plan of what `main` would run, over empty inputs."""
    from ... import sinks, sources
    from .generator import EVENTS_SCHEMA, ads_table

    add_arguments(parser)
    options = parser.parse_args(arguments)
    topology = build(
        sources.arrow(EVENTS_SCHEMA.empty_table()),
        ads_table(_generated(options)),
        sinks.parquet(options.output, overwrite=True),
        window=options.window,
        parallelism=options.parallelism,
    )
    return explained(topology, options)


def _generated(options: argparse.Namespace) -> YahooSettings:
    """Return the generator's settings; raises UsageError for any value out of range."""
    from ...operators.windows.durations import duration_ns

    with named_as_options():
        if options.parallelism is not None:
            check_whole("parallelism", options.parallelism, 1, _INSTANCES_MAX, "instances")
        settings = YahooSettings(options.events, options.campaigns, options.seed)
    try:
        length_ns = duration_ns(options.window, "--window")
    except InputError as error:
        raise UsageError(str(error)) from None
    if length_ns <= 0:
        msg = f"--window is {options.window!r}: it must be longer than nothing"
        raise UsageError(msg)
    return settings


def _benchmark(options: argparse.Namespace, generated: YahooSettings) -> Benchmark:
    from .generator import generate

    return Benchmark(
        application=APPLICATION,
        streams=(_EVENTS,),
        build=lambda source_of, sink: build(
            source_of(_EVENTS, ("ad_id", "event_type", "event_time")),
            _ads(options, generated),
            sink,
            window=options.window,
            parallelism=options.parallelism,
        ),
        generate=lambda folder, _: generate(folder, generated),
        settings={
            "window": options.window,
            "parallelism": options.parallelism,
            **({} if options.data else asdict(generated)),
        },
        output=DEFAULT_OUTPUT,
    )


def _ads(options: argparse.Namespace, generated: YahooSettings) -> pa.Table:
    """Return the table of advertisements, the user's or the generator's; raises InputError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from .generator import ADS_SCHEMA, ads_table

    if options.data is None:
        return ads_table(generated)
    path = given_stream(Path(options.data), "ads")
    try:
        return pq.read_table(path, columns=ADS_SCHEMA.names).cast(ADS_SCHEMA)
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        msg = f"{path}: needs the text columns ad_id and campaign_id ({reason})"
        raise InputError(msg) from error
