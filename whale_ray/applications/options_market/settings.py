"""Settings of the options-market application, with the defaults from its definition."""

from __future__ import annotations

from dataclasses import dataclass

from ...configs.errors import SettingsError
from ..shared.ranges import check_number, check_whole

__all__ = ["MESSAGES_MAX", "MISSED_SHARE", "OptionsMarketSettings"]

#: With this limit no sum over the trades of a contract can overflow, see `engine_kernels`.
MESSAGES_MAX = 90_000_000

#: Vega considers an application incapable of a rate at which it misses this share or more.
MISSED_SHARE = 1e-4

_WHOLE: dict[str, tuple[int, int, str]] = {
    "feeds": (1, 1_024, "feed lines"),
    "engines": (1, 4_096, "instances"),
    "seed": (0, 2**63 - 1, ""),
    "threshold_bp": (1, 9_999, "basis points"),
    "line_messages": (1, 1 << 24, "messages"),
    "look_us": (0, 1_000_000, "microseconds"),
}


@dataclass(frozen=True)
class OptionsMarketSettings:
    """The load on the feed lines, and the numbers of instances.

    Raises:
        SettingsError: a value lies outside its range.
    """

    rate: float = 50_000.0
    """Messages per second over all lines, at random intervals, whether or not they are read."""
    seconds: float = 5.0
    """Duration of the run."""
    feeds: int = 2
    """Feed lines, each with its own feed handler; contracts are balanced over them by trades."""
    engines: int = 1
    """Decision engines; each contract belongs to one. If fused, every line has its own engine."""
    seed: int = 1
    """The same seed gives the same trades."""
    threshold_bp: int = 500
    """Distance from a contract's average price that triggers a decision, in 1/10,000 of it."""
    line_messages: int = 16_384
    """Size of a line's buffer in messages; a message that finds it full is missed."""
    look_us: int = 1_000
    """Time between two polls of a line by its handler; one poll reads all waiting messages."""

    def __post_init__(self) -> None:
        check_number("rate", self.rate, 1, 100_000_000, "messages per second")
        check_number("seconds", self.seconds, 0.01, 86_400, "seconds")
        for name, (least, most, unit) in _WHOLE.items():
            check_whole(name, getattr(self, name), least, most, unit)
        if self.rate * self.seconds > MESSAGES_MAX:
            msg = (
                f"rate {self.rate:,.0f} for {self.seconds:g} seconds would be "
                f"{self.rate * self.seconds:,.0f} messages: {MESSAGES_MAX:,} at most"
            )
            raise SettingsError(msg)
