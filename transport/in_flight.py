"""How many bytes may wait in a ring, so that what is sent now is read within a given time.

What waits in a ring delays whatever is sent after it, such as the marker of an epoch. By Little's
law that delay is the bytes in flight over the rate at which they are read. So the limit is the
measured rate times the time that is wanted, as for a socket whose window is its bandwidth times
its delay. The reader of a slow stream finds one frame at a time; that of a fast one finds as much
as it did without a limit, if the ring is small enough.

The rate shows while bytes wait all the time. If the reader has taken all that was sent, it might
have taken more: then the limit grows as long as the sender is refused room.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["InFlightLimit", "RingProgress"]

SMOOTHED_OVER: Final = 10
"""A rate is a mean over about so many measurements, since readers do not run all the time."""
GROWTH: Final = 1.25


@dataclass(frozen=True, slots=True)
class RingProgress:
    """How far a ring's frames have come.

    Attributes:
        sent: bytes written since the ring was created.
        taken: up to where all open readers have taken frames; all that was sent if none is open.
        refusals: how many frames found no room.
    """

    sent: int
    taken: int
    refusals: int


class InFlightLimit:
    """How many bytes may wait in a ring of `capacity` bytes for about `target_ns` to be read.

    Pure: the time is passed in.

    Attributes:
        limit_bytes: the limit, from 1 to `capacity`; that until the reader has been measured.
    """

    def __init__(self, target_ns: int, capacity: int) -> None:
        self.limit_bytes = capacity
        self._target_ns = target_ns
        self._capacity = capacity
        self._rate: float | None = None  # bytes per ns
        self._since_ns = 0
        self._since: RingProgress | None = None

    def observe(self, now_ns: int, progress: RingProgress) -> int:
        """Take how far the readers are; return the limit from now on, in bytes.

        Measures from one call to the next one that is at least `target_ns` later.
        """
        before = self._since
        elapsed_ns = now_ns - self._since_ns
        if before is None or elapsed_ns >= self._target_ns:
            self._since_ns, self._since = now_ns, progress
        if before is not None and elapsed_ns >= self._target_ns:
            self._measure(elapsed_ns, before, progress)
        return self.limit_bytes

    def _measure(self, elapsed_ns: int, before: RingProgress, now: RingProgress) -> None:
        rate = (now.taken - before.taken) / elapsed_ns
        if now.taken < before.sent:
            self._rate = self._smoothed(rate, elapsed_ns)
        elif self._rate is None:
            return
        elif now.refusals > before.refusals:
            self._rate = max(rate, GROWTH * self._rate)
        else:
            self._rate = max(rate, self._rate)
        wanted = min(self._rate * self._target_ns, self._capacity)
        self.limit_bytes = max(1, int(wanted))

    def _smoothed(self, rate: float, elapsed_ns: int) -> float:
        if self._rate is None:
            return rate
        weight = min(1.0, elapsed_ns / (SMOOTHED_OVER * self._target_ns))
        return self._rate + weight * (rate - self._rate)
