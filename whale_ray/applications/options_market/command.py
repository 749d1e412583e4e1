"""`whale-ray run options-market`: measures the latency of decisions at a given message rate.

Spark prepares the contracts of real data. Steps and progress go to standard error, the result to
standard output.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Final

from ...cli.running import NotStarted, add_settings, settings_of
from ...configs.errors import EXIT_INTERRUPTED, UsageError
from ...transport.clock import SystemClock
from ..shared import command as shared
from ..shared.phases import Phases
from ..shared.ranges import check_whole, named_as_options
from .contracts import CONTRACTS_MAX
from .placements import PLACEMENTS, check_given, job_settings, placements_here, workers_of
from .report import describe_result, render_result
from .settings import OptionsMarketSettings
from .topology import APPLICATION, build

if TYPE_CHECKING:
    from ...api.job import Job
    from ...api.topology import Topology
    from ...cli.parser import Parser
    from ...configs.settings import Settings
    from ...lab.bench.options_market.measuring import MarketRun
    from ...metrics.operator_metrics import OperatorMetrics
    from ...operators.sinks.base import Sink
    from ...plan.explanation import Explanation
    from .contracts import ContractBook

_DEFAULTS: Final = OptionsMarketSettings()
_PLACEMENT: Final = "shared-memory"


def add_arguments(parser: Parser) -> None:
    """Add the application's options."""
    market = parser.add_argument_group("market: contracts of a folder, or generated")
    market.add_argument("--data", metavar="DIR", help="with contracts and trade counts, Parquet")
    market.add_argument(
        "--contracts", type=int, metavar="N", help="the N busiest alone (default all)"
    )
    _add_numbers(
        market,
        rate="messages per second over all feeds",
        seconds="time that they come for",
        seed="of the trades",
    )
    shared.add_on_bad_rows(market, "rows of DIR")
    division = parser.add_argument_group("division")
    placements = "; ".join(f"{name}: {placement.what}" for name, placement in PLACEMENTS.items())
    division.add_argument(
        "--placement",
        choices=tuple(PLACEMENTS),
        default=_PLACEMENT,
        help=f"{placements} (default {_PLACEMENT})",
    )
    _add_numbers(
        division,
        feeds="feed lines, each with its handler",
        engines="decision engines, unless fused",
        line_messages="room of a line; what exceeds it is missed",
        look_us="µs between two looks of a handler at its line",
        threshold_bp="distance from the average price to act upon, in 1/10,000",
    )
    division.add_argument(
        "--on",
        choices=("ray", "processes"),
        default="processes",
        help="Ray actors or plain processes (default), on this machine",
    )
    shared.add_result_options(
        parser, "--output", "--out", help="keep the decisions there; else only count them"
    )
    parser.need("--data", "--on-bad-rows")
    add_settings(parser)


def _add_numbers(group: argparse._ArgumentGroup, **meanings: str) -> None:
    """Add options for fields of the settings; an option that is not given is None."""
    for name, meaning in meanings.items():
        default = getattr(_DEFAULTS, name)
        option = f"--{name.replace('_', '-')}"
        group.add_argument(option, type=type(default), help=f"{meaning} (default {default:,g})")


def main(arguments: Sequence[str], parser: Parser) -> int:
    """Run the application; return the exit code."""
    add_arguments(parser)
    options = parser.parse_args(arguments)
    if (instead := getattr(options, "instead", None)) is not None:
        topology, options.workers, settings = _generated_market(options)
        raise NotStarted(instead(topology, options, settings))
    return run(options, ["whale-ray", "run", "options-market", *arguments])


def explain(arguments: Sequence[str], parser: Parser) -> Explanation:
    """Return the plan of what `main` would run, with generated contracts in place of real ones."""
    add_arguments(parser)
    options = parser.parse_args(arguments)
    topology, workers, settings = _generated_market(options)
    return topology.explain(workers, settings)


def _generated_market(options: argparse.Namespace) -> tuple[Topology, int, Settings]:
    """Return the topology that `run` would start, on generated contracts; its workers, settings."""
    from ... import sinks

    chosen, name = _market_settings(options), options.placement
    given = settings_of(options)
    _check(options, chosen, given)
    workers = workers_of(name, options.workers, chosen.feeds)
    topology = build(
        _generated(options, chosen.seed),
        sinks.collect() if options.output is None else sinks.parquet(options.output),
        sinks.collect(),
        chosen,
        fused=PLACEMENTS[name].fused,
        unpacked=options.output is not None,
    )
    return topology, workers, job_settings(name, workers, chosen.feeds, given)


