"""Range checks for settings; messages name the command-line option where there is one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...configs.errors import SettingsError, UsageError

__all__ = ["OutOfRangeError", "check_number", "check_whole", "named_as_options"]


class OutOfRangeError(SettingsError):
    """A setting has a value outside its range: `name` is the setting, `problem` the description."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name} {problem}")
        self.name = name
        self.problem = problem


@contextmanager
def named_as_options(**options: str) -> Iterator[None]:
    """Report settings out of range by the name of their command-line option.

    Args:
        options: setting → option; without an entry, `max_age_s` becomes `--max-age-s`.

    Raises:
        UsageError: a setting in the block has a value outside its range.
    """
    try:
        yield
    except OutOfRangeError as error:
        option = options.get(error.name, f"--{error.name.replace('_', '-')}")
        msg = f"{option} {error.problem}"
        raise UsageError(msg) from None


def check_number(name: str, value: Any, least: float, most: float, unit: str = "") -> None:
    """Check for a number from `least` to `most`, in `unit`; raises SettingsError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        of_unit = f" of {unit}" if unit else ""
        problem = f"is {value!r}: give a number{of_unit}"
        raise OutOfRangeError(name, problem)
    _check_range(name, value, least, most, unit)


def check_whole(name: str, value: Any, least: int, most: int, unit: str = "") -> None:
    """Check for a whole number from `least` to `most`, in `unit`; raises SettingsError."""
    if isinstance(value, bool) or not isinstance(value, int):
        problem = f"is {value!r}: give a whole number"
        raise OutOfRangeError(name, problem)
    _check_range(name, value, least, most, unit)


def _check_range(name: str, value: float, least: float, most: float, unit: str) -> None:
    if not least <= value <= most:
        problem = f"is {value}: give {least:,} to {most:,} {unit}".rstrip()
        raise OutOfRangeError(name, problem)
