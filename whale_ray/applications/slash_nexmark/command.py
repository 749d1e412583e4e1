"""`whale-ray run slash-nexmark --query nb7`: over generated events, or a user's own."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ..shared.benchmark import (
    Benchmark,
    BenchmarkCommand,
    add_common,
    add_input,
    add_parallelism,
    numbers_of,
)
from .settings import SlashNexmarkSettings

if TYPE_CHECKING:
    from ...cli.parser import Parser

__all__ = ["explain", "main"]

APPLICATION = "slash-nexmark"


def add_arguments(parser: Parser) -> None:
    """Add the application's options."""
    from .queries import QUERIES

    add_input(
        parser,
        "with sellers, auctions and bids as Parquet, in order of time",
        SlashNexmarkSettings(),
        events="to generate",
        events_per_s="in event time",
        zipf="exponent of the skew of sellers",
        seed="of the generator",
    )
    question = parser.add_argument_group("question")
    question.add_argument(
        "--query", choices=tuple(QUERIES), default="nb7", help="of Slash's (default nb7)"
    )
    add_parallelism(question, "instances of each stateful operator (default: workers)")
    add_common(parser, APPLICATION)


def _benchmark(options: argparse.Namespace) -> Benchmark:
    from .generator import generate
    from .queries import build
    from .schemas import SCHEMAS

    generated = numbers_of(SlashNexmarkSettings, options)
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
