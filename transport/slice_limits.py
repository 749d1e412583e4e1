"""When a slice is due: what a controller, which loads no compiled code, may say of it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SliceLimits"]


@dataclass(frozen=True)
class SliceLimits:
    """When a slice is due, whichever comes first.

    Args:
        wtl_ns: so long after its first row.
        due_rows: at so many rows; None: at MMS bytes alone.
    """

    wtl_ns: int
    due_rows: int | None = None
