"""`TimerChain`: keeps timers that set timers from firing for ever."""

from __future__ import annotations

__all__ = ["FIRED_AT_THE_END_MAX", "TimerChain"]

FIRED_AT_THE_END_MAX = 100_000
"""How often a timer of a key may set itself again, directly or by others, once no row follows."""


class TimerChain:
    """Timers that fire one after the other, without a row between them.

    A timer may fire again, but only at a later time. Up to a watermark this ends; at the end of the
    input, where there is none, the number of times is limited.

    Most timers set no other, so only those that do are noted.

    Args:
        at_most: how often a timer of a key may set others; None: as often as it likes.

    Attributes:
        fired: number of the timer and slot of its key → when it fired last, and how often.
    """

    __slots__ = ("_at_most", "fired")

    def __init__(self, at_most: int | None = None) -> None:
        self._at_most = at_most
        self.fired: dict[tuple[int, int], tuple[int, int]] = {}

    def note(self, which: int, slot: int, time_ns: int) -> None:
        """Note that a timer has fired and set another, or itself.

        Args:
            which: the number of the timer.
            slot: of its key.
            time_ns: for which it was set.
        """
        latest_ns, count = self.fired.get((which, slot), (None, 0))
        if latest_ns != time_ns:  # else it is noted for another timer that it has set
            self.fired[which, slot] = (time_ns, count + 1)

    def problem(self, which: int, slot: int, time_ns: int) -> str | None:
        """Return why a timer may not fire, since it would for ever; arguments as for `note`."""
        before = self.fired.get((which, slot))
        if before is None:
            return None
        latest_ns, count = before
        if time_ns <= latest_ns:
            return (
                "on_timer set it, directly or by another timer, to a time that is not after the one"
                " at which it had fired, so it would fire for ever"
            )
        if self._at_most is not None and count >= self._at_most:
            return (
                f"on_timer has set it again {count:,} times since the input ended, so it would fire"
                " for ever: set it only while not self.input_ended"
            )
        return None
