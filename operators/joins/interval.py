"""`interval`: how far the event times of two joined rows may lie apart."""

from __future__ import annotations

from dataclasses import dataclass

from ...configs.errors import InputError, TopologyError
from ..windows.durations import Duration, describe_ns, duration_ns

__all__ = ["TimeInterval", "interval"]


@dataclass(frozen=True)
class TimeInterval:
    """Bounds of (right event time − left event time), both inclusive; see `interval`."""

    lower_ns: int
    upper_ns: int

    def describe(self) -> str:
        """Return the label that `explain` prints."""
        return f"interval from {describe_ns(self.lower_ns)} to {describe_ns(self.upper_ns)}"


def interval(lower: Duration, upper: Duration) -> TimeInterval:
    """Return the bounds of an interval join: `interval("-10 minutes", "0 s")`.

    A left row at t and a right row join if the right row's event time lies from t + `lower` to
    t + `upper`, both inclusive.

    Args:
        lower: "-10 minutes", a `timedelta`, or milliseconds; negative for the time before.
        upper: likewise, not less than `lower`.

    Raises:
        TopologyError: a bound is no duration, or `lower` exceeds `upper`.
    """
    try:
        lower_ns = duration_ns(lower, "interval: lower")
        upper_ns = duration_ns(upper, "interval: upper")
    except InputError as error:
        raise TopologyError(str(error)) from None
    if lower_ns > upper_ns:
        msg = (
            f"interval: the lower bound {lower!r} exceeds the upper one {upper!r}, so no rows would"
            " join: swap them"
        )
        raise TopologyError(msg)
    return TimeInterval(lower_ns, upper_ns)
