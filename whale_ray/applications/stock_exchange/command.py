"""`whale-ray run stock-exchange`: the topology over generated orders or an exchange's real day.

Real orders are prepared by Spark, and the fills compared with the exchange's own. The steps and the
progress go to standard error, the result to standard output.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...cli.running import add_placement, add_settings, check_placement, settings_of
from ...configs.errors import EXIT_FAILURE, EXIT_INTERRUPTED, UsageError
from .application import describe_result, render_result, traded_in
from .prepare import Comparison, Prepared, compare, input_paths, prepare
from .settings import StockExchangeSettings
from .topology import build

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ...configs.settings import Settings
    from ...operators.sources.base import Source
    from ...runtime.job import Job
    from ...runtime.metrics import JobMetrics
    from ...topology import Topology

DEFAULT_OUTPUT = "out/stock-exchange"
_GENERATED_ROWS = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the application's options."""
    source = parser.add_argument_group("input: a folder, or generated")
    either = source.add_mutually_exclusive_group()
    either.add_argument("--data", metavar="DIR", help="with orders and trades as Parquet")
    either.add_argument(
        "--generate", type=int, metavar="N", help=f"orders (default {_GENERATED_ROWS:,})"
    )
    source.add_argument("--symbols", type=int, default=6_649, help="to generate (default 6,649)")
    source.add_argument("--seed", type=int, default=1, help="of the generator (default 1)")
    source.add_argument(
        "--on-bad-rows",
        choices=("drop", "fail"),
        default="drop",
        help="rows of DIR that cannot be used: leave out and count (default), or refuse",
    )
    books = parser.add_argument_group("books")
    books.add_argument(
        "--parallelism", type=int, default=16, help="matching instances (default 16)"
    )
    result = parser.add_argument_group("result")
    result.add_argument("--output", "--out", default=DEFAULT_OUTPUT, metavar="DIR")
    result.add_argument("--overwrite", action="store_true", help="replace an output of before")
    result.add_argument(
        "--no-compare", action="store_true", help="do not compare with the exchange's own fills"
    )
    result.add_argument("--json", action="store_true", help="one JSON object on the last line")
    add_placement(parser)
    add_settings(parser)


def main(arguments: Sequence[str], parser: argparse.ArgumentParser) -> int:
    """Run the application; return the exit code."""
    add_arguments(parser)
    return run(parser.parse_args(arguments), ["whale-ray", "run", "stock-exchange", *arguments])


@dataclass(frozen=True)
class _Input:
    """Where the orders come from; the last two are None for generated ones."""

    source: Source
    rows: int
    prepared: Prepared | None = None
    spark: SparkSession | None = None


