"""Runs the modes, one deployment after the other, and keeps what was found."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from .deployment import Deployment, Measured, Shape
from .latency import Latencies
from .modes import INSTANCES_TCP, MODES, Mode

__all__ = ["LOAD", "Found", "Plan", "find", "tell"]

LOAD: Final = 0.8
"""Share of the slower mode's rate at which latencies are compared."""


@dataclass(frozen=True)
class Plan:
    """How long things take.

    Attributes:
        warm_up_s: before each measurement.
        unpaced_s: of each measurement of what a mode carries.
        paced_s: of each measurement of latencies.
    """

    warm_up_s: float
    unpaced_s: float
    paced_s: float


@dataclass(frozen=True)
class Found:
    """What was found of a mode.

    Attributes:
        mode: the mode.
        shape: how large the job was.
        unpaced: as many rows as it carried.
        paced: at `rate` rows per second; the same for all that are compared.
        rate: see there.
        latencies: at that rate.
    """

    mode: Mode
    shape: Shape
    unpaced: Measured
    paced: Measured | None = None
    rate: float = 0.0
    latencies: Latencies | None = None


def find(
    shape: Shape,
    plan: Plan,
    names: Sequence[str],
    settings: Mapping[str, object] | None = None,
) -> list[Found]:
    """Measure the modes of those names at one size, those of a deployment without a restart."""
    wanted = [mode for mode in MODES if mode.name in names]
    found: list[Found] = []
    for _, modes in groupby(wanted, key=lambda mode: mode.deployment):
        found += _find_together(shape, plan, list(modes), settings)
    return found


def _find_together(
    shape: Shape, plan: Plan, modes: list[Mode], settings: Mapping[str, object] | None
) -> list[Found]:
    tell(f"{shape.instances} instances, {modes[0].transport}: starting")
    with Deployment(shape, modes[0], settings) as deployment:
        carried = []
        for mode in modes:
            deployment.switch(mode)
            measured = deployment.unpaced(plan.unpaced_s, plan.warm_up_s)
            tell(f"{shape.instances} instances, {mode.name}: {measured.rows_per_s:,.0f} tuples/s")
            carried.append(Found(mode, shape, measured))
        if not plan.paced_s:
            return carried
        rate = LOAD * min(one.unpaced.rows_per_s for one in carried)
        return list(_paced(deployment, plan, carried, rate))


def _paced(
    deployment: Deployment, plan: Plan, carried: list[Found], rate: float
) -> Iterator[Found]:
    for one in carried:
        deployment.switch(one.mode)
        measured, latencies = deployment.paced(rate, plan.paced_s, plan.warm_up_s)
        tell(
            f"{one.shape.instances} instances, {one.mode.name}: "
            f"{latencies.processing.p50_ms:.2f} ms at {rate:,.0f} tuples/s"
        )
        yield Found(one.mode, one.shape, one.unpaced, measured, rate, latencies)


def by_name(found: Sequence[Found], instances: int) -> dict[str, Found]:
    """Return what was found at one size, by the mode's name."""
    return {one.mode.name: one for one in found if one.shape.instances == instances}


def slower(found: Sequence[Found]) -> Found | None:
    """Return the baseline that the paper compares with: a message per instance, over tcp."""
    for one in found:
        if one.mode.name == INSTANCES_TCP:
            return one
    return None


def tell(line: str) -> None:
    """Say what is going on: a suite takes minutes."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
