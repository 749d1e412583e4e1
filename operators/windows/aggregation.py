"""`Aggregation`: what a `group_by(…).agg(…)` asks for, and the columns that come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ...configs.errors import InputError
from ..needed_columns import Needed, both
from .durations import describe_ns
from .grouping import LATE, MAIN, WINDOW_END, WINDOW_START, WindowedGrouping
from .specifications import CountWindow, SessionWindow

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from ...transport.wire.column import Column
    from ...transport.wire.types import Schema
    from ..aggregates.accumulator import Accumulator
    from ..aggregates.aggregate import Aggregate
    from ..process import Process

__all__ = ["Aggregation", "AggregationWay", "OutputMode", "evaluated_inputs"]

OutputMode: TypeAlias = Literal["append", "update"]

AggregationWay: TypeAlias = Literal["auto", "partitioned", "late_merge"]
"""Whether rows are sent by key and then aggregated, or aggregated where they are made, and merged
by key. See the setting `runtime.aggregation`."""


@dataclass(frozen=True)
class Aggregation(WindowedGrouping):
    """An aggregation; calling it makes the operator, so it is the payload of a process.

    Attributes:
        aggregates: what is computed for each group.
        output_mode: `append`: one row of a group when its window closes; `update`: the rows of
            groups that have changed.
        trigger_ns: in update mode, rows are emitted at most this often; None: after each batch.
        allowed_lateness_ns: for how long after its end a window takes late rows.
        way: how it is computed; None: as the setting says.
    """

    aggregates: tuple[Aggregate, ...]
    output_mode: OutputMode = "append"
    trigger_ns: int | None = None
    allowed_lateness_ns: int = 0
    way: AggregationWay | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the result's columns."""
        window = (WINDOW_START, WINDOW_END) if self.has_window_columns else ()
        return (*window, *self.keys, *(one.output_name for one in self.aggregates))

    @property
    def kept(self) -> tuple[str, ...]:
        """What is kept for each group, in words."""
        return tuple(str(one) for one in self.aggregates)

    @property
    def emits_changes(self) -> bool:
        """Whether a group's row may be emitted more than once, as it changes."""
        return self.output_mode == "update" or self.allowed_lateness_ns > 0

    def accumulators(self, schema: Schema) -> list[Accumulator]:
        """Return what computes the aggregates for these columns; raise as `Aggregate.bind`."""
        return [one.bind(schema) for one in self.aggregates]

    def output_schema(
        self, schema: Schema, accumulators: Sequence[Accumulator] | None = None
    ) -> Schema:
        """Return the columns of the result for rows of this schema.

        Raises:
            ExpressionError: a column does not exist, or an aggregate does not take its type.
        """
        from ...transport.wire.types import Field, Schema

        found = self.accumulators(schema) if accumulators is None else accumulators
        fields = self.window_fields(schema)
        fields += [schema.field(name) for name in self.keys]
        fields += [
            Field(aggregate.output_name, accumulator.output)
            for aggregate, accumulator in zip(self.aggregates, found, strict=True)
        ]
        return Schema(tuple(fields))

    def check_types(self, before: Schema, now: Schema) -> None:
        """Check that the columns that it reads still have the types of which groups were made.

        Raises:
            InputError: one does not, as after a restore with changed code, or where instances of a
                function have learnt different types.
        """
        read = {name for one in self.aggregates for name in one.columns}
        for name in sorted({*self.keys, *read}):
            was, is_now = before.field(name).type, now.field(name).type
            if was != is_now:
                msg = f"column {name!r} is {is_now} and was {was} before: cast it to one type"
                raise InputError(msg)

    def columns_needed(self, wanted: Mapping[str, Needed]) -> Needed:
        """Return the columns of the input that it needs for those of each output."""
        read = {name for one in self.aggregates for name in one.columns}
        window = (WINDOW_START, WINDOW_END) if self.within_windows else ()
        return both(wanted[LATE], frozenset({*read, *self.keys, *window}))

    def output_schemas(self, inputs: tuple[Schema | None, ...]) -> Mapping[str, Schema | None]:
        """Return the columns of each output, as far as they are known; raise as `output_schema`."""
        schema = inputs[0]
        main = None if schema is None else self.output_schema(schema)
        return {MAIN: main, LATE: schema}

    def describe(self) -> str:
        """Return the label that `explain` prints."""
        parts = self.describe_window()
        parts.append(", ".join(str(one) for one in self.aggregates))
        if self.output_mode == "update":
            often = "" if self.trigger_ns is None else f" every {describe_ns(self.trigger_ns)}"
            parts.append(f"changed rows{often}")
        if self.allowed_lateness_ns:
            parts.append(f"late by up to {describe_ns(self.allowed_lateness_ns)}")
        return "; ".join(parts)

    def __call__(self) -> Process:
        """Return a new operator."""
        from .aggregate_windows import AggregateWindows
        from .clock_windows import ClockWindows
        from .count_windows import CountWindows
        from .session_windows import SessionWindows

        if isinstance(self.window, SessionWindow):
            return SessionWindows(self)
        if isinstance(self.window, CountWindow):
            return CountWindows(self)
        if self.is_by_clock:
            return ClockWindows(self)
        return AggregateWindows(self)


def evaluated_inputs(aggregates: Sequence[Aggregate], batch: Batch) -> list[list[Column]]:
    """Return the columns that each aggregate reads, computed for a batch."""
    from ..expressions.evaluation import Environment

    environment = Environment(batch)
    return [[environment.evaluate(one) for one in each.inputs] for each in aggregates]
