"""Settings of the generator, with the benchmark's defaults."""

from __future__ import annotations

from dataclasses import dataclass

from ..shared.ranges import check_number, check_whole
from ..shared.zipf import ZIPF_MAX

__all__ = ["YahooSettings"]


@dataclass(frozen=True)
class YahooSettings:
    """How many events to generate, and of how many advertisements.

    Raises:
        SettingsError: a value lies outside its range.
    """

    events: int = 10_000_000
    """Views, clicks and purchases together."""
    events_per_s: int = 100
    """In event time, in which they are as far apart; times are whole milliseconds."""
    campaigns: int = 100
    """Each has ten advertisements."""
    zipf: float = 0.0
    """The exponent by which events prefer some advertisements; 0: none."""
    seed: int = 1
    """The same settings give the same rows."""

    def __post_init__(self) -> None:
        check_whole("events", self.events, 1, 10**12)
        check_whole("events_per_s", self.events_per_s, 1, 10**9)
        check_whole("campaigns", self.campaigns, 1, 100_000)
        check_number("zipf", self.zipf, 0, ZIPF_MAX)
        check_whole("seed", self.seed, 0, 2**63 - 1)
