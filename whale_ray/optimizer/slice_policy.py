"""How many rows a stage sends together on an edge while the job runs: it follows the rate. Pure.

Aeolus sets batches before the start, from the rate that is stated (`algorithm`). Here the same
trade is made again and again, from what is measured: small slices while there is time to spare, so
that rows do not wait; larger ones while the busiest worker that sends or receives them hardly
sleeps, since a message costs the same whatever is in it. Two limits are moved, by one step each
time: the rows at which a slice is due, and the time that its oldest row waits (Whale's WTL).

Between the two thresholds nothing changes, and under a steady load nothing swings: a step down
sends at most three times as many messages (a slice of x rows is cut into at most x / b full ones
and one that its time cuts, with b at least half of its rows), hence costs at most three times as
much, and 3 · `IDLE_BELOW` is less than `BUSY_ABOVE`. A step up costs at least half as much as
before, and `BUSY_ABOVE` / 2 is more than `IDLE_BELOW`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ..configs.units import NS_PER_S
from .decisions import Decides

__all__ = ["BUSY_ABOVE", "IDLE_BELOW", "SliceBounds", "SliceChange", "SliceLoad", "SlicePolicy"]

BUSY_ABOVE: Final = 0.8
"""Part of the time that a worker may be busy before slices become larger."""
IDLE_BELOW: Final = 0.25
"""Part of the time below which they become smaller."""

_AGREEING: Final = 2
"""So many looks in a row must ask for the same, or a moment would decide."""


_WORTHWHILE: Final = 1.25
"""By which factor a batch must grow at least: the size of rows varies, and with it the largest."""


@dataclass(frozen=True)
class SliceBounds:
    """Between what the limits stay.

    Args:
        slice_bytes_max: the largest slice (Whale: MMS; Aeolus: B_max).
        wait_min_ns: what a row waits at most in a slice while there is time to spare (WTL).
        wait_max_ns: the same while there is none.
    """

    slice_bytes_max: int
    wait_min_ns: int
    wait_max_ns: int


@dataclass(frozen=True)
class SliceLoad:
    """What was measured of an edge since the last look.

    Args:
        busy: part of the time that the busiest worker did not sleep, of those that send or receive
            its rows.
        rows_per_s: that one of its producers sends.
        slice_rows: rows of a mean slice.
        row_bytes: of a mean row.
    """

    busy: float
    rows_per_s: float
    slice_rows: float
    row_bytes: float


@dataclass(frozen=True)
class SliceChange:
    """A step of the policy.

    Args:
        decides: which limit, `Decides.BATCH_ROWS` or `Decides.WAIT_MS`.
        value: the limit's new value.
        formula: by which it was computed.
        numbers: that were put into the formula.
        reason: the same in words.
    """

    decides: Decides
    value: float
    formula: str
    numbers: Mapping[str, float]
    reason: str


class SlicePolicy:
    """The limits of the slices of one edge.

    `rows` is the batch to begin with; None: as many as a slice's bytes hold.

    Attributes:
        rows: at which a slice is due; None as long as only bytes and time limit it.
        wait_ns: after which it is due.
    """

    def __init__(self, bounds: SliceBounds, rows: int | None = None) -> None:
        self._bounds = bounds
        self._agreeing = 0  # looks in a row that asked for larger slices; negative: smaller ones
        self.rows = rows
        self.wait_ns = bounds.wait_min_ns

    def observe(self, load: SliceLoad) -> SliceChange | None:
        """Take what was measured since the last look; return the step that follows, if any."""
        if load.rows_per_s <= 0:
            self._agreeing = 0
            return None
        wanted = (load.busy > BUSY_ABOVE) - (load.busy < IDLE_BELOW)
        same = wanted * self._agreeing > 0
        self._agreeing = self._agreeing + wanted if same else wanted
        if abs(self._agreeing) < _AGREEING:
            return None
        self._agreeing = 0
        return self._grow(load) if wanted > 0 else self._shrink(load)

    def rows_max(self, row_bytes: float) -> int:
        """Return how many rows of a size the largest slice holds, at least one."""
        return max(1, math.floor(self._bounds.slice_bytes_max / max(row_bytes, 1.0)))

    def _grow(self, load: SliceLoad) -> SliceChange | None:
        """Double the limit that cuts the slices; None if neither does, or both are the largest."""
        most = self.rows_max(load.row_bytes)
        rows = most if self.rows is None else self.rows
        if load.slice_rows >= rows / 2 and rows * _WORTHWHILE < most:
            return self._change_rows(
                min(2 * rows, most),
                load,
                f"busy > {BUSY_ABOVE}: b = min(2 · b, MMS / t)",
                "larger slices need fewer messages",
            )
        between_ns = load.slice_rows / load.rows_per_s * NS_PER_S
        if self.wait_ns < self._bounds.wait_max_ns and between_ns <= 2 * self.wait_ns:
            return self._change_wait(
                min(2 * self.wait_ns, self._bounds.wait_max_ns),
                load,
                f"busy > {BUSY_ABOVE}: WTL = min(2 · WTL, WTL_max)",
                "slices that fill longer need fewer messages",
            )
        return None

    def _shrink(self, load: SliceLoad) -> SliceChange | None:
        """Halve the time, down to the user's own, then the rows; None if both are the smallest."""
        spare = f"3 · busy < {BUSY_ABOVE}"
        if self.wait_ns > self._bounds.wait_min_ns:
            return self._change_wait(
                max(self.wait_ns // 2, self._bounds.wait_min_ns),
                load,
                f"{spare}: WTL = max(WTL / 2, WTL_min)",
                "there is time for more messages, so rows need not wait for others",
            )
        rows = self.rows_max(load.row_bytes) if self.rows is None else self.rows
        fewer = max(1, math.ceil(min(rows, load.slice_rows) / 2))
        if fewer >= rows:
            return None
        return self._change_rows(
            fewer,
            load,
            f"{spare}: b = max(1, min(b, rows of a slice) / 2)",
            "there is time for more messages, so rows need not wait for others",
        )

    def _change_rows(self, rows: int, load: SliceLoad, formula: str, reason: str) -> SliceChange:
        most = self.rows_max(load.row_bytes)
        before, self.rows = most if self.rows is None else self.rows, rows
        numbers = {**_numbers(load), "b": before, "MMS": self._bounds.slice_bytes_max}
        return SliceChange(Decides.BATCH_ROWS, rows, formula, numbers, _because(load, reason))

    def _change_wait(self, wait_ns: int, load: SliceLoad, formula: str, reason: str) -> SliceChange:
        before, self.wait_ns = self.wait_ns, wait_ns
        numbers = {
            **_numbers(load),
            "WTL_ms": before / 1e6,
            "WTL_min_ms": self._bounds.wait_min_ns / 1e6,
            "WTL_max_ms": self._bounds.wait_max_ns / 1e6,
        }
        return SliceChange(Decides.WAIT_MS, wait_ns / 1e6, formula, numbers, _because(load, reason))


def _numbers(load: SliceLoad) -> dict[str, float]:
    return {
        "busy": load.busy,
        "rows_per_s": load.rows_per_s,
        "slice_rows": load.slice_rows,
        "t_bytes": load.row_bytes,
    }


def _because(load: SliceLoad, reason: str) -> str:
    return f"the busiest worker that sends or receives it is busy {load.busy:.0%}; {reason}"
