"""`Join`: what a `join` of two streams asks for, and the columns that come of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ...configs.errors import ExpressionError
from ..windows.durations import describe_ns
from ..windows.grouping import WINDOW_END, WINDOW_START
from ..windows.specifications import TimeWindow
from .interval import TimeInterval

if TYPE_CHECKING:
    from ...transport.wire.types import DataType, Schema
    from ..process import CoProcess

__all__ = ["LATE_LEFT", "LATE_RIGHT", "MAIN", "OUTPUTS", "How", "Join"]

How: TypeAlias = Literal["inner", "left", "right", "outer", "semi", "anti"]

MAIN, LATE_LEFT, LATE_RIGHT = OUTPUTS = ("main", "late_left", "late_right")
"""The outputs: joined rows, and the rows of each side that came too late."""


@dataclass(frozen=True)
class Join:
    """A join; calling it makes the operator, so it is the payload of a co-process.

    Attributes:
        keys: pairs of a left and a right column that must be equal.
        within: the windows in which rows join, or how far apart they may be.
        how: the type of the join.
        left: the left columns, as far as they were known while the topology was built.
        right: the right columns, likewise.
        time_zone: of the event-time columns, which the bounds of windows get as well.
        allowed_lateness_ns: for how long rows are kept beyond their time, for late ones.
    """

    keys: tuple[tuple[str, str], ...]
    within: TimeWindow | TimeInterval
    how: How = "inner"
    left: Schema | None = None
    right: Schema | None = None
    time_zone: str | None = None
    allowed_lateness_ns: int = 0

    @property
    def left_keys(self) -> tuple[str, ...]:
        """The left columns of the key."""
        return tuple(left for left, _ in self.keys)

    @property
    def right_keys(self) -> tuple[str, ...]:
        """The right columns of the key."""
        return tuple(right for _, right in self.keys)

    @property
    def shared_keys(self) -> frozenset[str]:
        """Columns of the key with one name on both sides, which are one column of the result."""
        return frozenset(left for left, right in self.keys if left == right)

    @property
    def has_window_columns(self) -> bool:
        """Whether the result begins with `window_start` and `window_end`."""
        return isinstance(self.within, TimeWindow)

    @property
    def only_left_columns(self) -> bool:
        """Whether the result has no columns of the right side."""
        return self.how in ("semi", "anti")

    def keeps_unmatched(self, side: int) -> bool:
        """Whether the result has rows of a side (0 is left) that joined with none."""
        return self.how in (("left", "outer", "anti"), ("right", "outer"))[side]

    @property
    def window_type(self) -> DataType:
        """The type of `window_start` and `window_end`."""
        from ...transport.wire.types import DataType

        zone = self.time_zone
        return DataType.parse("timestamp[us]" if zone is None else f"timestamp[us, tz={zone}]")

    def names(self, left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the result's columns.

        Raises:
            ExpressionError: two columns would have the same name.
        """
        window = (WINDOW_START, WINDOW_END) if self.has_window_columns else ()
        others = () if self.only_left_columns else self.right_names(right)
        names = (*window, *left, *others)
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is None:
            return names
        if twice in window:
            fix = "the window makes a column of that name: rename or leave out the other one"
        else:
            fix = (
                "both sides have it: rename it on one side, select(…,"
                f" whale.col({twice!r}).alias('…')), or leave it out"
            )
        msg = f"the result would have column {twice!r} twice; {fix}"
        raise ExpressionError(msg)

    def right_names(self, right: tuple[str, ...]) -> tuple[str, ...]:
        """Return the columns that the right side adds."""
        return tuple(name for name in right if name not in self.shared_keys)

    def output_schema(self, left: Schema, right: Schema) -> Schema:
        """Return the columns of the result.

        Raises:
            ExpressionError: a column is missing or would be there twice, or keys cannot be equal.
        """
        from ...transport.wire.types import Field, Schema

        self.check_keys(left, right)
        names = self.names(left.names, right.names)
        types = {field.name: field.type for field in (*right, *left)}
        window = (WINDOW_START, WINDOW_END) if self.has_window_columns else ()
        return Schema(tuple(Field(n, self.window_type if n in window else types[n]) for n in names))

    def check_keys(self, left: Schema, right: Schema) -> None:
        """Refuse keys that can never be equal; raise ExpressionError."""
        for name, other in self.keys:
            for column, schema in ((name, left), (other, right)):
                if column not in schema:
                    there = ", ".join(schema.names)
                    msg = f"join names column {column!r}; there are {there}"
                    raise ExpressionError(msg)
            one, two = left.field(name).type, right.field(other).type
            if _comparable(one) != _comparable(two) or (name == other and one != two):
                again = " (a shared key is one column)" if name == other else ""
                msg = (
                    f"join compares {name!r}, which is {one.name}, with {other!r}, which is"
                    f" {two.name}{again}: cast one of them with with_column before"
                )
                raise ExpressionError(msg)

    def output_schemas(self, inputs: tuple[Schema | None, ...]) -> Mapping[str, Schema | None]:
        """Return the columns of each output, as far as they are known; raise as `output_schema`."""
        left, right = inputs
        main = None if left is None or right is None else self.output_schema(left, right)
        return {MAIN: main, LATE_LEFT: left, LATE_RIGHT: right}

    def describe(self) -> str:
        """Return the label that `explain` prints."""
        on = ", ".join(f"{left} = {right}" for left, right in self.keys)
        parts = [f"{self.how} join on {on}", self.within.describe()]
        if self.allowed_lateness_ns:
            parts.append(f"late by up to {describe_ns(self.allowed_lateness_ns)}")
        return "; ".join(parts)

    def __call__(self) -> CoProcess:
        """Return a new operator."""
        from .join_streams import JoinStreams

        return JoinStreams(self)


def _comparable(kind: DataType) -> str:
    """Return the same text for types whose values may be equal, and have equal hashes then."""
    if kind.kind == "bytes":
        return "text" if kind.is_text else "binary"
    if kind.family in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"):
        return "integer"
    return "float" if kind.storage.kind == "f" else kind.name