def run(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Run the application with parsed options; the report quotes `command`."""
    settings = settings_of(options)
    chosen = _market_settings(options)
    _check(options, chosen, settings)
    lack = placements_here()[1].get(options.placement)
    if lack is not None:
        msg = f"--placement {options.placement} cannot run here: {lack}; choose another one"
        raise UsageError(msg)
    sink = None
    if options.output is not None:
        sink = shared.parquet_sink(options, None, options.output)
    phases = Phases(APPLICATION)
    book, rejected = _contracts(options, chosen.seed, settings, phases)
    measured = _stream(options, settings, book, sink, phases, chosen)
    result = describe_result(
        command=shlex.join(command),
        settings=chosen,
        more_settings={"on": options.on, "data": options.data},
        placement=options.placement,
        book=book,
        rows_rejected=rejected,
        measured=measured,
        phases_s=phases.seconds,
        output=options.output,
    )
    is_finished = measured.state == "finished"
    if not is_finished:
        _log_step("stopped early: the figures are of the time until then")
    shared.print_result(result, render_result(result), as_json=options.json)
    return 0 if is_finished else EXIT_INTERRUPTED


def _market_settings(options: argparse.Namespace) -> OptionsMarketSettings:
    values = {field.name: getattr(options, field.name) for field in fields(OptionsMarketSettings)}
    with named_as_options():
        if options.contracts is not None:
            check_whole("contracts", options.contracts, 1, CONTRACTS_MAX)
        given = {name: value for name, value in values.items() if value is not None}
        return OptionsMarketSettings(**given)


def _check(options: argparse.Namespace, chosen: OptionsMarketSettings, settings: Settings) -> None:
    """Refuse options that contradict each other; raises UsageError or SettingsError."""
    if options.overwrite and options.output is None:
        msg = "--overwrite means nothing without --output; leave it out"
        raise UsageError(msg)
    if options.engines is not None and PLACEMENTS[options.placement].fused:
        msg = "--placement fused has an engine for every line; leave out --engines, or give --feeds"
        raise UsageError(msg)
    workers = workers_of(options.placement, options.workers, chosen.feeds)
    check_given(options.placement, workers, settings)


def _stream(
    options: argparse.Namespace,
    settings: Settings,
    book: ContractBook,
    sink: Sink | None,
    phases: Phases,
    chosen: OptionsMarketSettings,
) -> MarketRun:
    """Run the application once, and record its phases."""
    from ...lab.bench.options_market.measuring import measure

    _log_step(f"streaming {chosen.rate:,.0f} messages/s, {options.placement}")
    clock = SystemClock()
    since_ns = clock.monotonic_ns()
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
    shared.record_phases(phases, measured.job, (clock.monotonic_ns() - since_ns) / 1e9)
    return measured


def _contracts(
    options: argparse.Namespace, seed: int, settings: Settings, phases: Phases
) -> tuple[ContractBook, dict[str, int]]:
    """Return the contracts, and "input: reason" → rows left out."""
    if options.data is None:
        with phases.phase("generating"):
            return _generated(options, seed), {}
    from .prepare import SparkEngine, input_paths, prepare

    paths = input_paths(options.data)
    shared.check_spark("--data", "leave it out: generated contracts need no Spark")
    with shared.spark_session(APPLICATION, phases, settings) as session:
        _log_step("Spark counts the trades")
        with phases.phase("preparation"):
            engine = SparkEngine(session)
            prepared = prepare(
                engine, paths, limit=options.contracts, on_bad_rows=options.on_bad_rows
            )
    return prepared.book, dict(prepared.rejected)


def _generated(options: argparse.Namespace, seed: int) -> ContractBook:
    from .generated import CONTRACTS, generated_contracts

    count = CONTRACTS if options.contracts is None else options.contracts
    return generated_contracts(count, seed)


def _watch(job: Job) -> None:
    job.wait(watch=sys.stderr, line=shared.progress_line({"lines", "collector"}, _progress))


def _progress(by_id: Mapping[str, OperatorMetrics]) -> str:
    read = by_id["lines"]
    decided = by_id["collector"].rows_in
    return f"{read.rows_in:,} messages, {read.rate_per_s:,.0f}/s, {decided:,} decisions"


def _log_step(step: str) -> None:
    shared.log_step(APPLICATION, step)
