"""Settings of the stock-exchange application, with the defaults from its definition."""

from __future__ import annotations

from dataclasses import dataclass

from ..shared.ranges import check_whole

__all__ = ["StockExchangeSettings"]

_INSTANCES_MAX = 4_096


@dataclass(frozen=True)
class StockExchangeSettings:
    """How many instances share the work; the results do not depend on it.

    Raises:
        SettingsError: a value lies outside its range.
    """

    matching_instances: int = 16
    """Instances that own the books; every order is broadcast to all of them."""
    volume_instances: int = 4
    """Instances that add up the trading volume."""

    def __post_init__(self) -> None:
        for name in ("matching_instances", "volume_instances"):
            check_whole(name, getattr(self, name), 1, _INSTANCES_MAX, "instances")
