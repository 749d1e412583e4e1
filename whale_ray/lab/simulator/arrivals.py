"""When the source emits each slice: evenly or as a Poisson process, at rates that change in steps.

Open loop: the schedule depends on the rates and the seed alone, never on how fast slices are taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...configs.errors import UsageError
from ...transport.compiling import njit

Seconds: TypeAlias = npt.NDArray[np.float64]
SLICES_MAX = 200_000_000
"""Most slices in one run; more would need too much memory."""


@dataclass(frozen=True)
class RateStep:
    """A rate and how long it lasts."""

    rate_per_s: float
    seconds: float


def poisson(steps: Sequence[RateStep], seed: int) -> Seconds:
    """Return the scheduled emissions of a Poisson process, ascending, in seconds from 0.

    Raises UsageError for a rate or a duration that is not above 0.
    """
    generator = np.random.default_rng(seed)
    found, begin_s = [], 0.0
    for step in _checked(steps):
        count = generator.poisson(step.rate_per_s * step.seconds)
        # Given their number, the times of a Poisson process are uniformly distributed.
        moments = np.sort(generator.random(count)) * step.seconds
        found.append(begin_s + moments)
        begin_s += step.seconds
    return np.concatenate(found)


def paced(steps: Sequence[RateStep]) -> Seconds:
    """Return scheduled emissions at equal distances, in seconds; raises UsageError as `poisson`."""
    found, begin_s = [], 0.0
    for step in _checked(steps):
        count = max(1, math.floor(step.rate_per_s * step.seconds))
        found.append(begin_s + np.arange(count) / step.rate_per_s)
        begin_s += step.seconds
    return np.concatenate(found)


def all_at_once(slices: int) -> Seconds:
    """Return a schedule that offers everything at once, so that the tree is the bound."""
    return np.zeros(slices)


@dataclass(frozen=True)
class Cut:
    """Tuples cut into slices, as the runtime does it."""

    at_s: Seconds
    """When each slice was cut, in seconds."""
    tuples: Seconds
    """Tuples in each slice."""


def cut_into_slices(emitted_s: Seconds, wait_s: float, tuples_max: int) -> Cut:
    """Cut tuples into slices: `wait_s` (WTL) after the first, or when there are enough (MMS)."""
    ends, at_s = _cut(emitted_s, wait_s, tuples_max)
    return Cut(at_s, np.diff(ends, prepend=0).astype(np.float64))


@njit(cache=True, nogil=True)
def _cut(
    emitted_s: Seconds, wait_s: float, tuples_max: int
) -> tuple[npt.NDArray[np.int64], Seconds]:
    """Return how many tuples there are up to each slice's end, and when it was cut."""
    ends = np.empty(emitted_s.size, np.int64)
    at_s = np.empty(emitted_s.size)
    count, first = 0, 0
    for number in range(emitted_s.size):
        if emitted_s[number] > emitted_s[first] + wait_s:
            ends[count], at_s[count] = number, emitted_s[first] + wait_s
            count, first = count + 1, number
        if number - first + 1 == tuples_max:
            ends[count], at_s[count] = number + 1, emitted_s[number]
            count, first = count + 1, number + 1
    if first < emitted_s.size:
        ends[count], at_s[count] = emitted_s.size, emitted_s[first] + wait_s
        count += 1
    return ends[:count], at_s[:count]


def _checked(steps: Sequence[RateStep]) -> Sequence[RateStep]:
    for step in steps:
        for name, value in (("rate", step.rate_per_s), ("duration", step.seconds)):
            if not (math.isfinite(value) and value > 0):
                msg = f"a {name} of {value:g}: it must be above 0"
                raise UsageError(msg)
    expected = sum(step.rate_per_s * step.seconds for step in steps)
    if not 1 <= expected <= SLICES_MAX:
        msg = (
            f"{expected:,.3g} slices expected: simulate 1 to {SLICES_MAX:,}; change the rate or "
            "the duration"
        )
        raise UsageError(msg)
    return steps
