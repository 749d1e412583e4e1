"""State of operators: by key, rows that wait for event time, watermarks.

What users declare (`from whale_ray import state`) is imported when it is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # known to type checkers; loading `typing` takes long
if TYPE_CHECKING:
    from typing import Any

    from .declarations import count, list, map, max, min, sum, timer, value

__all__ = ["count", "list", "map", "max", "min", "sum", "timer", "value"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}"
        raise AttributeError(msg)
    from . import declarations

    return getattr(declarations, name)
