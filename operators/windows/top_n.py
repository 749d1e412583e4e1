"""`TopN`: what a `group_by(…).top_n(…)` asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...configs.errors import ExpressionError
from .grouping import LATE, MAIN, WindowedGrouping

if TYPE_CHECKING:
    from ...transport.wire.types import Schema
    from ..process import Process

__all__ = ["TopN"]


@dataclass(frozen=True)
class TopN(WindowedGrouping):
    """The first rows of each group; calling it makes the operator.

    Attributes:
        n: how many rows.
        by: the column whose greatest values come first.
        with_ties: whether rows that are equal to the last of them come, too.
    """

    n: int
    by: str
    with_ties: bool = False

    @property
    def kept(self) -> tuple[str, ...]:
        """What is kept for each group, in words."""
        return (f"rows that may be among the first {self.n}",)

    def output_schema(self, schema: Schema) -> Schema:
        """Return the columns of the result for rows of this schema.

        Raises:
            ExpressionError: a column does not exist, or is there twice.
        """
        from ...transport.wire.types import Schema

        if self.by not in schema:
            msg = f"top_n names column {self.by!r}; there are {', '.join(schema.names)}"
            raise ExpressionError(msg)
        window = self.window_fields(schema)
        if repeated := [one.name for one in window if one.name in schema]:
            msg = f"the window makes a column {repeated[0]!r}, too: rename the other one before"
            raise ExpressionError(msg)
        return Schema((*window, *schema.fields))

    def output_schemas(self, inputs: tuple[Schema | None, ...]) -> Mapping[str, Schema | None]:
        """Return the columns of each output, as far as they are known; raise as `output_schema`."""
        schema = inputs[0]
        return {MAIN: None if schema is None else self.output_schema(schema), LATE: schema}

    def describe(self) -> str:
        """Return the label that `explain` prints."""
        ties = " with ties" if self.with_ties else ""
        parts = self.describe_window()
        return "; ".join([*parts, f"top {self.n} by {self.by}{ties}"])

    def __call__(self) -> Process:
        """Return a new operator."""
        from .top_rows import TopRows

        return TopRows(self)
