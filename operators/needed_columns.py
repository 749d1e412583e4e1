"""`Needed`: the columns that somebody needs of rows: some, or all that there are."""

from __future__ import annotations

from typing import TypeAlias

__all__ = ["ALL", "Needed", "both"]

Needed: TypeAlias = frozenset[str] | None
"""Names of columns, which may be more than those of the rows; None for all columns."""

ALL: Needed = None


def both(one: Needed, other: Needed) -> Needed:
    """Return the columns that either needs."""
    return ALL if one is None or other is None else one | other
