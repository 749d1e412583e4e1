"""`EmitsInPortions`: operators whose watermark may let more rows out than memory holds.

A worker takes a portion at a time, and waits between two of them while an output is full. So what
lies on the disk comes into memory as it is passed on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .process import Output

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["EmitsInPortions", "exhaust", "paced", "pieces_of"]

_PORTION_ROWS = 1 << 16
"""Results of so many groups are a portion."""


class EmitsInPortions(ABC):
    """Reacts to watermarks and to the end in portions."""

    @abstractmethod
    def portions(self, watermark_ns: int | None, out: Output) -> Iterator[None]:
        """Do what `on_watermark` does, or what `close` does; yield after each portion of rows.

        No other method is called before the last portion, and the watermark is passed on behind
        it. Once it is begun it is read to its end, unless the operator is dropped.

        Args:
            watermark_ns: the watermark; None at the end of the input.
            out: receives the rows.
        """

    def on_watermark(self, watermark_ns: int, out: Output) -> None:
        """React to a watermark in one call, see `Process.on_watermark`."""
        exhaust(self.portions(watermark_ns, out))

    def close(self, out: Output) -> None:
        """Emit all that is left in one call, see `Process.close`."""
        exhaust(self.portions(None, out))


def exhaust(emitted: Iterator[object]) -> None:
    """Emit all at once."""
    for _ in emitted:
        pass


def pieces_of(groups: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield groups in pieces of no more than a portion, int64 (n,)."""
    starts = range(0, len(groups), _PORTION_ROWS)
    return (groups[start : start + _PORTION_ROWS] for start in starts)


def paced(emitted: Iterator[int]) -> Iterator[None]:
    """Yield after each portion, which may be of many pieces.

    Args:
        emitted: emits rows piece by piece; yields after each how many.
    """
    rows = 0
    for more in emitted:
        rows += more
        if rows >= _PORTION_ROWS:
            rows = 0
            yield
