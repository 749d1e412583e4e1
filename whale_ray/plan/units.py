"""Durations and sizes as text, in the unit that suits them."""

from __future__ import annotations

_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_DURATIONS_MS = ((86_400_000.0, "d"), (3_600_000.0, "h"), (60_000.0, "min"), (1000.0, "s"))


def describe_duration(milliseconds: float) -> str:
    """Return a duration in the largest unit in which it is at least 1."""
    for limit, suffix in _DURATIONS_MS:
        if milliseconds >= limit:
            return f"{milliseconds / limit:.3g} {suffix}"
    return f"{milliseconds:.3g} ms"


def format_bytes(count: float) -> str:
    """Return a number of bytes as text, in the largest binary unit in which it is at least 1."""
    unit = 0
    while count >= 1024 and unit < len(_BINARY_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.4g} {_BINARY_UNITS[unit]}"
