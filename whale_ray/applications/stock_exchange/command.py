"""`whale-ray run stock-exchange`: the topology over generated orders or an exchange's real day.

Spark prepares real orders, and compares the fills with the exchange's own. Steps and progress go to
standard error, the result to standard output.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...cli.running import (
    add_placement,
    add_settings,
    check_placement,
    explained,
    settings_of,
)
from ...configs.errors import EXIT_FAILURE, EXIT_INTERRUPTED, UsageError
from ..shared import command as shared
from ..shared.phases import Phases
from ..shared.ranges import named_as_options
from .calendar import SHANGHAI, TradingCalendar
from .prepare import FillComparison, PreparedOrders, compare, input_paths, prepare
from .report import count_traded, describe_result, render_result
from .settings import StockExchangeSettings
from .topology import APPLICATION, build

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...api.job import Job
    from ...cli.parser import Parser
    from ...configs.settings import Settings
    from ...metrics.operator_metrics import OperatorMetrics
    from ...operators.sources.base import Source
    from ...plan.explanation import Explanation
    from .generator import OrderGeneratorSettings

DEFAULT_OUTPUT = "out/stock-exchange"
_GENERATED_ROWS = 1_000_000
_KEPT_INPUTS = "orders"


def add_arguments(parser: Parser) -> None:
    """Add the application's options."""
    source = parser.add_argument_group("input: a folder, or generated")
    either = source.add_mutually_exclusive_group()
    either.add_argument("--data", metavar="DIR", help="with orders and trades as Parquet")
    either.add_argument(
        "--generate", type=int, metavar="N", help=f"orders (default {_GENERATED_ROWS:,})"
    )
    source.add_argument("--symbols", type=int, default=6_649, help="to generate (default 6,649)")
    source.add_argument("--seed", type=int, default=1, help="of the generator (default 1)")
    shared.add_on_bad_rows(source, "rows of DIR")
    source.add_argument(
        "--calendar",
        metavar="PHASES",
        help=f"zone and phases of a day of DIR's exchange (default {str(SHANGHAI)!r})",
    )
    books = parser.add_argument_group("books")
    books.add_argument(
        "--parallelism", type=int, default=16, help="matching instances (default 16)"
    )
    result = shared.add_result_options(parser, "--output", "--out", default=DEFAULT_OUTPUT)
    result.add_argument(
        "--no-compare", action="store_true", help="do not compare with the exchange's own fills"
    )
    parser.exclude("--data", "--symbols", "--seed")
    parser.need("--data", "--no-compare", "--on-bad-rows")
    add_placement(parser)
    add_settings(parser)


def main(arguments: Sequence[str], parser: Parser) -> int:
    """Run the application; return the exit code."""
    add_arguments(parser)
    return run(parser.parse_args(arguments), ["whale-ray", "run", "stock-exchange", *arguments])


def explain(arguments: Sequence[str], parser: Parser) -> Explanation:
    """Return the plan of what `main` would run, over generated orders."""
    from ... import sinks
    from .generator import OrderGeneratorSettings, orders

    add_arguments(parser)
    options = parser.parse_args(arguments)
    fills, volumes = (
        sinks.parquet(str(Path(options.output) / name), overwrite=True)
        for name in ("fills", "volumes")
    )
    exchange = _exchange_settings(options)
    return explained(build(orders(OrderGeneratorSettings()), fills, volumes, exchange), options)


@dataclass(frozen=True)
class _OrderInput:
    """The source of the orders; `prepared` and `spark` are None for generated orders."""

    source: Source
    rows: int
    prepared: PreparedOrders | None = None
    spark: SparkSession | None = None


