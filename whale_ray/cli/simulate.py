"""`whale-ray simulate`: one-to-many in virtual time, its figures, calibration and validation."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..configs.errors import EXIT_FAILURE, UsageError
from ..configs.json_text import json_text
from .parser import did_you_mean

if TYPE_CHECKING:
    from ..lab.simulator.costs import MachineCosts
    from ..lab.simulator.model import Scenario
    from ..lab.simulator.outcome import SimulationOutcome

_EPILOG = (
    "Without --calibrate, --validate or --hosts it draws all figures into a folder: "
    "parallelism, trees, multicast-latency, dynamic, load, scale."
)
_COSTS = ("measured", "published")
_ONE_RUN = ("route", "degree", "rate", "seconds", "queue", "slice_bytes", "link_mbit", "overrides")
_DEFAULTS: dict[str, Any] = {
    "route": "non-blocking",
    "degree": 0,
    "rate": 1000.0,
    "seconds": 5.0,
    "queue": 64,
    "slice_bytes": 64 << 10,
    "link_mbit": None,
    "overrides": [],
}


def add_simulate(commands: Any) -> None:
    """Add `simulate`."""
    command = commands.add_parser(
        "simulate",
        help="simulate one-to-many: the figures of Whale, and up to 10,000 hosts",
        epilog=_EPILOG,
    )
    what = command.add_mutually_exclusive_group()
    what.add_argument(
        "--calibrate", action="store_true", help="measure what slices cost on this machine"
    )
    what.add_argument(
        "--validate", action="store_true", help="compare with the real runtime on this machine"
    )
    what.add_argument("--hosts", type=int, metavar="N", help="simulate one stream to N hosts")
    command.add_argument(
        "--only", action="append", default=[], metavar="FIGURE", help="one figure (repeatable)"
    )
    command.add_argument(
        "--out", default="simulated", metavar="DIR", help="where figures go (%(default)s)"
    )
    command.add_argument("--seed", type=int, default=1, help="of all arrivals (%(default)s)")
    command.add_argument("--quick", action="store_true", help="fewer points, shorter runs")
    command.add_argument(
        "--costs",
        default="measured",
        metavar="FILE",
        help="written by --calibrate; or 'measured' (default) or 'published' (t_e = 5.2 µs)",
    )
    command.add_argument("--write", metavar="FILE", help="with --calibrate: keep the costs (JSON)")
    command.add_argument("--no-plots", action="store_true", help="numbers only, no drawings")
    command.add_argument("--json", action="store_true", help="one JSON object on the last line")
    _add_one_run(command)
    for other in ("--hosts", "--calibrate", "--validate"):
        command.exclude(other, "--out", "--no-plots")
    command.exclude("--calibrate", "--costs")
    command.set_defaults(function=_simulate)


def _add_one_run(command: argparse.ArgumentParser) -> None:
    run = command.add_argument_group("one run (with --hosts)")
    run.add_argument("--route", help="non-blocking (default), binomial, star, chain")
    run.add_argument("--degree", type=int, help="out-degree of a non-blocking tree; 0: adjusted")
    run.add_argument("--rate", type=float, help="slices per second (1000)")
    run.add_argument("--seconds", type=float, help="how long they are emitted (5)")
    run.add_argument("--queue", type=int, help="slices that a ring holds, Q (64)")
    run.add_argument("--slice-bytes", type=int, help="bytes of a slice (65536)")
    run.add_argument("--link-mbit", type=float, help="of every host's link; no limit without it")
    run.add_argument(
        "--set",
        action="append",
        metavar="KEY=VALUE",
        dest="overrides",
        help="a setting, such as multicast.threshold_up=0.5 (may be repeated)",
    )


def _simulate(parsed: argparse.Namespace) -> int:
    if parsed.seed < 0:
        msg = f"--seed {parsed.seed}: it must be 0 or more"
        raise UsageError(msg)
    _refuse_idle_options(parsed)
    if parsed.calibrate:
        return _calibrate(parsed)
    if parsed.validate:
        return _validate(parsed)
    if parsed.hosts is not None:
        return _one_run(parsed)
    return _figures(parsed)


def _refuse_idle_options(parsed: argparse.Namespace) -> None:
    """Raise UsageError for options that have no effect with the chosen action."""
    if parsed.hosts is None:
        for name in _ONE_RUN:
            if getattr(parsed, name) is not None:
                option = "--set" if name == "overrides" else f"--{name.replace('_', '-')}"
                msg = f"{option} means nothing without --hosts"
                raise UsageError(msg)
    if parsed.write is not None and not parsed.calibrate:
        msg = "--write means nothing without --calibrate"
        raise UsageError(msg)
    if parsed.only and (parsed.calibrate or parsed.validate or parsed.hosts is not None):
        msg = "--only chooses among figures; leave out --calibrate, --validate and --hosts"
        raise UsageError(msg)


def costs_named(named: str) -> MachineCosts:
    """Return costs by a word or the path of a file; raise UsageError for another name."""
    from ..lab.simulator.costs import read_costs
    from ..lab.simulator.default_costs import MEASURED, PUBLISHED

    if named == "measured":
        return MEASURED
    if named == "published":
        return PUBLISHED
    if not Path(named).exists():
        msg = f"--costs {named}: no such file{did_you_mean(named, _COSTS)}; or measured, published"
        raise UsageError(msg)
    return read_costs(Path(named))


def _report_progress(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


# --- figures --------------------------------------------------------------------------------


def _figures(parsed: argparse.Namespace) -> int:
    from ..lab.simulator import plots
    from ..lab.simulator.figures import Setup
    from ..lab.simulator.figures_at_scale import FIGURES

    chosen = _chosen(parsed.only, list(FIGURES))
    costs = costs_named(parsed.costs)
    if not parsed.no_plots:
        plots.check_matplotlib()
    setup = Setup(costs, parsed.seed, parsed.quick)
    written = {}
    sys.stdout.write(f"simulated, seed {parsed.seed}; costs of: {costs.machine}\n")
    for name in chosen:
        figure = FIGURES[name](setup)
        files = plots.write(figure, Path(parsed.out), plots=not parsed.no_plots)
        written[name] = [str(path) for path in files]
        sys.stdout.write(f"\n{name} ({figure.paper}): {', '.join(written[name])}\n")
        for finding in figure.findings:
            sys.stdout.write(f"  {finding}\n")
        sys.stdout.flush()
    if parsed.json:
        sys.stdout.write(json_text({"simulated": True, "figures": written}) + "\n")
    return 0


def _chosen(only: Sequence[str], known: list[str]) -> list[str]:
    for name in only:
        if name not in known:
            msg = (
                f"unknown figure {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}"
            )
            raise UsageError(msg)
    return list(dict.fromkeys(only)) or known


# --- one run --------------------------------------------------------------------------------


def _one_run(parsed: argparse.Namespace) -> int:
    from ..lab.simulator.arrivals import RateStep, poisson
    from ..lab.simulator.run import simulate

    given = {
        name: default if getattr(parsed, name) is None else getattr(parsed, name)
        for name, default in _DEFAULTS.items()
    }
    scenario = _scenario(parsed.hosts, given, costs_named(parsed.costs))
    emitted_s = poisson([RateStep(given["rate"], given["seconds"])], parsed.seed)
    outcome = simulate(scenario, emitted_s)
    figures = _as_dict(outcome)
    if parsed.json:
        sys.stdout.write(json_text({"simulated": True, "seed": parsed.seed, **figures}) + "\n")
        return 0
    sys.stdout.write(f"simulated, seed {parsed.seed}: {scenario.route} to {parsed.hosts:,} hosts\n")
    for name, value in figures.items():
        if name != "switches":
            sys.stdout.write(f"  {name.replace('_', ' ')}: {value:,.6g}\n")
    for switch in figures["switches"]:
        sys.stdout.write(
            f"  switch at {switch['began_s']:.3f} s: d {switch['degree_before']}→"
            f"{switch['degree_after']}, {switch['moved_edges']} edges moved in "
            f"{switch['duration_ms']:.1f} ms\n"
        )
    return 0


def _scenario(hosts: int, given: dict[str, Any], costs: MachineCosts) -> Scenario:
    from ..configs.loading import load_settings
    from ..lab.simulator.costs import LinkRate
    from ..lab.simulator.model import Scenario

    overrides: dict[str, object] = {}
    for entry in given["overrides"]:
        key, equals, value = entry.partition("=")
        if not equals:
            msg = f"--set {entry} lacks its value; write --set {key}=VALUE"
            raise UsageError(msg)
        overrides[key] = value
    settings = load_settings(overrides=overrides)
    return Scenario(
        hosts,
        costs.slice_costs(given["slice_bytes"], LinkRate(given["link_mbit"])),
        given["route"],
        given["degree"],
        queue_slices=given["queue"],
        settings=settings.multicast,
    )


def _as_dict(outcome: SimulationOutcome) -> dict[str, Any]:
    latency = outcome.multicast
    return {
        "slices": outcome.slices,
        "offered_slices_per_s": outcome.offered_per_s,
        "throughput_slices_per_s": outcome.throughput_per_s,
        "multicast_latency_mean_ms": latency.mean_s * 1e3,
        "multicast_latency_p99_ms": latency.p99_s * 1e3,
        "mean_queue_slices": outcome.mean_queue_slices(),
        "held_back_mean_ms": outcome.held_back_s / outcome.slices * 1e3,
        "switches": [
            {
                "began_s": switch.began_s,
                "duration_ms": switch.duration_s * 1e3,
                "degree_before": switch.degree_before,
                "degree_after": switch.degree_after,
                "moved_edges": switch.moved_edges,
                "reason": switch.reason,
            }
            for switch in outcome.switches
        ],
    }


# --- calibration and validation -------------------------------------------------------------


def _calibrate(parsed: argparse.Namespace) -> int:
    from ..lab.simulator.calibration import calibrate

    found = calibrate(quick=parsed.quick, tell=_report_progress)
    content = found.costs.as_dict()
    if parsed.write is not None:
        found.costs.write(Path(parsed.write))
    if parsed.json:
        sys.stdout.write(json_text(content) + "\n")
        return 0
    for name, value in content.items():
        sys.stdout.write(f"{name}: {_as_cost(value)}\n")
    for note in found.notes:
        sys.stdout.write(f"{note}\n")
    return 0


def _as_cost(value: object) -> str:
    if isinstance(value, dict):
        per_slice, per_byte = value["per_slice_s"], value["per_byte_s"]
        return f"{per_slice * 1e6:.3g} µs per slice + {per_byte * 1e9:.3g} ns per byte"
    if isinstance(value, float) and math.isfinite(value):
        return f"{value * 1e6:.3g} µs"
    return str(value)


def _validate(parsed: argparse.Namespace) -> int:
    from ..lab.simulator import validation

    costs = costs_named(parsed.costs)
    cores = len(os.sched_getaffinity(0))
    seconds = 1.5 if parsed.quick else 3.0
    found = validation.validate(costs, cores, parsed.seed, seconds=seconds, tell=_report_progress)
    sys.stdout.write(f"costs of: {costs.machine}; {cores} cores, seed {parsed.seed}\n")
    sys.stdout.write(validation.table(found) + "\n")
    if parsed.json:
        rows = [one.as_dict() for one in found]
        sys.stdout.write(json_text({"costs": costs.as_dict(), "rows": rows}) + "\n")
    return 0 if sum(one.holds for one in found) >= validation.HOLDING_MIN else EXIT_FAILURE
