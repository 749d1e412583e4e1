"""`whale-ray run yahoo`: counts views per campaign, over generated events or a user's own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ...configs.errors import InputError
from ..shared.benchmark import (
    Benchmark,
    BenchmarkCommand,
    add_common,
    add_input,
    add_parallelism,
    add_window,
    check_window,
    given_stream,
    numbers_of,
)
from .settings import YahooSettings
from .topology import APPLICATION, build

if TYPE_CHECKING:
    import pyarrow as pa

    from ...cli.parser import Parser

__all__ = ["explain", "main"]

_EVENTS = "events"


def add_arguments(parser: Parser) -> None:
    """Add the application's options."""
    add_input(
        parser,
        "with events (in order of time) and ads as Parquet",
        YahooSettings(),
        events="to generate",
        events_per_s="of event time",
        campaigns="to generate",
        zipf="exponent of the skew of advertisements",
        seed="of the generator",
    )
    question = parser.add_argument_group("question")
    add_window(question, "10 seconds")
    add_parallelism(question, "instances that count (default: one per worker)")
    add_common(parser, APPLICATION)


def _generated(options: argparse.Namespace) -> YahooSettings:
    """Return the generator's settings; raises UsageError for any value out of range."""
    check_window(options)
    return numbers_of(YahooSettings, options)


def _benchmark(options: argparse.Namespace) -> Benchmark:
    from .generator import EVENTS_SCHEMA, generate

    generated = _generated(options)
    return Benchmark(
        options=options,
        application=APPLICATION,
        streams={_EVENTS: EVENTS_SCHEMA},
        build=lambda source_of, sink: build(
            source_of(_EVENTS, ("ad_id", "event_type", "event_time")),
            _ads(options, generated),
            sink,
            window=options.window,
            parallelism=options.parallelism,
        ),
        generate=lambda folder, _: generate(folder, generated),
        generated=generated,
        question={"window": options.window},
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
        table = pq.read_table(path)
        if not table.column_names:
            msg = f"{path}: holds no Parquet file: put one with ad_id and campaign_id there"
            raise InputError(msg)
        return table.select(ADS_SCHEMA.names).cast(ADS_SCHEMA)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0]
        msg = f"{path}: needs the text columns ad_id and campaign_id ({reason})"
        raise InputError(msg) from error


_COMMAND = BenchmarkCommand(add_arguments, _benchmark)
main, explain = _COMMAND.main, _COMMAND.explain
