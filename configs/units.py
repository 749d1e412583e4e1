"""Units of time and of memory, for values whose names end in their unit; amounts as text."""

from __future__ import annotations

__all__ = [
    "DAY_MS",
    "GIB",
    "HOUR_MS",
    "KIB",
    "MIB",
    "NS_PER_MS",
    "NS_PER_S",
    "NS_PER_US",
    "US_PER_S",
    "describe_duration",
    "format_bytes",
    "format_mib",
]

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
US_PER_S = 1_000_000
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_DURATIONS_MS = ((86_400_000.0, "d"), (3_600_000.0, "h"), (60_000.0, "min"), (1000.0, "s"))


def describe_duration(milliseconds: float) -> str:
    """Return a duration in the largest unit in which it is at least 1."""
    for limit, suffix in _DURATIONS_MS:
        if milliseconds >= limit:
            return f"{milliseconds / limit:.3g} {suffix}"
    return f"{milliseconds:.3g} ms"


def format_mib(nbytes: int) -> str:
    """Return a number of bytes as text: "12.5 MiB"."""
    return f"{nbytes / MIB:,.1f} MiB"


def format_bytes(count: float) -> str:
    """Return a number of bytes as text, in the largest binary unit in which it is at least 1."""
    unit = 0
    while count >= 1024 and unit < len(_BINARY_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.4g} {_BINARY_UNITS[unit]}"
