"""Settings of the generator."""

from __future__ import annotations

from dataclasses import dataclass

from ..shared.ranges import check_whole

__all__ = ["LinearRoadSettings"]


@dataclass(frozen=True)
class LinearRoadSettings:
    """How much traffic to generate.

    Raises:
        SettingsError: a value lies outside its range.
    """

    expressways: int = 1
    """The benchmark's L; each has 100 segments in two directions."""
    vehicles: int = 4_000
    """Of an expressway, on it at a time; one that leaves is followed by another."""
    minutes: int = 30
    """Every vehicle reports each 30 s."""
    accidents: int = 20
    """Of an expressway; two vehicles stand in the same place for 5 minutes."""
    seed: int = 1
    """The same settings give the same rows."""

    def __post_init__(self) -> None:
        check_whole("expressways", self.expressways, 1, 1_000)
        check_whole("vehicles", self.vehicles, 2, 1_000_000)
        check_whole("minutes", self.minutes, 1, 10_080)
        check_whole("accidents", self.accidents, 0, self.vehicles // 2)
        check_whole("seed", self.seed, 0, 2**63 - 1)