def run(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Run the application with parsed options; the report quotes `command`."""
    settings = settings_of(options)
    check_placement(options, settings)
    calendar = _calendar(options)
    exchange = _exchange_settings(options)
    fills, volumes = (
        shared.parquet_sink(options, DEFAULT_OUTPUT, Path(options.output) / name)
        for name in ("fills", "volumes")
    )
    phases = Phases(APPLICATION)
    with ExitStack() as stack:
        given = _input(options, settings, calendar, phases, stack)
        topology = build(given.source, fills, volumes, exchange)
        _log_step("streaming")
        job = shared.run_job(phases, topology, options, settings, _progress_line(given.rows))
        if options.detach:
            return 0
        return _report(options, exchange, command, given, job, phases)


def _exchange_settings(options: argparse.Namespace) -> StockExchangeSettings:
    """Return the settings from the options; raises UsageError for any number out of range."""
    with named_as_options(matching_instances="--parallelism", records="--generate"):
        _generator(options)
        return StockExchangeSettings(matching_instances=options.parallelism)


def _generator(options: argparse.Namespace) -> OrderGeneratorSettings:
    from .generator import OrderGeneratorSettings

    records = _GENERATED_ROWS if options.generate is None else options.generate
    return OrderGeneratorSettings(records=records, symbols=options.symbols, seed=options.seed)


def _calendar(options: argparse.Namespace) -> TradingCalendar:
    if options.calendar is None:
        return SHANGHAI
    if options.data is None:
        msg = "--calendar means nothing without --data: generated orders keep Shanghai's hours"
        raise UsageError(msg)
    return TradingCalendar.parse(options.calendar)


def _input(
    options: argparse.Namespace,
    settings: Settings,
    calendar: TradingCalendar,
    phases: Phases,
    stack: ExitStack,
) -> _OrderInput:
    if options.data is None:
        from .generator import orders

        chosen = _generator(options)
        return _OrderInput(orders(chosen), chosen.records)
    from ... import sources

    shared.check_spark("--data", "leave it out: generated orders need no Spark")
    if options.detach:
        shared.check_detached(options, _KEPT_INPUTS)  # before minutes of preparation
    paths = input_paths(options.data)
    on_ray = options.on == "ray"
    spark = stack.enter_context(
        shared.spark_session(APPLICATION, phases, settings, on_ray=on_ray, address=options.address)
    )
    _log_step("Spark rebuilds the orders")
    with phases.phase("preparation"):
        prepared = prepare(spark, paths, calendar=calendar, on_bad_rows=options.on_bad_rows)
    if not prepared.continuous:
        _log_step(
            f"no row lies in continuous trading of the calendar {str(calendar)!r}: the rows go from"
            f" {prepared.span} there; give the exchange's own hours with --calendar"
        )
    with phases.phase("hand-over of the rows"):
        if options.detach:
            (path,) = shared.kept_input_folders(options, _KEPT_INPUTS)
            _log_step(f"writing the prepared orders to {path}: the job outlives Spark")
            source = shared.save_as_files(prepared.stream.coalesce(1), path)
        else:
            source = sources.spark(prepared.stream).materialize(cluster=on_ray)
    return _OrderInput(source, prepared.rows, prepared, spark)


def _progress_line(rows: int) -> shared.ProgressLine:
    """Return a progress line: share of the input read, orders per second, fills."""

    def shown(by_id: Mapping[str, OperatorMetrics]) -> str:
        read = by_id["orders"]
        return (
            f"{min(read.rows_in / max(rows, 1), 1):4.0%} of {rows:,} orders, "
            f"{read.rate_per_s:,.0f}/s, {by_id['match'].rows_out:,} fills"
        )

    return shared.progress_line({"orders", "match"}, shown)


def _report(
    options: argparse.Namespace,
    exchange: StockExchangeSettings,
    command: Sequence[str],
    given: _OrderInput,
    job: Job,
    phases: Phases,
) -> int:
    outcome = job.outcome()
    fills, volumes = job.results("fills"), job.results("volumes")
    metrics = outcome.metrics
    rejected = dict(given.prepared.rejected) if given.prepared else {}
    refused = metrics.operator("valid").rows_in - metrics.operator("valid").rows_out
    if refused:
        rejected["orders: against the trading rules"] = refused
    finished = job.state == "finished"
    comparison = _compared(options, given, fills, phases) if finished else None
    run = shared.describe_run(
        options,
        command,
        outcome,
        "fills",
        rows_in=given.prepared.rows_in if given.prepared else {"orders": given.rows},
        rows_rejected=rejected,
        streamed=metrics.operator("orders").rows_out,
        phases=phases,
        more_settings={
            "symbols": None if options.data else options.symbols,
            "seed": None if options.data else options.seed,
            "calendar": str(_calendar(options)),
        },
    )
    result = describe_result(
        run,
        exchange,
        traded=count_traded(fills.path),
        comparison=comparison,
        volume_rows=volumes.rows,
        output=options.output,
    )
    if not finished:
        shared.log_early_stop(APPLICATION, fills, volumes)
    shown = render_result(result, volumes.preview(5), fills.load_line)
    shared.print_result(result, shown, as_json=options.json)
    if not finished:
        return EXIT_INTERRUPTED
    differs = result["compared"] is not None and not _is_equal(result)
    return EXIT_FAILURE if differs else 0


def _is_equal(result: dict[str, Any]) -> bool:
    return bool(result["compared"] == result["equal"] and not result["surplus"])


def _compared(
    options: argparse.Namespace, given: _OrderInput, fills: Any, phases: Phases
) -> FillComparison | None:
    if given.prepared is None or given.spark is None or options.no_compare:
        return None
    from ...spark import to_spark

    _log_step("comparing with the exchange's own fills")
    with phases.phase("comparison"):
        return compare(given.spark, given.prepared, to_spark(fills, given.spark))


def _log_step(step: str) -> None:
    shared.log_step(APPLICATION, step)
