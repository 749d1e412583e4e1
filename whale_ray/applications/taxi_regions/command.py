"""`whale-ray run taxi-regions`: over generated trips, or a user's own."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING

from ...configs.errors import InputError, UsageError
from ..shared.benchmark import (
    Benchmark,
    BenchmarkCommand,
    add_common,
    add_input,
    add_parallelism,
    add_window,
    check_window,
    numbers_of,
)
from .regions import NEW_YORK, CityBox
from .settings import TaxiSettings
from .topology import APPLICATION, READS, build

if TYPE_CHECKING:
    from ...cli.parser import Parser

__all__ = ["explain", "main"]

_TRIPS = "trips"


def add_arguments(parser: Parser) -> None:
    """Add the application's options."""
    add_input(
        parser,
        "with trips as Parquet, in order of pickup",
        TaxiSettings(),
        trips="to generate",
        trips_per_s="in event time",
        seed="of the generator",
    )
    question = parser.add_argument_group("question")
    question.add_argument(
        "--box",
        type=float,
        nargs=4,
        metavar=("WEST", "SOUTH", "EAST", "NORTH"),
        help="the city in degrees, divided into 1,000 regions (default New York)",
    )
    add_window(question, "2 seconds")
    add_parallelism(question, "instances that aggregate (default: one per worker)")
    parser.need("--data", "--box")
    add_common(parser, APPLICATION)


def _generated(options: argparse.Namespace) -> TaxiSettings:
    """Return the generator's settings; raises UsageError for any value out of range."""
    check_window(options)
    return numbers_of(TaxiSettings, options)


def _box(options: argparse.Namespace) -> CityBox:
    """Return the regions; raises UsageError."""
    try:
        return NEW_YORK if options.box is None else CityBox(*options.box)
    except InputError as error:
        msg = f"--{error}"
        raise UsageError(msg) from None


def _benchmark(options: argparse.Namespace) -> Benchmark:
    from .generator import TRIPS, generate

    generated, box = _generated(options), _box(options)
    return Benchmark(
        options=options,
        application=APPLICATION,
        streams={_TRIPS: TRIPS},
        build=lambda source_of, sink: build(
            source_of(_TRIPS, READS),
            sink,
            window=options.window,
            box=box,
            parallelism=options.parallelism,
        ),
        generate=lambda folder, _: generate(folder, generated),
        generated=generated,
        question={"window": options.window, "box": list(asdict(box).values())},
    )


_COMMAND = BenchmarkCommand(add_arguments, _benchmark)
main, explain = _COMMAND.main, _COMMAND.explain
