"""Settings of the generator."""

from __future__ import annotations

from dataclasses import dataclass

from ..shared.ranges import check_whole

__all__ = ["TaxiSettings"]


@dataclass(frozen=True)
class TaxiSettings:
    """How many trips to generate.

    Raises:
        SettingsError: a value lies outside its range.
    """

    trips: int = 1_000_000
    """In the order of time."""
    trips_per_s: int = 5_000
    """In event time."""
    seed: int = 1
    """The same settings give the same rows."""

    def __post_init__(self) -> None:
        check_whole("trips", self.trips, 1, 10**12)
        check_whole("trips_per_s", self.trips_per_s, 1, 1_000_000)
        check_whole("seed", self.seed, 0, 2**63 - 1)
