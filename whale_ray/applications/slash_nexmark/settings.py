"""Settings of the generator, with the proportions of the thesis."""

from __future__ import annotations

from dataclasses import dataclass

from ..shared.ranges import check_number, check_whole
from ..shared.zipf import ZIPF_MAX

__all__ = ["SlashNexmarkSettings"]


@dataclass(frozen=True)
class SlashNexmarkSettings:
    """How many events to generate, and how.

    Raises:
        SettingsError: a value lies outside its range.
    """

    events: int = 1_000_000
    """Of all three kinds: of 9 in a row one is a seller, 4 are auctions, 4 are bids."""
    events_per_s: int = 10_000
    """In event time: events are 1 s / `events_per_s` apart, in order."""
    zipf: float = 0.0
    """The exponent by which auctions and bids prefer some of the newest sellers; 0: none."""
    seed: int = 1
    """The same settings give the same rows."""

    def __post_init__(self) -> None:
        check_whole("events", self.events, 1, 10**12)
        check_whole("events_per_s", self.events_per_s, 1, 1_000_000)
        check_number("zipf", self.zipf, 0, ZIPF_MAX)
        check_whole("seed", self.seed, 0, 2**63 - 1)
