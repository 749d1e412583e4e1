"""`whale-ray run options-market`: the market at a rate, and how long a decision takes.

The contracts of real data are prepared by Spark. The steps and the progress go to standard error,
the result to standard output.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...cli.running import add_settings, settings_of
from ...configs.errors import EXIT_INTERRUPTED, UsageError
from .application import describe_result, render_result
from .measuring import measure
from .placements import PLACEMENTS, workers_of
from .settings import OptionsMarketSettings
from .topology import build

if TYPE_CHECKING:
    from ...configs.settings import Settings
    from ...runtime.job import Job
    from ...runtime.metrics import JobMetrics
    from ...topology import Topology
    from .contracts import ContractBook

_DEFAULTS = OptionsMarketSettings()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the application's options."""
    market = parser.add_argument_group("market: contracts of a folder, or generated")
    market.add_argument("--data", metavar="DIR", help="with contracts and trade counts, Parquet")
    market.add_argument(
        "--contracts", type=int, metavar="N", help="the N busiest alone (default all)"
    )
    market.add_argument(
        "--rate",
        type=float,
        default=_DEFAULTS.rate,
        help=f"messages per second over all feeds (default {_DEFAULTS.rate:,.0f})",
    )
    market.add_argument(
        "--seconds",
        type=float,
        default=_DEFAULTS.seconds,
        help=f"time that they come for (default {_DEFAULTS.seconds:g})",
    )
    market.add_argument(
        "--seed", type=int, default=_DEFAULTS.seed, help="of the trades (default 1)"
    )
    market.add_argument(
        "--on-bad-rows",
        choices=("drop", "fail"),
        default="drop",
        help="rows of DIR that cannot be used: leave out and count (default), or refuse",
    )
    division = parser.add_argument_group("division")
    division.add_argument(
        "--placement",
        choices=tuple(PLACEMENTS),
        default="shared-memory",
        help="; ".join(f"{name}: {placement.what}" for name, placement in PLACEMENTS.items()),
    )
    division.add_argument(
        "--feeds", type=int, default=_DEFAULTS.feeds, help="feed lines, each with its handler"
    )
    division.add_argument(
        "--engines", type=int, default=_DEFAULTS.engines, help="decision engines, unless fused"
    )
    division.add_argument(
        "--line-messages",
        type=int,
        default=_DEFAULTS.line_messages,
        help=f"room of a line (default {_DEFAULTS.line_messages:,}); what exceeds it is missed",
    )
    division.add_argument(
        "--threshold-bp",
        type=int,
        default=_DEFAULTS.threshold_bp,
        help=f"distance from the average price to act upon (default {_DEFAULTS.threshold_bp})",
    )
    division.add_argument(
        "--on",
        choices=("ray", "processes"),
        default="processes",
        help="Ray actors or plain processes (default), on this machine",
    )
    result = parser.add_argument_group("result")
    result.add_argument(
        "--output", "--out", metavar="DIR", help="keep the decisions there; else only count them"
    )
    result.add_argument("--overwrite", action="store_true", help="replace an output of before")
    result.add_argument("--json", action="store_true", help="one JSON object on the last line")
    add_settings(parser)


def main(arguments: Sequence[str], parser: argparse.ArgumentParser) -> int:
    """Run the application; return the exit code."""
    add_arguments(parser)
    return run(parser.parse_args(arguments), ["whale-ray", "run", "options-market", *arguments])


def run(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Carry out parsed options; `command` is shown with the result."""
    settings = settings_of(options)
    chosen = OptionsMarketSettings(
        rate=options.rate,
        seconds=options.seconds,
        feeds=options.feeds,
        engines=options.engines,
        seed=options.seed,
        threshold_bp=options.threshold_bp,
        line_messages=options.line_messages,
    )
    workers_of(options.placement, options.workers)
    if options.overwrite and options.output is None:
        msg = "--overwrite means nothing without --output; leave it out"
        raise UsageError(msg)
    sink = None
    if options.output is not None:
        from ... import sinks

        sink = sinks.parquet(options.output, overwrite=options.overwrite)
        sink.check()  # before minutes of preparation
    book, rejected = _contracts(options, settings)
    _say("streaming")
    measured = measure(
        book,
        chosen,
        options.placement,
        workers=options.workers,
        more_settings=settings,
        on=options.on,
        decisions=sink,
        wait=_watch,
    )
    finished = measured.state == "finished"
    if not finished:
        _say("stopped early: what is told is of the time until then")
    result = describe_result(
        command=shlex.join(command),
        settings=chosen,
        more_settings={"on": options.on, "data": options.data},
        placement=options.placement,
        book=book,
        rows_rejected=rejected,
        measured=measured,
        output=options.output,
    )
    sys.stdout.write(render_result(result) + "\n")
    if options.json:
        sys.stdout.write(json.dumps(result) + "\n")
    return 0 if finished else EXIT_INTERRUPTED


def example_topology() -> Topology:
    """Return the topology over generated contracts, to be explained."""
    from ... import sinks
    from .generated import generated_contracts

    return build(generated_contracts(1_000), sinks.collect(), sinks.collect())


def _contracts(
    options: argparse.Namespace, settings: Settings
) -> tuple[ContractBook, dict[str, int]]:
    """Return the contracts, and "input: reason" → rows left out."""
    if options.data is None:
        from .generated import CONTRACTS, generated_contracts

        count = CONTRACTS if options.contracts is None else options.contracts
        return generated_contracts(count, options.seed), {}
    if options.contracts is not None and options.contracts < 1:
        msg = f"--contracts {options.contracts}: give 1 or more"
        raise UsageError(msg)
    from ...spark import spark_locally
    from ...spark.java import find_java
    from .prepare import SparkEngine, input_paths, prepare

    paths = input_paths(options.data)
    find_java()
    _say("starting Spark (5 to 15 s)")
    with spark_locally("options-market", settings.spark) as session:
        _say("Spark counts the trades")
        prepared = prepare(
            SparkEngine(session), paths, limit=options.contracts, on_bad_rows=options.on_bad_rows
        )
    return prepared.book, dict(prepared.rejected)


def _watch(job: Job) -> None:
    job.wait(watch=sys.stderr, line=_progress)


def _progress(metrics: JobMetrics) -> str:
    by_id = {operator.operator_id: operator for operator in metrics.operators}
    if not {"lines", "collector"} <= by_id.keys():
        return "starting the workers"
    read = by_id["lines"]
    decided = by_id["collector"].rows_in
    return f"{read.rows_in:,} messages, {read.rate_per_s:,.0f}/s, {decided:,} decisions"


def _say(step: str) -> None:
    sys.stderr.write(f"options-market: {step}\n")
    sys.stderr.flush()
