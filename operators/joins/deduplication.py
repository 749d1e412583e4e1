"""`Deduplication`: what `drop_duplicates` asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...configs.errors import ExpressionError
from ..needed_columns import Needed, both
from ..windows.durations import describe_ns
from ..windows.grouping import LATE, MAIN

if TYPE_CHECKING:
    from ...transport.wire.types import Schema
    from ..process import Process

__all__ = ["Deduplication"]


@dataclass(frozen=True)
class Deduplication:
    """A de-duplication; calling it makes the operator, so it is the payload of a process.

    Attributes:
        keys: the columns in which duplicates are equal.
        within_ns: rows that lie so far apart in event time are no duplicates.
    """

    keys: tuple[str, ...]
    within_ns: int

    def columns_needed(self, wanted: Mapping[str, Needed]) -> Needed:
        """Return the columns of the input that it needs for those of each output."""
        return both(both(wanted[MAIN], wanted[LATE]), frozenset(self.keys))

    def output_schemas(self, inputs: tuple[Schema | None, ...]) -> Mapping[str, Schema | None]:
        """Return the columns of both outputs, which are those of the input.

        Raises:
            ExpressionError: a column does not exist.
        """
        schema = inputs[0]
        missing = [] if schema is None else [name for name in self.keys if name not in schema]
        if schema is not None and missing:
            there = ", ".join(schema.names)
            msg = f"drop_duplicates names column {missing[0]!r}; there are {there}"
            raise ExpressionError(msg)
        return {MAIN: schema, LATE: schema}

    def describe(self) -> str:
        """Return the label that `explain` prints."""
        names = ", ".join(self.keys)
        return f"first rows of {names} within {describe_ns(self.within_ns)}"

    def __call__(self) -> Process:
        """Return a new operator."""
        from .drop_duplicates import DropDuplicates

        return DropDuplicates(self)
