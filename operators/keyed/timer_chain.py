"""`TimerChain`: keeps timers that set timers from firing for ever."""

from __future__ import annotations

__all__ = ["FIRED_AT_THE_END_MAX", "TimerChain"]

FIRED_AT_THE_END_MAX = 100_000
"""How often a timer of a key may set itself again, directly or by others, once no row follows."""


class TimerChain:
    """Timers that fire one after the other, without a row between them.

    A timer may fire again, but only at a later time. Up to a watermark this ends; at the end of the
    input, where there is none, the number of times is limited.

    Args:
        at_most: how often a timer of a key may fire; None: as often as it likes.
        once: whether a timer of a key that has fired does not fire again.
    """

    __slots__ = ("_at_most", "_fired", "_once")

    def __init__(self, at_most: int | None = None, *, once: bool = False) -> None:
        self._at_most = at_most
        self._once = once
        self._fired: dict[tuple[int, int], tuple[int, int]] = {}  # the latest time, how often

    def goes_on(self, which: int, slot: int) -> bool:
        """Whether a timer that was set meanwhile is to fire."""
        return not (self._once and (which, slot) in self._fired)

    def note(self, which: int, slot: int, time_ns: int) -> str | None:
        """Note that a timer fires; return why it may not, since it would fire for ever.

        Args:
            which: the number of the timer.
            slot: of its key.
            time_ns: for which it was set.
        """
        before = self._fired.get((which, slot))
        if before is None:
            self._fired[which, slot] = (time_ns, 1)
            return None
        latest_ns, count = before
        if time_ns <= latest_ns:
            return (
                "on_timer set it, directly or by another timer, to a time that is not after the one"
                " at which it had fired, so it would fire for ever"
            )
        if count == self._at_most:
            return (
                f"on_timer has set it again {count:,} times since the input ended, so it would fire"
                " for ever: set it only while not self.input_ended"
            )
        self._fired[which, slot] = (time_ns, count + 1)
        return None
