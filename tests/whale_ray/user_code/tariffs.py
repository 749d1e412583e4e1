"""A module of a user's own, which lies beside their topologies and reaches workers by its name."""

from __future__ import annotations


def fare_cents(km: int) -> int:
    return 300 + 2 * km
