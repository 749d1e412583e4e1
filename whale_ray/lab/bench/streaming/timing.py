"""Runs of one workload: what each took, the first apart from the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....transport.clock import SystemClock

__all__ = ["Measured", "Ran", "Runner", "measure"]


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of a workload.

    Attributes:
        seconds: without what starts before the first row; None: the whole run counts.
        cpu_s: processor time of all processes and threads; None where it is unknown.
    """

    seconds: float | None = None
    cpu_s: float | None = None


Runner = Callable[[], Ran]


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of one workload.

    Attributes:
        cold_s: the first run in the process, everything included.
        warm_s: the median of the later runs.
        cpu_s: the median of their processor time, or None.
    """

    cold_s: float
    warm_s: float
    cpu_s: float | None


def measure(runner: Runner, repetitions: int) -> Measured:
    """Run once cold, then so many times warm."""
    from ..report import median

    clock = SystemClock()
    begin_ns = clock.monotonic_ns()
    runner()
    cold_s = (clock.monotonic_ns() - begin_ns) / 1e9
    seconds, cpu_s = [], []
    for _ in range(repetitions):
        begin_ns = clock.monotonic_ns()
        ran = runner()
        whole_s = (clock.monotonic_ns() - begin_ns) / 1e9
        seconds.append(whole_s if ran.seconds is None else ran.seconds)
        cpu_s.append(ran.cpu_s)
    known = [one for one in cpu_s if one is not None]
    return Measured(cold_s, median(seconds), median(known) if known else None)
