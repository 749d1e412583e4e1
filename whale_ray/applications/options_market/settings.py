"""What the options-market application may be told, with the defaults of its definition."""

from __future__ import annotations

from dataclasses import dataclass

from ...configs.errors import SettingsError
from ..shared.ranges import check_number, check_whole

__all__ = ["MESSAGES_MAX", "OptionsMarketSettings"]

#: So that no sum over the trades of a contract can overflow, see `engine_kernels`.
MESSAGES_MAX = 90_000_000

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
    """How much comes over the lines, and who deals with it.

    Raises:
        SettingsError: a value lies outside its range.
    """

    rate: float = 50_000.0
    """Messages per second, over all lines; they come at random, whether they are taken or not."""
    seconds: float = 5.0
    """For so long."""
    feeds: int = 2
    """Lines, each with a feed handler of its own. Contracts are dealt out to them by trades."""
    engines: int = 1
    """Decision engines; each contract has one of them. Fused, every line has its own."""
    seed: int = 1
    """The same seed gives the same trades."""
    threshold_bp: int = 500
    """Distance from a contract's average price at which it is bought or sold, in 1/10,000 of it."""
    line_messages: int = 16_384
    """Messages that a line keeps for its handler; one that finds no room is missed."""
    look_us: int = 1_000
    """Time between two looks of a handler at its line; what comes meanwhile goes on together."""

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
