"""`whale-ray run options-market`: the market at a rate, and how long a decision takes.

The contracts of real data are prepared by Spark. The steps and the progress go to standard error,
the result to standard output.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ...cli.running import add_settings, settings_of
from ...configs.errors import EXIT_INTERRUPTED, JobError, UsageError
from ...transport.clock import SystemClock
from ..shared import command as shared
from ..shared.phases import Phases
from ..shared.ranges import check_whole, named_as_options
from .application import describe_result, render_result
from .comparing import (
    describe_comparison,
    draw_comparison,
    placements_here,
    render_comparison,
)
from .contracts import CONTRACTS_MAX
from .highest_rate import MISSED_SHARE, highest_rate
from .measuring import Measured, measure
from .placements import PLACEMENTS, check_given, job_settings, workers_of
from .settings import MESSAGES_MAX, OptionsMarketSettings
from .topology import APPLICATION, build

if TYPE_CHECKING:
    from ...api.job import Job
    from ...cli.parser import Parser
    from ...configs.settings import Settings
    from ...metrics.job_metrics import OperatorMetrics
    from ...operators.sinks.base import Sink
    from ...plan.explanation import Explanation
    from .contracts import ContractBook

_DEFAULTS: Final = OptionsMarketSettings()
_PLACEMENT: Final = "shared-memory"
#: Messages per second, between which `--highest` searches.
_SEARCHED: Final = (10_000.0, 10_000_000.0)


def add_arguments(parser: Parser) -> None:
    """Add the application's options."""
    market = parser.add_argument_group("market: contracts of a folder, or generated")
    market.add_argument("--data", metavar="DIR", help="with contracts and trade counts, Parquet")
    market.add_argument(
        "--contracts", type=int, metavar="N", help="the N busiest alone (default all)"
    )
    market.add_argument(
        "--highest",
        action="store_true",
        help=f"search the highest rate with less than {100 * MISSED_SHARE:g} %% missed",
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
        "--placement", choices=tuple(PLACEMENTS), help=f"{placements} (default {_PLACEMENT})"
    )
    division.add_argument(
        "--compare", action="store_true", help="all placements that run here, one by one"
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
    result = shared.add_result(
        parser, "--output", "--out", help="keep the decisions there; else only count them"
    )
    result.add_argument(
        "--plots", type=Path, metavar="DIR", help="draw what --compare found (whale-ray[plots])"
    )
    parser.need("--data", "--on-bad-rows")
    add_settings(parser)


def _add_numbers(group: argparse._ArgumentGroup, **meanings: str) -> None:
    """Add options for fields of the settings; None if left out."""
    for name, meaning in meanings.items():
        default = getattr(_DEFAULTS, name)
        option = f"--{name.replace('_', '-')}"
        told = f"{meaning} (default {default:,g})"
        group.add_argument(option, type=type(default), help=told)


def main(arguments: Sequence[str], parser: Parser) -> int:
    """Run the application; return the exit code."""
    add_arguments(parser)
    return run(parser.parse_args(arguments), ["whale-ray", "run", "options-market", *arguments])


def explain(arguments: Sequence[str], parser: Parser) -> Explanation:
    """Return the plan of what `main` would run, over generated contracts in place of read ones."""
    from ... import sinks

    add_arguments(parser)
    options = parser.parse_args(arguments)
    if options.compare:
        msg = "one placement is explained at a time; leave out --compare, give --placement"
        raise UsageError(msg)
    chosen, name = _chosen(options), options.placement or _PLACEMENT
    given = settings_of(options)
    _check(options, chosen, given, [name])
    workers = workers_of(name, options.workers, chosen.feeds)
    topology = build(
        _generated(options, chosen.seed),
        sinks.collect() if options.output is None else sinks.parquet(options.output),
        sinks.collect(),
        chosen,
        fused=PLACEMENTS[name].fused,
        unpacked=options.output is not None,
    )
    return topology.explain(workers, job_settings(name, workers, chosen.feeds, given))


def run(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Carry out parsed options; `command` is shown with the result."""
    settings = settings_of(options)
    chosen = _chosen(options)
    names, without = [options.placement or _PLACEMENT], dict[str, str]()
    if options.compare:
        names, without = placements_here()
    _check(options, chosen, settings, names)
    lack = placements_here()[1].get(options.placement)
    if lack is not None:
        msg = f"--placement {options.placement} cannot run here: {lack}; choose another one"
        raise UsageError(msg)
    sink = None
    if options.output is not None:
        sink = shared.parquet_sink(options, None, options.output)
    phases = Phases(APPLICATION)
    book, rejected = _contracts(options, chosen.seed, settings, phases)

    def described(name: str, chosen: OptionsMarketSettings, measured: Measured) -> dict[str, Any]:
        return describe_result(
            command=shlex.join(command),
            settings=chosen,
            more_settings={"on": options.on, "data": options.data},
            placement=name,
            book=book,
            rows_rejected=rejected,
            measured=measured,
            phases_s=phases.seconds,
            output=options.output,
        )

    runs = []
    for name in names:
        streamed = partial(_stream, options, settings, book, name, sink, phases)
        rate, measured = (
            _at_highest(streamed, chosen) if options.highest else (chosen.rate, streamed(chosen))
        )
        runs.append(described(name, replace(chosen, rate=rate), measured))
        if measured.state != "finished":
            _say("stopped early: what is told is of the time until then")
            without |= dict.fromkeys(names[len(runs) :], "its turn did not come")
            break
    if options.compare:
        _tell_comparison(options, describe_comparison(shlex.join(command), runs, without))
    else:
        shared.tell(runs[0], render_result(runs[0]), as_json=options.json)
    return 0 if measured.state == "finished" else EXIT_INTERRUPTED


def _chosen(options: argparse.Namespace) -> OptionsMarketSettings:
    values = {field.name: getattr(options, field.name) for field in fields(OptionsMarketSettings)}
    with named_as_options():
        if options.contracts is not None:
            check_whole("contracts", options.contracts, 1, CONTRACTS_MAX)
        given = {name: value for name, value in values.items() if value is not None}
        return OptionsMarketSettings(**given)


def _check(
    options: argparse.Namespace,
    chosen: OptionsMarketSettings,
    settings: Settings,
    names: Sequence[str],
) -> None:
    """Refuse options that mean nothing together; raises UsageError or SettingsError."""
    if options.overwrite and options.output is None:
        msg = "--overwrite means nothing without --output; leave it out"
        raise UsageError(msg)
    if options.output is not None and (options.compare or options.highest):
        msg = "--compare and --highest run the market several times; leave out --output"
        raise UsageError(msg)
    if options.compare:
        if options.placement is not None:
            msg = "--compare takes all placements; leave out --placement"
            raise UsageError(msg)
        from ...lab.bench.plots import check_plots

        check_plots(options.plots)
    elif options.plots is not None:
        msg = "--plots means nothing without --compare; leave it out"
        raise UsageError(msg)
    if options.highest and options.rate is not None:
        msg = "--highest searches the rate; leave out --rate"
        raise UsageError(msg)
    if options.engines is not None and all(PLACEMENTS[name].fused for name in names):
        msg = "--placement fused has an engine for every line; leave out --engines, or give --feeds"
        raise UsageError(msg)
    for name in names:
        check_given(name, workers_of(name, options.workers, chosen.feeds), settings)


def _stream(
    options: argparse.Namespace,
    settings: Settings,
    book: ContractBook,
    name: str,
    sink: Sink | None,
    phases: Phases,
    chosen: OptionsMarketSettings,
) -> Measured:
    """Run a placement once."""
    _say(f"streaming {chosen.rate:,.0f} messages/s, {name}")
    clock = SystemClock()
    since_ns = clock.monotonic_ns()
    measured = measure(
        book,
        chosen,
        name,
        workers=options.workers,
        more_settings=settings,
        on=options.on,
        decisions=sink,
        wait=_watch,
    )
    shared.told_phases(phases, measured.job, (clock.monotonic_ns() - since_ns) / 1e9)
    return measured


def _at_highest(
    streamed: Callable[[OptionsMarketSettings], Measured], chosen: OptionsMarketSettings
) -> tuple[float, Measured]:
    """Return the highest rate at which next to nothing is missed, and the run at this rate."""

    def at(rate: float) -> Measured:
        measured = streamed(replace(chosen, rate=rate))
        if measured.state != "finished":
            raise KeyboardInterrupt
        return measured

    low, high = _SEARCHED
    found = highest_rate(at, low, min(high, MESSAGES_MAX / chosen.seconds))
    if found.measured is None:
        msg = f"{MISSED_SHARE:.2%} of the messages or more is missed even at {low:,.0f} a second"
        raise JobError(msg)
    return found.rate, found.measured


def _tell_comparison(options: argparse.Namespace, result: dict[str, Any]) -> None:
    if options.plots is not None:
        draw_comparison(options.plots, result)
    shared.tell(result, render_comparison(result), as_json=options.json)


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
    with shared.spark_for(APPLICATION, phases, settings) as session:
        _say("Spark counts the trades")
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
    job.wait(watch=sys.stderr, line=shared.progress({"lines", "collector"}, _progress))


def _progress(by_id: Mapping[str, OperatorMetrics]) -> str:
    read = by_id["lines"]
    decided = by_id["collector"].rows_in
    return f"{read.rows_in:,} messages, {read.rate_per_s:,.0f}/s, {decided:,} decisions"


def _say(step: str) -> None:
    shared.say(APPLICATION, step)
