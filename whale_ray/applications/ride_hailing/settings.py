"""What the ride-hailing application may be told, with the defaults of its definition."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from ...configs.errors import SettingsError

__all__ = ["OnBadRows", "RideHailingSettings"]

OnBadRows = Literal["drop", "fail"]

_RADIUS_M_MAX = 20_100_000.0
_MAX_AGE_S_MAX = 10 * 366 * 86_400.0
_INSTANCES_MAX = 4_096


@dataclass(frozen=True)
class RideHailingSettings:
    """How requests and vehicles are matched.

    Raises:
        SettingsError: a value lies outside its range.
    """

    radius_m: float = 2_000.0
    """Greatest haversine distance of vehicle and pick-up, inclusive; up to half the globe."""
    max_age_s: float = 600.0
    """Greatest age of a vehicle's last fix at the time of the request, inclusive."""
    matching_instances: int = 16
    """Instances that keep positions; every request goes to all of them."""
    best_instances: int = 4
    """Instances that choose the best vehicle per request."""

    def __post_init__(self) -> None:
        _check("radius_m", self.radius_m, 0.0, _RADIUS_M_MAX, "metres")
        _check("max_age_s", self.max_age_s, 0.0, _MAX_AGE_S_MAX, "seconds")
        for name in ("matching_instances", "best_instances"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                msg = f"{name} is {value!r}: give a whole number"
                raise SettingsError(msg)
            _check(name, value, 1, _INSTANCES_MAX, "instances")


def _check(name: str, value: Any, least: float, most: float, unit: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        msg = f"{name} is {value!r}: give a number of {unit}"
        raise SettingsError(msg)
    if not least <= value <= most:
        msg = f"{name} is {value}: give {least:,.0f} to {most:,.0f} {unit}"
        raise SettingsError(msg)
