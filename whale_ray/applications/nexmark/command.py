"""`whale-ray run nexmark --query N`: one query over generated events, or a user's own."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ...cli.running import explained
from ..shared.benchmark import SINK, Benchmark, SourceOf, add_common
from ..shared.ranges import check_whole, named_as_options
from .settings import NexmarkSettings

if TYPE_CHECKING:
    from ...api.topology import Topology
    from ...cli.parser import Parser
    from ...operators.sinks.base import Sink
    from ...plan.explanation import Explanation

__all__ = ["build", "explain", "main"]

APPLICATION = "nexmark"
DEFAULT_OUTPUT = "out/nexmark"
_INSTANCES_MAX = 4_096


def add_arguments(parser: Parser) -> None:
    """Add the application's options."""
    from .queries import QUERIES

    defaults = NexmarkSettings()
    source = parser.add_argument_group("input: a folder, or generated")
    source.add_argument(
        "--data",
        metavar="DIR",
        help="with persons, auctions and bids as Parquet, in any order within 4 s of event time",
    )
    source.add_argument(
        "--events", type=int, default=defaults.events, help="to generate (default 1,000,000)"
    )
    source.add_argument(
        "--events-per-s",
        type=int,
        default=defaults.events_per_s,
        help="in event time (default 10,000)",
    )
    source.add_argument("--seed", type=int, default=defaults.seed, help="of the generator")
    question = parser.add_argument_group("question")
    question.add_argument(
        "--query", choices=tuple(QUERIES), default="5", help="of NEXMark (default 5)"
    )
    question.add_argument(
        "--parallelism", type=int, help="instances of each stateful operator (default: workers)"
    )
    add_common(parser, DEFAULT_OUTPUT)
    parser.exclude("--data", "--events", "--events-per-s", "--seed")


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
    from .schemas import SCHEMAS

    add_arguments(parser)
    options = parser.parse_args(arguments)
    _generated(options)
    topology = build(
        options.query,
        lambda name, columns: sources.arrow(
            SCHEMAS[name].empty_table().select(columns or SCHEMAS[name].names)
        ),
        sinks.parquet(options.output, overwrite=True),
        options.parallelism,
    )
    return explained(topology, options)


def build(
    query: str,
    source_of: SourceOf,
    sink: Sink,
    parallelism: int | None = None,
) -> Topology:
    """Return the topology of a query.

    Args:
        query: one of `QUERIES`.
        source_of: returns the source of "persons", "auctions" or "bids", see `Inputs`.
        sink: receives the query's result.
        parallelism: the number of instances of each stateful operator; None is one per worker.
    """
    from ...api.topology import Topology
    from .inputs import Inputs
    from .queries import QUERIES

    topology = Topology(APPLICATION)
    QUERIES[query](Inputs(topology, source_of, parallelism)).sink(sink, id=SINK)
    return topology


def _generated(options: argparse.Namespace) -> NexmarkSettings:
    """Return the generator's settings; raises UsageError for any number out of range."""
    with named_as_options():
        if options.parallelism is not None:
            check_whole("parallelism", options.parallelism, 1, _INSTANCES_MAX, "instances")
        return NexmarkSettings(
            events=options.events, events_per_s=options.events_per_s, seed=options.seed
        )


def _benchmark(options: argparse.Namespace, generated: NexmarkSettings) -> Benchmark:
    from .generator import generate
    from .schemas import SCHEMAS

    return Benchmark(
        application=APPLICATION,
        streams=tuple(SCHEMAS),
        build=lambda source_of, sink: build(options.query, source_of, sink, options.parallelism),
        generate=lambda folder, stream: generate(folder, stream, generated),
        settings={
            "query": options.query,
            "parallelism": options.parallelism,
            **({} if options.data else asdict(generated)),
        },
        output=DEFAULT_OUTPUT,
    )
