"""`EmitsInPortions`: operators whose watermark may let more rows out than memory holds.

A worker takes a portion at a time, and waits between two of them while an output is full. So what
lies on the disk comes into memory as it is passed on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from .process import Output

__all__ = ["EmitsInPortions"]


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
        for _ in self.portions(watermark_ns, out):
            pass

    def close(self, out: Output) -> None:
        """Emit all that is left in one call, see `Process.close`."""
        for _ in self.portions(None, out):
            pass
