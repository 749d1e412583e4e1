"""What the stock-exchange application may be told, with the defaults of its definition."""

from __future__ import annotations

from dataclasses import dataclass

from ...configs.errors import SettingsError

__all__ = ["StockExchangeSettings"]

_INSTANCES_MAX = 4_096


@dataclass(frozen=True)
class StockExchangeSettings:
    """How the work is divided; results do not depend on it.

    Raises:
        SettingsError: a value lies outside its range.
    """

    matching_instances: int = 16
    """Instances that own the books; every order goes to all of them."""
    volume_instances: int = 4
    """Instances that add up the trading volume."""

    def __post_init__(self) -> None:
        for name in ("matching_instances", "volume_instances"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                msg = f"{name} is {value!r}: give a whole number"
                raise SettingsError(msg)
            if not 1 <= value <= _INSTANCES_MAX:
                msg = f"{name} is {value}: give 1 to {_INSTANCES_MAX:,} instances"
                raise SettingsError(msg)
