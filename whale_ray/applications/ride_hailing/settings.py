"""Settings of the ride-hailing application, with the defaults from its definition."""

from __future__ import annotations

from dataclasses import dataclass

from ..shared.ranges import check_number, check_whole

__all__ = ["RideHailingSettings"]

_RADIUS_M_MAX = 20_100_000
_MAX_AGE_S_MAX = 10 * 366 * 86_400
_INSTANCES_MAX = 4_096


@dataclass(frozen=True)
class RideHailingSettings:
    """How requests and vehicles are matched.

    Raises:
        SettingsError: a value lies outside its range.
    """

    radius_m: float = 2_000.0
    """Greatest haversine distance between vehicle and pick-up, inclusive; up to half the globe."""
    max_age_s: float = 600.0
    """Greatest age of a vehicle's last fix at the time of the request, inclusive."""
    matching_instances: int = 16
    """Instances that keep positions; every request is broadcast to all of them."""
    best_instances: int = 4
    """Instances that choose the best vehicle per request."""

    def __post_init__(self) -> None:
        check_number("radius_m", self.radius_m, 0, _RADIUS_M_MAX, "metres")
        check_number("max_age_s", self.max_age_s, 0, _MAX_AGE_S_MAX, "seconds")
        for name in ("matching_instances", "best_instances"):
            check_whole(name, getattr(self, name), 1, _INSTANCES_MAX, "instances")
