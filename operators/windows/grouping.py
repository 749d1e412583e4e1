"""`WindowedGrouping`: the columns and the window that a user grouped by."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...configs.errors import ExpressionError
from .specifications import SessionWindow, TimeWindow, WindowSpecification

if TYPE_CHECKING:
    from ...transport.wire.types import DataType, Field, Schema

__all__ = [
    "LATE",
    "MAIN",
    "OUTPUTS",
    "SLICE",
    "WINDOW_END",
    "WINDOW_START",
    "WindowedGrouping",
    "bounds_type",
]

MAIN, LATE = OUTPUTS = ("main", "late")
"""The outputs: results, and the rows that came too late for all of their windows."""

SLICE = "#slice"
"""In dumped rows: the slice that they belong to. A batch without it tells the input's columns."""

WINDOW_START = "window_start"
WINDOW_END = "window_end"


def bounds_type(time_zone: str | None) -> DataType:
    """Return the type of `window_start` and `window_end` over event time of a zone."""
    from ...transport.wire.types import DataType

    zone = "" if time_zone is None else f", tz={time_zone}"
    return DataType.parse(f"timestamp[us{zone}]")


@dataclass(frozen=True)
class WindowedGrouping:
    """What rows are grouped by.

    Attributes:
        keys: the grouping columns.
        window: None for a group-by without a window.
        within_windows: whether rows are results of windows, grouped by their `window_end`.
        of_sessions: whether these windows are sessions.
        time_zone: of the event-time column, which the bounds of windows get as well.
    """

    keys: tuple[str, ...]
    window: WindowSpecification | None
    within_windows: bool = field(default=False, kw_only=True)
    of_sessions: bool = field(default=False, kw_only=True)
    time_zone: str | None = field(default=None, kw_only=True)

    @property
    def has_window_columns(self) -> bool:
        """Whether the result begins with `window_start` and `window_end`."""
        return isinstance(self.window, (TimeWindow, SessionWindow))

    @property
    def is_by_clock(self) -> bool:
        """Whether windows are of processing time."""
        return isinstance(self.window, TimeWindow) and self.window.by_clock

    def window_fields(self, schema: Schema) -> list[Field]:
        """Return the columns for the bounds of windows, with which a result begins.

        Raises:
            ExpressionError: rows of this schema lack a grouping column.
        """
        from ...transport.wire.types import Field

        missing = [name for name in self.keys if name not in schema]
        if missing:
            msg = f"group_by names column {missing[0]!r}; there are {', '.join(schema.names)}"
            raise ExpressionError(msg)
        names = (WINDOW_START, WINDOW_END) if self.has_window_columns else ()
        return [Field(name, bounds_type(self.time_zone)) for name in names]

    def describe_window(self) -> list[str]:
        """Return what `explain` says of the window."""
        if self.window is not None:
            return [self.window.describe()]
        return ["within windows"] if self.within_windows else []
