"""Low watermarks: the progress of event time on each input, and on all inputs together.

A watermark W on an input promises that no row with an event time ≤ W follows on it. The watermark
of several inputs together is their minimum. `WATERMARK_NONE` is the initial watermark of an input,
`WATERMARK_END` that of an input that has ended.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

WATERMARK_NONE = -(2**63)
WATERMARK_END = 2**63 - 1

InputKey = TypeVar("InputKey", bound=Hashable)


class WatermarkTracker(Generic[InputKey]):
    """The minimum of the watermarks of a fixed set of inputs; it never moves backwards."""

    def __init__(self, inputs: Iterable[InputKey]) -> None:
        self._watermarks = dict.fromkeys(inputs, WATERMARK_NONE)
        self.current_ns = self._minimum()

    def update(self, key: InputKey, watermark_ns: int) -> bool:
        """Set an input's watermark (int64 ns); return whether the minimum of all has advanced.

        A watermark that is not later than the input's current one is ignored. Raises KeyError for
        an unknown input.
        """
        if watermark_ns <= self._watermarks[key]:
            return False
        self._watermarks[key] = watermark_ns
        minimum = self._minimum()
        advanced = minimum > self.current_ns
        self.current_ns = minimum
        return advanced

    def slowest(self) -> tuple[InputKey, ...]:
        """Return the inputs that hold the minimum back."""
        return tuple(key for key, value in self._watermarks.items() if value == self.current_ns)

    @property
    def ended(self) -> bool:
        """Whether every input has ended."""
        return self.current_ns == WATERMARK_END

    def _minimum(self) -> int:
        return min(self._watermarks.values(), default=WATERMARK_END)
