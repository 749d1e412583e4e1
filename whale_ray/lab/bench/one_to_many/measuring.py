"""Runs the modes, one deployment after the other, and collects the results."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from .deployment import Deployment, IntervalCounts, Shape
from .latency import Latencies
from .modes import MODES, Mode

__all__ = ["LOAD", "ModeResult", "Plan", "find", "log_progress"]

LOAD: Final = 0.8
"""Share of the slower mode's rate at which latencies are compared."""


@dataclass(frozen=True)
class Plan:
    """Durations of the measurements.

    Attributes:
        warm_up_s: time before each measurement.
        unpaced_s: duration of each measurement of throughput.
        paced_s: duration of each measurement of latency.
    """

    warm_up_s: float
    unpaced_s: float
    paced_s: float


@dataclass(frozen=True)
class ModeResult:
    """The measurements of one mode.

    Attributes:
        mode: the mode.
        shape: size of the job.
        unpaced: counts at the greatest throughput.
        rate: rate of the latency measurement, the same for all modes that are compared.
        latencies: latencies at that rate.
    """

    mode: Mode
    shape: Shape
    unpaced: IntervalCounts
    rate: float = 0.0
    latencies: Latencies | None = None


def find(
    shape: Shape,
    plan: Plan,
    names: Sequence[str],
    settings: Mapping[str, object] | None = None,
) -> list[ModeResult]:
    """Measure the named modes at one size; modes of one deployment run without a restart."""
    wanted = [mode for mode in MODES if mode.name in names]
    found: list[ModeResult] = []
    for _, modes in groupby(wanted, key=lambda mode: mode.deployment):
        found += _find_together(shape, plan, list(modes), settings)
    return found


def _find_together(
    shape: Shape, plan: Plan, modes: list[Mode], settings: Mapping[str, object] | None
) -> list[ModeResult]:
    log_progress(f"{shape.instances} instances, {modes[0].transport}: starting")
    with Deployment(shape, modes[0], settings) as deployment:
        carried = []
        for mode in modes:
            deployment.switch(mode)
            measured = deployment.unpaced(plan.unpaced_s, plan.warm_up_s)
            log_progress(
                f"{shape.instances} instances, {mode.name}: {measured.rows_per_s:,.0f} tuples/s"
            )
            carried.append(ModeResult(mode, shape, measured))
        if not plan.paced_s:
            return carried
        rate = LOAD * min(one.unpaced.rows_per_s for one in carried)
        return list(_paced(deployment, plan, carried, rate))


def _paced(
    deployment: Deployment, plan: Plan, carried: list[ModeResult], rate: float
) -> Iterator[ModeResult]:
    for one in carried:
        deployment.switch(one.mode)
        latencies = deployment.paced(rate, plan.paced_s, plan.warm_up_s)
        log_progress(
            f"{one.shape.instances} instances, {one.mode.name}: "
            f"{latencies.processing.p50_ms:.2f} ms at {rate:,.0f} tuples/s"
        )
        yield ModeResult(one.mode, one.shape, one.unpaced, rate, latencies)


def by_name(found: Sequence[ModeResult], instances: int) -> dict[str, ModeResult]:
    """Return mode name → result, for one size."""
    return {one.mode.name: one for one in found if one.shape.instances == instances}


def log_progress(line: str) -> None:
    """Write a line of progress to standard error, since a suite takes minutes."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
