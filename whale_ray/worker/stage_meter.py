"""Which stage a worker's loop spends its processor time on.

It works like a stopwatch with laps: whenever a reader, a task or a writer has moved something, the
time since the last lap is its stage's, including the turns and wake-ups that led to it. The sum is
the processor time of the loop and of threads that read ahead for it, without the time for compiling
functions, which is no cost of rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from ..transport.thread_time import thread_work_ns


class StageMeter(ABC):
    """Charges stages with processor time."""

    @abstractmethod
    def begin(self) -> None:
        """Forget the time since the last lap."""

    @abstractmethod
    def charge(self, stage: int) -> None:
        """Charge a stage with the time since the last lap."""

    @property
    @abstractmethod
    def cpu_ns(self) -> Mapping[int, int]:
        """What was charged so far, by stage; a copy."""


class NoMeter(StageMeter):
    """Measures nothing, for a clock is read at each lap."""

    def begin(self) -> None:
        """See `StageMeter.begin`."""

    def charge(self, stage: int) -> None:
        """See `StageMeter.charge`."""

    @property
    def cpu_ns(self) -> Mapping[int, int]:
        """See `StageMeter.cpu_ns`."""
        return {}


class ThreadTimeMeter(StageMeter):
    """Measures by the processor time of the calling thread's work, the loop's.

    `now_ns` reads it.
    """

    def __init__(self, now_ns: Callable[[], int] = thread_work_ns) -> None:
        self._now_ns = now_ns
        self._lap_ns = 0
        self._cpu_ns: dict[int, int] = {}

    def begin(self) -> None:
        """See `StageMeter.begin`."""
        self._lap_ns = self._now_ns()

    def charge(self, stage: int) -> None:
        """See `StageMeter.charge`."""
        now_ns = self._now_ns()
        self._cpu_ns[stage] = self._cpu_ns.get(stage, 0) + now_ns - self._lap_ns
        self._lap_ns = now_ns

    @property
    def cpu_ns(self) -> Mapping[int, int]:
        """See `StageMeter.cpu_ns`."""
        return dict(self._cpu_ns)


def stage_meter(*, measures: bool) -> StageMeter:
    """Return a meter.

    For one that measures, pandas is loaded now if it is installed. pyarrow does so when it first
    converts Python's values, or numpy's. That takes half a second, as long as 100,000 rows, and
    would be charged to the stage that happens to be the first, in some trials and not in others.
    """
    if not measures:
        return NoMeter()
    import pyarrow as pa

    pa.scalar(None)
    return ThreadTimeMeter()
