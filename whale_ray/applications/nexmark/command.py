"""`whale-ray run nexmark --query N`: one query over generated events, or a user's own."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..shared.benchmark import (
    SINK,
    Benchmark,
    BenchmarkCommand,
    SourceOf,
    add_common,
    add_input,
    add_parallelism,
    numbers_of,
)
from .settings import NexmarkSettings

if TYPE_CHECKING:
    from ...api.topology import Topology
    from ...cli.parser import Parser
    from ...operators.sinks.base import Sink

__all__ = ["build", "explain", "main"]

APPLICATION = "nexmark"


def add_arguments(parser: Parser) -> None:
    """Add the application's options."""
    from .queries import QUERIES

    add_input(
        parser,
        "with persons, auctions and bids as Parquet, in any order within 4 s of event time",
        NexmarkSettings(),
        events="to generate",
        events_per_s="in event time",
        seed="of the generator",
    )
    question = parser.add_argument_group("question")
    question.add_argument(
        "--query",
        type=_query,
        choices=tuple(QUERIES),
        default="5",
        help="of NEXMark (default 5)",
    )
    add_parallelism(question, "instances of each stateful operator (default: workers)")
    add_common(parser, APPLICATION)


def _query(name: str) -> str:
    """Return the name of a query, unless it is one that the original has and this one does not."""
    from .queries import NOT_OFFERED, QUERIES

    if name in NOT_OFFERED:
        msg = f"query {name} is not offered: {NOT_OFFERED[name]}; there are {', '.join(QUERIES)}"
        raise argparse.ArgumentTypeError(msg)
    return name


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


def _benchmark(options: argparse.Namespace) -> Benchmark:
    from .generator import generate
    from .schemas import SCHEMAS

    generated = numbers_of(NexmarkSettings, options)
    return Benchmark(
        options=options,
        application=APPLICATION,
        streams=SCHEMAS,
        build=lambda source_of, sink: build(options.query, source_of, sink, options.parallelism),
        generate=lambda folder, stream: generate(folder, stream, generated),
        generated=generated,
        question={"query": options.query},
    )


_COMMAND = BenchmarkCommand(add_arguments, _benchmark)
main, explain = _COMMAND.main, _COMMAND.explain
