"""Settings of the generator, with NEXMark's defaults."""

from __future__ import annotations

from dataclasses import dataclass

from ..shared.ranges import check_whole

__all__ = ["MAX_OUT_OF_ORDER_MS", "NexmarkSettings"]

MAX_OUT_OF_ORDER_MS = 4_000
"""The bound on the order of arrival: the watermark of NEXMark's tables."""


@dataclass(frozen=True)
class NexmarkSettings:
    """How many events to generate, and how.

    Raises:
        SettingsError: a value lies outside its range.
    """

    events: int = 1_000_000
    """Of all three kinds: of 50 in a row one is a person, 3 are auctions, 46 are bids."""
    seed: int = 1
    """The same settings give the same rows."""
    events_per_s: int = 10_000
    """In event time: events are 1 s / `events_per_s` apart."""
    delayed_percent: int = 10
    """Share of the events that arrive late, by up to `delay_max_ms`."""
    delay_max_ms: int = 3_000
    """Below `MAX_OUT_OF_ORDER_MS`."""

    def __post_init__(self) -> None:
        check_whole("events", self.events, 1, 10**12)
        check_whole("seed", self.seed, 0, 2**63 - 1)
        check_whole("events_per_s", self.events_per_s, 1, 1_000_000)
        check_whole("delayed_percent", self.delayed_percent, 0, 100)
        check_whole("delay_max_ms", self.delay_max_ms, 0, MAX_OUT_OF_ORDER_MS - 1, "ms")
