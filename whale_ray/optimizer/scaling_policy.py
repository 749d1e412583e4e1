"""When a running job should have more or fewer instances of a stage, by what it costs now. Pure.

Equation (2) of Aeolus, dop > ppt · r_i, with ppt and r_i as they are measured while the job runs. A
stage that holds its producers back gets fewer rows than there are: r_i / (1 - w) would come, where
w is the part of the time in which its producers waited for it. The nearer w is to 1, the less that
tells: it is taken as 0.75 at most, so at most four times as many rows are counted on, and what is
measured with more instances tells the rest. What counts is the mean of the looks that agree, so
that neighbouring moments do not lead to proposals that contradict each other.

A job changes its parallelism by a savepoint from which it continues. That stops it for a moment and
may need another number of workers, so a change is proposed and left to the user. A proposal is
made once; another one for the same stage must differ from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Final

from ..configs.units import NS_PER_S

__all__ = ["DopProposal", "ScalingPolicy", "StageLoad"]

_WANTED_BUSY: Final = 0.8
"""How busy an instance may be with the parallelism that is proposed when there are too few."""
_IDLE_BUSY: Final = 0.4
"""How busy an instance may be with the parallelism that is proposed when there are too many."""
_WAITS: Final = 0.1
"""Part of the time that producers must wait for a stage, or it is not what limits the job."""
_WAITS_MAX: Final = 0.75
"""The largest part of the time for which producers are taken to wait."""
_AGREEING: Final = 5
"""So many looks in a row must propose a change."""


@dataclass(frozen=True)
class StageLoad:
    """What was measured of a stage since the last look.

    Args:
        rows_per_s: that it took, r_i.
        cpu_per_s: nanoseconds of processor time that it took in a second, on all workers.
        producers_wait: part of the time in which the producers of its rows waited for room.
        waits: part of the time in which it waited for room itself.
        busy: part of the time in which the busiest of its workers did not sleep.
        spare: time that all workers of the job slept in a second, in seconds: so many more cores
            they could use.
    """

    rows_per_s: float
    cpu_per_s: float
    producers_wait: float
    waits: float
    busy: float
    spare: float


@dataclass(frozen=True)
class DopProposal:
    """A degree of parallelism that is proposed.

    Args:
        dop: how many instances.
        formula: by which it was computed.
        numbers: that were put into the formula.
        reason: the same in words.
    """

    dop: int
    formula: str
    numbers: Mapping[str, float]
    reason: str


class ScalingPolicy:
    """The degree of parallelism of one stage.

    Args:
        dop: that it has.
        dop_max: the largest that it can have.
        workers: of the job.
    """

    def __init__(self, dop: int, dop_max: int, workers: int) -> None:
        self._dop, self._dop_max, self._workers = dop, dop_max, workers
        self._agreed: list[StageLoad] = []
        self._direction = 0
        self._proposed = dop

    def observe(self, load: StageLoad) -> DopProposal | None:
        """Take what was measured since the last look; return a proposal if there is a new one."""
        wanted = self._wanted(load)
        direction = (wanted > self._dop) - (wanted < self._dop)
        if direction != self._direction or not direction:
            self._agreed, self._direction = [], direction
        self._agreed.append(load)
        if len(self._agreed) < _AGREEING:
            return None
        mean, self._agreed = _mean(self._agreed), []
        wanted = self._wanted(mean)
        if wanted in (self._dop, self._proposed):
            return None
        if (wanted > self._dop) == (self._proposed > self._dop) and self._is_near(wanted):
            return None
        self._proposed = wanted
        return self._proposal(wanted, mean)

    def _is_near(self, wanted: int) -> bool:
        """Whether a number is so near to what was proposed that it is not worth saying."""
        return self._proposed != self._dop and abs(wanted - self._proposed) <= self._proposed // 4

    def _wanted(self, load: StageLoad) -> int:
        """Return the parallelism that is needed; the present one if that will do."""
        if load.rows_per_s <= 0:
            return self._dop
        busy = load.cpu_per_s / NS_PER_S
        if load.producers_wait >= _WAITS and load.waits < _WAITS and load.busy >= _WANTED_BUSY:
            needed = math.ceil(busy / (1 - min(load.producers_wait, _WAITS_MAX)) / _WANTED_BUSY)
            return max(self._dop, min(needed, self._dop_max))
        needed = max(1, math.ceil(busy / _IDLE_BUSY))
        return min(self._dop, needed) if load.waits < _WAITS else self._dop

    def _proposal(self, wanted: int, load: StageLoad) -> DopProposal:
        ppt_ns = load.cpu_per_s / load.rows_per_s
        offered = load.rows_per_s
        if wanted > self._dop:
            offered /= 1 - min(load.producers_wait, _WAITS_MAX)
        numbers = {
            "ppt_ns": ppt_ns,
            "rows_per_s": load.rows_per_s,
            "producers_wait": load.producers_wait,
            "offered_per_s": offered,
            "dop": self._dop,
            "workers": self._workers,
            "spare_cores": load.spare,
        }
        if wanted < self._dop:
            reason = (
                f"{self._dop} instances are busy {load.cpu_per_s / NS_PER_S / self._dop:.0%} of"
                f" the time each; {wanted} would do"
            )
            return DopProposal(wanted, f"min dop ≥ ppt · r_i / {_IDLE_BUSY}", numbers, reason)
        reason = (
            f"its producers wait for it {load.producers_wait:.0%} of the time; {wanted} instances"
            f" would take the {offered:,.0f} rows/s that they could send"
        )
        if wanted > self._workers:
            reason += f"; that needs as many workers, there are {self._workers}"
        if load.spare < wanted - self._dop:
            reason += f"; the workers there are could use {load.spare:.1f} more cores"
        return DopProposal(
            wanted, f"min dop ≥ ppt · r_i / (1 - w) / {_WANTED_BUSY}", numbers, reason
        )


def _mean(loads: Sequence[StageLoad]) -> StageLoad:
    columns = zip(*map(astuple, loads), strict=True)
    return StageLoad(*(sum(column) / len(loads) for column in columns))
