"""`whale-ray run read-only-count`: counts keys, generated ones or a user's own."""

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
from .settings import ReadOnlySettings
from .topology import APPLICATION, build

if TYPE_CHECKING:
    from ...cli.parser import Parser

__all__ = ["explain", "main"]

_RECORDS = "records"


def add_arguments(parser: Parser) -> None:
    """Add the application's options."""
    add_input(
        parser,
        "with records as Parquet",
        ReadOnlySettings(),
        records="to generate",
        keys="to draw from",
        zipf="exponent of the skew of keys",
        seed="of the generator",
    )
    question = parser.add_argument_group("question")
    add_parallelism(question, "instances that count (default: one per worker)")
    add_common(parser, APPLICATION)


def _benchmark(options: argparse.Namespace) -> Benchmark:
    from .generator import SCHEMA, generate

    generated = numbers_of(ReadOnlySettings, options)
    return Benchmark(
        options=options,
        application=APPLICATION,
        streams={_RECORDS: SCHEMA},
        build=lambda source_of, sink: build(
            source_of(_RECORDS, ("key",)), sink, parallelism=options.parallelism
        ),
        generate=lambda folder, _: generate(folder, generated),
        generated=generated,
    )


_COMMAND = BenchmarkCommand(add_arguments, _benchmark)
main, explain = _COMMAND.main, _COMMAND.explain
