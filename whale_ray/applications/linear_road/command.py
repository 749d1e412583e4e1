"""`whale-ray run linear-road`: over generated traffic, or a user's own reports."""

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
from .settings import LinearRoadSettings
from .topology import APPLICATION, build

if TYPE_CHECKING:
    from ...cli.parser import Parser

__all__ = ["explain", "main"]

_REPORTS = "reports"


def add_arguments(parser: Parser) -> None:
    """Add the application's options."""
    add_input(
        parser,
        "with reports as Parquet, in order of time",
        LinearRoadSettings(),
        expressways="to generate",
        vehicles="of an expressway, at a time",
        minutes="of traffic",
        accidents="of an expressway",
        seed="of the generator",
    )
    question = parser.add_argument_group("question")
    add_parallelism(question, "instances of each stateful operator (default: workers)")
    add_common(parser, APPLICATION)


def _benchmark(options: argparse.Namespace) -> Benchmark:
    from .generator import generate
    from .schemas import REPORTS

    generated = numbers_of(LinearRoadSettings, options)
    return Benchmark(
        options=options,
        application=APPLICATION,
        streams={_REPORTS: REPORTS},
        build=lambda source_of, sink: build(
            source_of(_REPORTS, REPORTS.names), sink, parallelism=options.parallelism
        ),
        generate=lambda folder, _: generate(folder, generated),
        generated=generated,
    )


_COMMAND = BenchmarkCommand(add_arguments, _benchmark)
main, explain = _COMMAND.main, _COMMAND.explain
