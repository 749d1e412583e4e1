"""`Join`: what a `join` of two streams asks for, and the columns that come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..windows.durations import describe_ns
from ..windows.grouping import WINDOW_END, WINDOW_START, bounds_type
from ..windows.specifications import SessionWindow, TimeWindow
from .equi_join import EquiJoin
from .interval import TimeInterval

if TYPE_CHECKING:
    from ...transport.wire.types import DataType, Schema
    from ..process import CoProcess

__all__ = ["LATE_LEFT", "LATE_RIGHT", "MAIN", "OUTPUTS", "Join", "JoinOfStreams"]

MAIN, LATE_LEFT, LATE_RIGHT = OUTPUTS = ("main", "late_left", "late_right")
"""The outputs: joined rows, and the rows of each side that came too late."""


@dataclass(frozen=True)
class JoinOfStreams(EquiJoin):
    """What joins of two streams share: rows of either side may come too late."""

    def output_schemas(self, inputs: tuple[Schema | None, ...]) -> Mapping[str, Schema | None]:
        """Return the columns of each output, as far as they are known; raise as `output_schema`."""
        left, right = inputs
        main = None if left is None or right is None else self.output_schema(left, right)
        return {MAIN: main, LATE_LEFT: left, LATE_RIGHT: right}


@dataclass(frozen=True)
class Join(JoinOfStreams):
    """A join of rows near in event time; calling it makes the operator, so it is a payload.

    Attributes:
        within: the windows or sessions in which rows join, or how far apart they may be.
        time_zone: of the event-time columns, which the bounds of windows get as well.
        allowed_lateness_ns: for how long rows are kept beyond their time, for late ones.
    """

    within: TimeWindow | SessionWindow | TimeInterval
    time_zone: str | None = None
    allowed_lateness_ns: int = 0

    @property
    def has_window_columns(self) -> bool:
        """Whether the result begins with `window_start` and `window_end`."""
        return isinstance(self.within, (TimeWindow, SessionWindow))

    @property
    def window_columns(self) -> dict[str, DataType]:
        """See `EquiJoin.window_columns`."""
        if not self.has_window_columns:
            return {}
        return dict.fromkeys((WINDOW_START, WINDOW_END), bounds_type(self.time_zone))

    def describe(self) -> str:
        """Return the label that `explain` prints."""
        parts = [f"{self.how} join on {self.describe_keys()}", self.within.describe()]
        if self.allowed_lateness_ns:
            parts.append(f"late by up to {describe_ns(self.allowed_lateness_ns)}")
        return "; ".join(parts)

    def __call__(self) -> CoProcess:
        """Return a new operator."""
        from .join_streams import JoinStreams
        from .session_streams import JoinSessions

        return JoinSessions(self) if isinstance(self.within, SessionWindow) else JoinStreams(self)
