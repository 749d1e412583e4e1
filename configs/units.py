"""Units of time and of memory, for values whose names end in their unit."""

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
