"""`EquiJoin`: what all joins share: keys that must be equal, and the columns that come of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from ...configs.errors import ExpressionError

if TYPE_CHECKING:
    from ...transport.wire.types import DataType, Schema

__all__ = ["EquiJoin", "How"]

How: TypeAlias = Literal["inner", "left", "right", "outer", "semi", "anti"]


@dataclass(frozen=True)
class EquiJoin:
    """A join of rows that have equal keys, of a left and a right input.

    Attributes:
        keys: pairs of a left and a right column that must be equal.
        how: the type of the join.
        left: the left columns, as far as they were known while the topology was built.
        right: the right columns, likewise.
    """

    keys: tuple[tuple[str, str], ...]
    how: How = field(default="inner", kw_only=True)
    left: Schema | None = field(default=None, kw_only=True)
    right: Schema | None = field(default=None, kw_only=True)

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
    def only_left_columns(self) -> bool:
        """Whether the result has no columns of the right side."""
        return self.how in ("semi", "anti")

    def keeps_unmatched(self, side: int) -> bool:
        """Whether the result has rows of a side (0 is left) that joined with none."""
        return self.how in (("left", "outer", "anti"), ("right", "outer"))[side]

    @property
    def window_columns(self) -> dict[str, DataType]:
        """The columns before all others, for the window that rows joined in; none by default."""
        return {}

    def describe_keys(self) -> str:
        """Return what `explain` says of the keys: "auction = id"."""
        return ", ".join(f"{left} = {right}" for left, right in self.keys)

    def names(self, left: tuple[str, ...], right: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the result's columns.

        Raises:
            ExpressionError: two columns would have the same name.
        """
        window = tuple(self.window_columns)
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
        types = {field.name: field.type for field in (*right, *left)} | self.window_columns
        return Schema(tuple(Field(name, types[name]) for name in names))

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


def _comparable(kind: DataType) -> str:
    """Return the same text for types whose values may be equal, and have equal hashes then."""
    if kind.kind == "bytes":
        return "text" if kind.is_text else "binary"
    if kind.family in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"):
        return "integer"
    return "float" if kind.storage.kind == "f" else kind.name
