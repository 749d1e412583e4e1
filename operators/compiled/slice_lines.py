"""The lines of a loop that tell slices of time: of a row, and of a block's rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..expressions.emitters.code import NotCompilable
from ..windows.block_times import BLOCK_ROWS
from ..windows.slices import ClockSlices, TimeSlices, WholeInput, slices_of

if TYPE_CHECKING:
    from ..windows.aggregation import Aggregation

__all__ = ["BY_ROW_LINES", "slice_lines"]

_OF_SLICES = 0xC2B2AE3D27D4EB4F
"""An odd number that slices are multiplied by; keys are by others."""

BY_ROW_LINES: Sequence[str] = (
    f"block = first // np.uint64({BLOCK_ROWS})",
    "by_row = np.uint64(earliest[block] - begin) >= width",
    "by_row |= np.uint64(latest[block] - begin) >= width",
    "by_row |= earliest[block] < moment",
)
"""Set whether times of a block's rows must be read: not all are of the slice that was the last, or
one may be earlier than all before."""


def slice_lines(asked: Aggregation) -> list[str]:
    """Return the lines that set `slice_`, its part of hashes, and `begin` and `width` of its time.

    They are for times that `TimeSlices.takes` lets through. None where there are no windows.

    Raises:
        NotCompilable: windows are not told by event time.
    """
    slices = slices_of(asked)
    if isinstance(slices, WholeInput):
        return []
    if not isinstance(slices, TimeSlices) or isinstance(slices, ClockSlices):
        msg = "windows that are not told by event time"
        raise NotCompilable(msg)
    slide, origin, rest = slices.slide_ns, slices.origin_ns, slices.rest_ns
    lines = [
        f"slice_ = (time - {origin}) // {slide}",
        f"begin, width = {origin} + slice_ * {slide}, np.uint64({slide})",
    ]
    if rest:
        lines += [
            "slice_ = 2 * slice_",
            f"if time - begin >= {rest}:",
            f"    begin, width = begin + {rest}, np.uint64({slide - rest})",
            "    slice_ += 1",
            "else:",
            f"    width = np.uint64({rest})",
        ]
    return [*lines, f"slice_hash = np.uint64(slice_) * np.uint64({_OF_SLICES})"]
