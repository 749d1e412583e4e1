"""Runs of one workload: what each took, the first apart from the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ....configs.errors import ResourceError
from ....transport.clock import SystemClock
from .answers import Answer

__all__ = ["Measured", "Ran", "Runner", "measure"]


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of a workload.

    Attributes:
        seconds: without what starts before the first row; None: the whole run counts.
        cpu_s: processor time of all processes and threads; None where it is unknown.
        answer: what it found.
    """

    seconds: float | None
    cpu_s: float | None
    answer: Answer


Runner = Callable[[], Ran]


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of one workload.

    Attributes:
        cold_s: the first run in the process, everything included.
        warm_s: the median of the later runs.
        cpu_s: the median of their processor time, or None.
        answer: what all runs found.
    """

    cold_s: float
    warm_s: float
    cpu_s: float | None
    answer: Answer


def measure(runner: Runner, repetitions: int) -> Measured:
    """Run once cold, then so many times warm; with 0 the cold run counts as the warm one, too.

    Raises:
        ResourceError: two runs have different answers.
    """
    from ..report import median

    first, cold_s = _timed(runner)
    warm = [_timed(runner) for _ in range(repetitions)] or [(first, cold_s)]
    for ran, _ in warm:
        if ran.answer != first.answer:
            msg = f"two runs over the same rows found {first.answer} and {ran.answer}"
            raise ResourceError(msg)
    seconds = [whole_s if ran.seconds is None else ran.seconds for ran, whole_s in warm]
    cpu_s = [ran.cpu_s for ran, _ in warm if ran.cpu_s is not None]
    return Measured(cold_s, median(seconds), median(cpu_s) if cpu_s else None, first.answer)


def _timed(runner: Runner) -> tuple[Ran, float]:
    """Return the run and the seconds of all of it."""
    clock = SystemClock()
    begin_ns = clock.monotonic_ns()
    ran = runner()
    return ran, (clock.monotonic_ns() - begin_ns) / 1e9
