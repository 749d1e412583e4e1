"""`Aggregation`: what a `group_by(…).agg(…)` asks for, and the columns that come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ...configs.errors import ExpressionError
from .durations import describe_ns
from .specifications import CountWindow, SessionWindow, TimeWindow, WindowSpecification

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from ...transport.wire.column import Column
    from ...transport.wire.types import DataType, Schema
    from ..aggregates.accumulator import Accumulator
    from ..aggregates.aggregate import Aggregate
    from ..process import Process

__all__ = [
    "LATE",
    "MAIN",
    "OUTPUTS",
    "WINDOW_END",
    "WINDOW_START",
    "Aggregation",
    "OutputMode",
    "evaluated_inputs",
]

OutputMode: TypeAlias = Literal["append", "update"]

MAIN, LATE = OUTPUTS = ("main", "late")
"""The outputs: results, and the rows that came too late for all of their windows."""

WINDOW_START = "window_start"
WINDOW_END = "window_end"


@dataclass(frozen=True)
class Aggregation:
    """An aggregation; calling it makes the operator, so it is the payload of a process.

    Attributes:
        keys: the grouping columns.
        window: None for a group-by without a window.
        aggregates: what is computed for each group.
        within_windows: whether rows are results of windows, grouped by their `window_end`.
        of_sessions: whether these windows are sessions.
        time_zone: of the event-time column, which the bounds of windows get as well.
        output_mode: `append`: one row of a group when its window closes; `update`: the rows of
            groups that have changed.
        trigger_ns: in update mode, rows are emitted at most this often; None: after each batch.
        allowed_lateness_ns: for how long after its end a window takes late rows.
    """

    keys: tuple[str, ...]
    window: WindowSpecification | None
    aggregates: tuple[Aggregate, ...]
    within_windows: bool = False
    of_sessions: bool = False
    time_zone: str | None = None
    output_mode: OutputMode = "append"
    trigger_ns: int | None = None
    allowed_lateness_ns: int = 0

    @property
    def has_window_columns(self) -> bool:
        """Whether the result begins with `window_start` and `window_end`."""
        return isinstance(self.window, (TimeWindow, SessionWindow))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the result's columns."""
        window = (WINDOW_START, WINDOW_END) if self.has_window_columns else ()
        return (*window, *self.keys, *(one.output_name for one in self.aggregates))

    def accumulators(self, schema: Schema) -> list[Accumulator]:
        """Return what computes the aggregates for these columns; raise as `Aggregate.bind`."""
        return [one.bind(schema) for one in self.aggregates]

    @property
    def window_type(self) -> DataType:
        """The type of `window_start` and `window_end`."""
        from ...transport.wire.types import DataType

        zone = self.time_zone
        return DataType.parse("timestamp[us]" if zone is None else f"timestamp[us, tz={zone}]")

    def output_schema(
        self, schema: Schema, accumulators: Sequence[Accumulator] | None = None
    ) -> Schema:
        """Return the columns of the result for rows of this schema.

        Raises:
            ExpressionError: a column does not exist, or an aggregate does not take its type.
        """
        from ...transport.wire.types import Field, Schema

        missing = [name for name in self.keys if name not in schema]
        if missing:
            msg = f"group_by names column {missing[0]!r}; there are {', '.join(schema.names)}"
            raise ExpressionError(msg)
        kind = self.window_type
        found = self.accumulators(schema) if accumulators is None else accumulators
        fields = [Field(name, kind) for name in (WINDOW_START, WINDOW_END)]
        fields = fields if self.has_window_columns else []
        fields += [schema.field(name) for name in self.keys]
        fields += [
            Field(aggregate.output_name, accumulator.output)
            for aggregate, accumulator in zip(self.aggregates, found, strict=True)
        ]
        return Schema(tuple(fields))

    def output_schemas(self, inputs: tuple[Schema | None, ...]) -> Mapping[str, Schema | None]:
        """Return the columns of each output, as far as they are known; raise as `output_schema`."""
        schema = inputs[0]
        main = None if schema is None else self.output_schema(schema)
        return {MAIN: main, LATE: schema}

    def describe(self) -> str:
        """Return the label that `explain` prints."""
        parts = []
        if self.window is not None:
            parts.append(self.window.describe())
        elif self.within_windows:
            parts.append("within windows")
        parts.append(", ".join(str(one) for one in self.aggregates))
        if self.output_mode == "update":
            often = "" if self.trigger_ns is None else f" every {describe_ns(self.trigger_ns)}"
            parts.append(f"changed rows{often}")
        if self.allowed_lateness_ns:
            parts.append(f"late by up to {describe_ns(self.allowed_lateness_ns)}")
        parts.append("state: declared, by virtual node")
        return "; ".join(parts)

    def __call__(self) -> Process:
        """Return a new operator."""
        from .aggregate_windows import AggregateWindows
        from .count_windows import CountWindows
        from .session_windows import SessionWindows

        if isinstance(self.window, SessionWindow):
            return SessionWindows(self)
        if isinstance(self.window, CountWindow):
            return CountWindows(self)
        return AggregateWindows(self)


def evaluated_inputs(aggregates: Sequence[Aggregate], batch: Batch) -> list[list[Column]]:
    """Return the columns that each aggregate reads, computed for a batch."""
    from ..expressions.evaluation import Environment

    environment = Environment(batch)
    return [[environment.evaluate(one) for one in each.inputs] for each in aggregates]