def run(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Carry out parsed options; `command` is shown with the result."""
    settings = settings_of(options)
    check_placement(options, settings)
    if options.data is None and options.no_compare:
        msg = "--no-compare means nothing without --data; leave it out"
        raise UsageError(msg)
    division = StockExchangeSettings(matching_instances=options.parallelism)
    fills, volumes = _sink(options, "fills"), _sink(options, "volumes")
    for sink in (fills, volumes):
        sink.check()  # before minutes of preparation
    with ExitStack() as stack:
        taken = _input(options, settings, stack)
        topology = build(taken.source, fills, volumes, division)
        job = _start(options, settings, topology, taken.rows)
        if options.detach:
            sys.stdout.write(f"{job.id}\n")
            return 0
        return _report(options, division, command, taken, job)


def example_topology() -> Topology:
    """Return the topology over generated orders, to be explained."""
    from ... import sinks
    from .generator import GeneratorSettings, orders

    fills, volumes = (
        sinks.parquet(f"{DEFAULT_OUTPUT}/{name}", overwrite=True) for name in ("fills", "volumes")
    )
    return build(orders(GeneratorSettings()), fills, volumes)


def _sink(options: argparse.Namespace, name: str) -> Any:
    from ... import sinks

    overwrite = options.overwrite or options.output == DEFAULT_OUTPUT
    return sinks.parquet(str(Path(options.output) / name), overwrite=overwrite)


def _input(options: argparse.Namespace, settings: Settings, stack: ExitStack) -> _Input:
    if options.data is None:
        from .generator import GeneratorSettings, orders

        records = _GENERATED_ROWS if options.generate is None else options.generate
        chosen = GeneratorSettings(records=records, symbols=options.symbols, seed=options.seed)
        return _Input(orders(chosen), records)
    from ... import sources
    from ...spark.java import find_java

    find_java()
    paths = input_paths(options.data)
    spark = stack.enter_context(_spark(options, settings))
    _say("Spark rebuilds the orders")
    prepared = prepare(spark, paths, on_bad_rows=options.on_bad_rows)
    source = sources.spark(prepared.stream)
    if options.detach:
        path = Path(f"{options.output}-input").absolute()
        _say(f"writing the prepared orders to {path}: the job outlives Spark")
        prepared.stream.coalesce(1).write.mode("overwrite").parquet(str(path))
        source = sources.parquet(str(path))
    return _Input(source, prepared.rows, prepared, spark)


@contextmanager
def _spark(options: argparse.Namespace, settings: Settings) -> Iterator[SparkSession]:
    from ... import spark

    if options.on == "ray":
        _say("starting Ray and Spark (15 to 40 s)")
        with spark.spark_on_ray("stock-exchange", settings.spark, options.address) as session:
            yield session
    else:
        _say("starting Spark (5 to 15 s)")
        with spark.spark_locally("stock-exchange", settings.spark) as session:
            yield session


def _start(options: argparse.Namespace, settings: Settings, topology: Topology, rows: int) -> Job:
    from ...runtime.api import run as run_here
    from ...runtime.api import submit

    _say("streaming")
    if options.on == "inline":
        return run_here(topology, settings=settings)
    job = submit(
        topology,
        on=options.on,
        address=options.address,
        workers=options.workers,
        settings=settings,
        detach=options.detach,
    )
    if not options.detach:
        job.wait(watch=sys.stderr, line=None if options.watch else _Progress(rows))
    return job


class _Progress:
    """The progress line: how much of the input has been read, how fast, what came out."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def __call__(self, metrics: JobMetrics) -> str:
        by_id = {operator.operator_id: operator for operator in metrics.operators}
        if not {"orders", "match"} <= by_id.keys():
            return "starting the workers"
        read = by_id["orders"]
        return (
            f"{min(read.rows_in / max(self._rows, 1), 1):4.0%} of {self._rows:,} orders, "
            f"{read.rate_per_s:,.0f}/s, {by_id['match'].rows_out:,} fills"
        )


def _report(
    options: argparse.Namespace,
    division: StockExchangeSettings,
    command: Sequence[str],
    taken: _Input,
    job: Job,
) -> int:
    outcome = job.outcome()
    fills, volumes = job.results("fills"), job.results("volumes")
    metrics = outcome.metrics
    sink = metrics.operator("fills")
    rejected = dict(taken.prepared.rejected) if taken.prepared else {}
    refused = metrics.operator("valid").rows_in - metrics.operator("valid").rows_out
    if refused:
        rejected["orders: against the trading rules"] = refused
    traded = traded_in(fills.path)
    finished = job.state == "finished"
    result = describe_result(
        command=shlex.join(command),
        settings=division,
        more_settings={
            "on": options.on,
            "workers": outcome.workers,
            "data": options.data,
            "symbols": None if options.data else options.symbols,
            "seed": None if options.data else options.seed,
        },
        rows_in=taken.prepared.rows_in if taken.prepared else {"orders": taken.rows},
        streamed=metrics.operator("orders").rows_out,
        rows_rejected=rejected,
        traded=traded,
        comparison=_compared(options, taken, fills) if finished else None,
        volume_rows=volumes.rows,
        seconds=outcome.seconds,
        restarts=outcome.restarts,
        latency_ms=(sink.latency_p50_ms, sink.latency_p99_ms),
        output=options.output,
    )
    if not finished:
        _say("stopped early: the output answers what had been read until then")
    sys.stdout.write(render_result(result, volumes.preview(5), fills.load_line) + "\n")
    if options.json:
        sys.stdout.write(json.dumps(result) + "\n")
    if not finished:
        return EXIT_INTERRUPTED
    differs = result["compared"] is not None and not _is_equal(result)
    return EXIT_FAILURE if differs else 0


def _is_equal(result: dict[str, Any]) -> bool:
    return bool(result["compared"] == result["equal"] and not result["surplus"])


def _compared(options: argparse.Namespace, taken: _Input, fills: Any) -> Comparison | None:
    if taken.prepared is None or taken.spark is None or options.no_compare:
        return None
    from ...spark import to_spark

    _say("comparing with the exchange's own fills")
    return compare(taken.spark, taken.prepared, to_spark(fills, taken.spark))


def _say(step: str) -> None:
    sys.stderr.write(f"stock-exchange: {step}\n")
    sys.stderr.flush()
