"""`TimeWindows`: the base of operators that emit a window when the watermark passes its end."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from ...state.watermarks import LATEST_NS, WATERMARK_NONE
from ..portions import EmitsInPortions, paced
from ..process import Output
from .grouping import LATE
from .sealed_windows import SealedSlices
from .slices import Slices, WholeInput

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from .group_state import GroupState

__all__ = ["TimeWindows"]

Int64s = npt.NDArray[np.int64]


class TimeWindows(EmitsInPortions, SealedSlices):
    """Keeps rows or groups by slice, and emits windows that have ended.

    Args:
        slices: how rows are cut into slices, and which windows these make.
        lateness_ns: for how long after its end a window is kept.
    """

    surviving: ClassVar[tuple[str, ...]] = (*SealedSlices.surviving, "schema")

    def __init__(self, slices: Slices, lateness_ns: int = 0) -> None:
        super().__init__()
        self._slices = slices
        self._lateness_ns = lateness_ns
        self._next_end_ns = LATEST_NS + 1
        self.remedy = "take a shorter window, or less allowed_lateness"
        if isinstance(slices, WholeInput):
            self.remedy = "group within windows, which are freed as they end"

    def portions(self, watermark_ns: int | None, out: Output) -> Iterator[None]:
        """Emit the windows that have ended, and free what no window needs any more."""
        if watermark_ns is None:  # no row follows
            yield from paced(self._fire(LATEST_NS, out))
            for slice_ in self._open_slices():
                self._free_slice(slice_)
        else:
            yield from paced(self._fire(watermark_ns, out))
            self._watermark_ns = watermark_ns
            self._free_closed(watermark_ns)

    @abstractmethod
    def _emit_window(self, window: int, out: Output) -> Iterator[int]:
        """Emit the rows of a window in pieces; yield after each how many rows it has."""

    def _emit_windows(self, windows: Sequence[int], out: Output) -> Iterator[int]:
        """Emit the rows of one window or several, in this order; yield as `_emit_window`."""
        for window in windows:
            yield from self._emit_window(window, out)

    def _free_slice(self, slice_: int) -> None:
        """Free what is kept of a slice."""
        self._state.free(slice_)

    def _forget(self) -> None:
        """See `SealedWindows`."""
        for slice_ in self._open_slices():
            self._free_slice(slice_)
        super()._forget()

    @property
    def _state(self) -> GroupState:
        assert self._groups is not None
        return self._groups

    def _without_late(self, batch: Batch, slices: Int64s, out: Output) -> tuple[Batch, Int64s]:
        """Return the rows without those all windows of which are closed; these are emitted."""
        if self._watermark_ns == WATERMARK_NONE or not len(slices):
            return batch, slices
        first = self._slices.first_open(self._watermark_ns - self._lateness_ns)
        if slices.min() >= first:
            return batch, slices
        late = slices < first
        out.emit_to(LATE, batch.filter(late))
        return batch.filter(~late), slices[~late]

    def _open_slices(self) -> tuple[int, ...]:
        return () if self._groups is None else self._groups.slices

    def _unfired(self, watermark_ns: int) -> list[int]:
        """Return the windows that end later than at `watermark_ns` + 1 ns and have rows, by end."""
        windows = {
            window for slice_ in self._open_slices() for window in self._slices.windows_of(slice_)
        }
        return sorted(
            (window for window in windows if self._slices.end_ns(window) > watermark_ns + 1),
            key=self._slices.end_ns,
        )

    def _fire(self, watermark_ns: int, out: Output) -> Iterator[int]:
        """Emit the windows that have ended since the last watermark; yield as `_emit_window`."""
        if self._groups is None:
            return
        if self._groups.slices_changed:
            self._find_next(self._watermark_ns)
        if watermark_ns + 1 < self._next_end_ns:
            return
        unfired = self._unfired(self._watermark_ns)
        ended = [one for one in unfired if self._slices.end_ns(one) <= watermark_ns + 1]
        if ended:
            yield from self._emit_windows(ended, out)
        self._find_next(watermark_ns)

    def _closes_one(self, watermark_ns: int) -> bool:
        """Whether a watermark closes a window that has rows, so that it changes no more."""
        if self._groups is None:
            return False
        if self._groups.slices_changed:
            self._find_next(self._watermark_ns - self._lateness_ns)
        if watermark_ns - self._lateness_ns + 1 < self._next_end_ns:
            return False
        self._find_next(watermark_ns - self._lateness_ns)
        return True

    def _find_next(self, watermark_ns: int) -> None:
        windows = self._unfired(watermark_ns)
        self._next_end_ns = self._slices.end_ns(windows[0]) if windows else LATEST_NS + 1
        self._state.slices_changed = False

    def _free_closed(self, watermark_ns: int) -> None:
        open_slices = self._open_slices()
        if not open_slices:
            return
        first = self._slices.first_open(watermark_ns - self._lateness_ns)
        for slice_ in open_slices:
            if slice_ < first:
                self._free_slice(slice_)

    def _times_of(self, ends_ns: Int64s) -> Int64s | None:
        """Return the times of rows of windows: 1 ns before the end, else the latest time so far.

        A row that comes later than that, as it has changed, has the first time behind the
        watermark that was passed on. None if no row has had a time.
        """
        if isinstance(self._slices, WholeInput):
            if self._latest_ns is None:
                return None
            ends_ns = np.full(len(ends_ns), self._latest_ns + 1)
        return np.maximum(ends_ns - 1, self._watermark_ns + 1)

    def _emit_at(self, rows: Batch, window: int, out: Output) -> None:
        """Emit rows of a window with their times."""
        times = self._times_of(np.full(rows.num_rows, self._slices.end_ns(window)))
        out.emit(rows.with_times(None) if times is None else rows, times)
