"""`CountWindows`: windows of a fixed number of rows of a key, in the order in which they come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...state.watermarks import WATERMARK_NONE
from ...transport.compiling import njit
from ..process import Output
from .aggregation import Aggregation
from .row_windows import RowWindows
from .specifications import CountWindow
from .window_pool import NONE

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch

__all__ = ["CountWindows"]

Int64s = npt.NDArray[np.int64]


class CountWindows(RowWindows):
    """Aggregates each key's next n rows; a window's event time is the latest one of its rows."""

    remedy = "group by fewer keys"

    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__(aggregation)
        assert isinstance(aggregation.window, CountWindow)
        self._rows = aggregation.window.rows
        self._full: list[Int64s] = []

    def _assigned(self, batch: Batch, slots: Int64s, out: Output) -> tuple[Batch, Int64s]:
        pool = self.pool
        times = np.zeros(len(slots), np.int64) if batch.times is None else batch.times
        windows, full = np.empty(len(slots), np.int64), np.empty(len(slots), np.int64)
        row = filled = 0
        while row < len(slots):
            pool.take_spare(0)
            row, used, filled = _fill(
                *(times, slots, pool.key_field("first"), pool.key_field("rows")),
                *(pool.field("last"), pool.field("group"), self._rows),
                *(pool.spare, row, windows, full, filled),
            )
            pool.take_spare(used)
        self._full.append(full[:filled])
        self._is_timed = batch.times is not None
        return batch, windows

    def _settle(self, out: Output) -> None:
        """Emit the windows that the rows of the batch have filled."""
        full, self._full = np.concatenate(self._full), []
        if not len(full):
            return
        times = None
        if self._is_timed:
            times = self.pool.field("last")[full]
            if self._watermark_ns != WATERMARK_NONE:
                times = np.maximum(times, self._watermark_ns + 1)
        self._emit(full, full, full, times, out)
        self._drop(full)


@njit(cache=True, nogil=True)
def _fill(
    times: Any,
    slots: Any,
    first: Any,
    rows: Any,
    last: Any,
    group: Any,
    size: Any,
    spare: Any,
    row: Any,
    windows: Any,
    full: Any,
    filled: Any,
) -> tuple[int, int, int]:
    """Put rows, from `row` on, into the windows of their keys; open new ones when they are full.

    Args:
        times, slots: event time and key of each row.
        first, rows: fields of keys: the open window, and how many rows are in it.
        last, group: fields of windows: the latest event time, the key.
        size: rows of a full window.
        spare: windows not in use.
        row: where to begin.
        windows: receives the window of each row.
        full: receives the windows that were filled, in this order.
        filled: how many of these there are already.

    Returns:
        the row that needs a window while no spare one is left (all rows if none); how many spare
        ones were used; how many windows were filled.
    """
    used = 0
    for at in range(row, len(slots)):
        key = slots[at]
        window = first[key]
        if window == NONE:
            if used == len(spare):
                return at, used, filled
            window = spare[used]
            used += 1
            first[key] = window
            rows[key] = 0
            group[window] = key
            last[window] = times[at]
        last[window] = max(last[window], times[at])
        windows[at] = window
        rows[key] += 1
        if rows[key] == size:
            full[filled] = window
            filled += 1
            first[key] = NONE
    return len(slots), used, filled
