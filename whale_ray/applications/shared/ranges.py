"""Settings that must lie in a range."""

from __future__ import annotations

import math
from typing import Any

from ...configs.errors import SettingsError

__all__ = ["check_number", "check_whole"]


def check_number(name: str, value: Any, least: float, most: float, unit: str = "") -> None:
    """Refuse what is no number from `least` to `most`, in `unit`; raises SettingsError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        of_unit = f" of {unit}" if unit else ""
        msg = f"{name} is {value!r}: give a number{of_unit}"
        raise SettingsError(msg)
    _check_range(name, value, least, most, unit)


def check_whole(name: str, value: Any, least: int, most: int, unit: str = "") -> None:
    """Refuse what is no whole number from `least` to `most`, in `unit`; raises SettingsError."""
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{name} is {value!r}: give a whole number"
        raise SettingsError(msg)
    _check_range(name, value, least, most, unit)


def _check_range(name: str, value: float, least: float, most: float, unit: str) -> None:
    if not least <= value <= most:
        msg = f"{name} is {value}: give {least:,} to {most:,} {unit}".rstrip()
        raise SettingsError(msg)
