"""`optimize` of a topology that is measured: calibration, decisions, predictions, their check."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..configs.errors import EXIT_FAILURE
from ..configs.json_text import json_text
from .optimize_stated import described, lines_of, write_file
from .parser import Parser
from .running import (
    APPLICATIONS,
    NotStarted,
    add_own_options,
    command_of,
    load_topology,
    settings_of,
    start_job,
)
from .tables import table

if TYPE_CHECKING:
    from ..api.topology import Topology
    from ..configs.settings import Settings
    from ..tuning.optimizing import CheckedPrediction, Tuned

_NOT_MEASURED = "–"
_AS_FAST = 0.9


def run(parsed: argparse.Namespace, rest: Sequence[str]) -> int:
    """Measure and optimize a topology; return the exit code.

    Args:
        parsed: the options of `optimize`.
        rest: those of the application, or of `run`.
    """

    def instead(topology: Topology, options: argparse.Namespace, settings: Settings) -> int:
        return _optimize(parsed, topology, settings, options.workers)

    parser = Parser(prog=f"whale-ray optimize {parsed.app}")
    parser.set_defaults(instead=instead)
    try:
        if parsed.app in APPLICATIONS:
            code: int = command_of(parsed.app).main([*rest, "--on", "processes"], parser)
            return code
        add_own_options(parser)
        options = parser.parse_args([*rest, "--on", "processes"])
        start_job(load_topology(parsed.app), options, settings_of(options))
    except NotStarted as done:
        return done.code
    return 0


def _optimize(
    parsed: argparse.Namespace, topology: Topology, settings: Settings, workers: int | None
) -> int:
    from ..optimizer.decisions import log_to_yaml
    from ..plan.preflight import preflight
    from ..tspec.exporting import spec_of
    from ..tspec.writing import tspec_to_yaml
    from ..tuning.applying import with_choices
    from ..tuning.optimizing import compare, readable, tune

    logical = topology.logical_plan()
    preflight(logical, checkpoints=False, restores=False)
    if parsed.write:
        spec_of(logical)  # refused before anything is measured
    with readable(logical, settings) as prepared:
        tuned = tune(
            prepared,
            settings,
            workers,
            cores=parsed.cores,
            hosts=parsed.hosts,
            rates=_rates(parsed.app),
            batch_bytes_max=parsed.batch_bytes_max,
            rounds=parsed.rounds,
            report=_report,
        )
        found = list(compare(tuned, rounds=parsed.rounds, report=_report))
    if parsed.log:
        write_file(parsed.log, log_to_yaml(topology.name, tuned.optimization.steps))
    if parsed.write:
        choices = tuned.optimization.choices
        changed = with_choices(logical, tuned.calibration.plan, choices)
        write_file(parsed.write, tspec_to_yaml(spec_of(changed)))
    if parsed.json:
        sys.stdout.write(json_text(_as_json(tuned, found)) + "\n")
    else:
        sys.stdout.write("\n".join(_shown(tuned, found, parsed.steps)) + "\n")
    return 0 if tuned.optimization.throughput == 1 or not _rates(parsed.app) else EXIT_FAILURE


def _rates(app: str) -> dict[str, float]:
    """Return the rates that a tspec file states for its sources."""
    if not app.endswith((".yaml", ".yml")):
        return {}
    from ..tspec.reading import read_tspec

    return {
        one.id: one.rate_per_s for one in read_tspec(app).operators if one.rate_per_s is not None
    }


def _report(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _shown(tuned: Tuned, found: Sequence[CheckedPrediction], steps: bool) -> list[str]:
    calibration = tuned.calibration
    dataflow, sending = calibration.dataflow(tuned.cores, {})
    costs = [
        {
            "stage": node.id,
            "ppt µs": f"{node.ppt_ns / 1e3:.3g}",
            "n µs": f"{(node.message_ns or 0) / 1e3:.3g}",
            "received message µs": f"{node.receive_ns / 1e3:.3g}",
            "rows per row read": f"{calibration.stage_flow[node.id]:.4g}",
        }
        for node in dataflow.in_order
    ]
    lines = ["what was measured, in processor time:", *table(costs), ""]
    machine = f"on this machine, s = {sending.byte_ns:.3g} ns a byte"
    lines += lines_of(tuned.optimization, dataflow, machine, tuned.cores, steps)
    lines += ["", *table([_row(one) for one in found]), ""]
    lines.append(
        "measured: rows that all sources read per second of processor time, the busiest worker's;"
        f" by the wall's clock with a load of {os.getloadavg()[0]:.1f} on the machine"
    )
    if any(one.predicted_spread or one.measured_spread for one in found):
        lines.append("±: half of what lies between the lowest and the highest of the rounds")
    if not all(one.wall_per_s for one in found):
        lines.append(
            f"{_NOT_MEASURED}: the input had ended before it could be measured; give a longer one"
        )
    if (slower := _slower(found)) is not None:
        lines.append(slower)
    if tuned.cut_short:
        trials = ", ".join(f"{name} ({share:.0%})" for name, share in tuned.cut_short.items())
        lines.append(
            f"trials that were cut short, and so count less: {trials}; give a longer input, or run"
            " it while the machine has less to do"
        )
    if calibration.steps_aside:
        lines.append(
            f"predicted as in the trials: {', '.join(calibration.steps_aside)}, which aggregates"
            " early or steps aside, as it pays; with other batches it may do the other"
        )
    if tuned.not_measured:
        lines.append(
            f"not in it: {', '.join(tuned.not_measured)}, whose rows would have taken effect"
        )
    return lines


def _slower(found: Sequence[CheckedPrediction]) -> str | None:
    """Return a line if the optimized topology was measured to be slower than it was before."""
    from ..tuning.optimizing import AS_IT_IS, OPTIMIZED

    by_name = {one.variant: one.measured_per_s for one in found}
    before, after = by_name.get(AS_IT_IS, 0.0), by_name.get(OPTIMIZED, 0.0)
    if not after < before * _AS_FAST:
        return None
    return (
        f"the optimized topology was {1 - after / before:.0%} slower than as it is: keep that, or"
        " measure again while the machine has less to do"
    )


def _spread(part: float) -> str:
    return f" ± {part:.0%}" if part else ""


def _row(one: CheckedPrediction) -> dict[str, Any]:
    def rate(value: float) -> str:
        return f"{value:,.0f}" if value else _NOT_MEASURED

    def ms(value: float | None) -> str:
        return _NOT_MEASURED if value is None else f"{value:,.1f}"

    return {
        "topology": one.variant,
        "predicted/s": f"{one.predicted_per_s:,.0f}{_spread(one.predicted_spread)}",
        "measured/s": f"{one.measured_per_s:,.0f}{_spread(one.measured_spread)}",
        "error": f"{one.error:+.0%}",
        "by the clock/s": rate(one.wall_per_s),
        "at rows/s": rate(one.rate_per_s),
        "predicted ms": ms(one.predicted_ms),
        "measured ms": ms(one.measured_ms),
    }


def _as_json(tuned: Tuned, found: Sequence[CheckedPrediction]) -> dict[str, Any]:
    return {
        **described(tuned.optimization, tuned.sending),
        "workers": tuned.workers,
        "not_measured": list(tuned.not_measured),
        "compared": [{**asdict(one), "error": one.error} for one in found],
    }
