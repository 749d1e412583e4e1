"""Low watermarks: the progress of event time on each input, and on all inputs together.

A watermark W on an input promises that no row with an event time ≤ W follows on it. The watermark
of several inputs together is their minimum. `WATERMARK_NONE` is the initial watermark of an input,
`WATERMARK_END` that of an input that has ended.

An *idle* input has said that nothing may come for a while. It leaves the minimum until it says
otherwise; when all inputs that have not ended are idle, the minimum stays where it is. An input
that comes back takes part again, and may be behind by then: its rows up to the minimum are late.
(Flink's semantics: "Dealing With Idle Sources", StatusWatermarkValve.)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

EARLIEST_NS, LATEST_NS = -(2**63), 2**63 - 1
"""The bounds of event time."""

WATERMARK_NONE = EARLIEST_NS
WATERMARK_END = LATEST_NS

WATERMARK_IDLE = WATERMARK_END - 1
"""What an idle source shows to the others, so that none of them waits for it."""

InputKey = TypeVar("InputKey", bound=Hashable)


class WatermarkTracker(Generic[InputKey]):
    """The minimum of the watermarks of a fixed set of inputs; it never moves backwards.

    Attributes:
        current_ns: the minimum.
        latest_ns: the latest of any input, but for its end. Once all have ended, event time has
            come so far, whichever of them was the last to end.
    """

    def __init__(self, inputs: Iterable[InputKey]) -> None:
        self._watermarks = dict.fromkeys(inputs, WATERMARK_NONE)
        self._idle: set[InputKey] = set()
        self.current_ns = WATERMARK_NONE if self._watermarks else WATERMARK_END
        self.latest_ns = WATERMARK_NONE

    def restore(self, watermark_ns: int, latest_ns: int) -> None:
        """Continue where the minimum, and the latest, of all inputs had come to.

        Until an input has come to the minimum, it counts as behind: it may have been idle.
        """
        self.current_ns = max(self.current_ns, watermark_ns)
        self.latest_ns = max(self.latest_ns, latest_ns)

    def update(self, key: InputKey, watermark_ns: int) -> bool:
        """Set an input's watermark (int64 ns); return whether the minimum of all has advanced.

        A watermark that is not later than the input's current one is ignored. Raises KeyError for
        an unknown input.
        """
        if watermark_ns <= self._watermarks[key]:
            return False
        self._watermarks[key] = watermark_ns
        if watermark_ns == WATERMARK_END:
            self._idle.discard(key)
        else:
            self.latest_ns = max(self.latest_ns, watermark_ns)
        return self._advance()

    def set_idle(self, key: InputKey, idle: bool) -> bool:
        """Let an input leave the minimum or come back; return whether the minimum has advanced.

        Raises KeyError for an unknown input.
        """
        if idle and self._watermarks[key] != WATERMARK_END:
            self._idle.add(key)
        else:
            self._idle.discard(key)
        return self._advance()

    def is_behind(self, key: InputKey) -> bool:
        """Return whether an input's rows may be late: it was idle, and has not caught up."""
        return self._watermarks[key] < self.current_ns

    @property
    def idle(self) -> bool:
        """Whether every input that has not ended is idle, and there is one."""
        return bool(self._idle) and all(
            key in self._idle or value == WATERMARK_END for key, value in self._watermarks.items()
        )

    @property
    def ended(self) -> bool:
        """Whether every input has ended."""
        return self.current_ns == WATERMARK_END

    def _advance(self) -> bool:
        minimum = self._minimum() if self._idle else min(self._watermarks.values())
        if minimum <= self.current_ns:
            return False
        self.current_ns = minimum
        return True

    def _minimum(self) -> int:
        """Return the minimum of the inputs that are neither idle nor ended; the current if none."""
        active = (
            value
            for key, value in self._watermarks.items()
            if key not in self._idle and value != WATERMARK_END
        )
        return min(active, default=self.current_ns)
