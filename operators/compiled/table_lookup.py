"""`TableLookup`: a table join as a compiled loop does it: one row of the table or none for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..joins.common_keys import common_type

if TYPE_CHECKING:
    from ...transport.wire.types import Schema
    from ..joins.table_join import TableJoin
    from ..joins.unique_rows import UniqueRows

__all__ = ["ROWS_MAX", "TableLookup"]

ROWS_MAX = 1 << 18
"""Larger tables are not in the caches anyway; then the batch-wise look-up is as good."""

_KEYS = ("int64", "string")
"""Of `common_type`."""


@dataclass(frozen=True, eq=False)
class TableLookup:
    """A table join in a chain.

    Attributes:
        join: what is asked for.
        table: the columns of the table; None while they are not known.
        rows: of the table; None while they are not there, or if they cannot be looked up in a loop.
        why_not: why they cannot; empty if they can, as far as is known.
    """

    join: TableJoin
    table: Schema | None
    rows: UniqueRows | None = None
    why_not: str = ""

    @property
    def filters(self) -> bool:
        """Whether rows may be left out."""
        return self.join.how != "left"

    @property
    def by_text(self) -> bool:
        """Whether the key is text; else it is an integer."""
        assert self.table is not None
        return self.table.field(self.join.right_keys[0]).type.is_text

    @property
    def is_dense(self) -> bool:
        """Whether keys are found by their distance from the least one."""
        return self.rows is not None and self.rows.is_dense

    @property
    def place_tells(self) -> bool:
        """Whether rows are kept or left out by the distance of their key alone, without the slots.

        It then need not be within them for a row that is left out.
        """
        return self.filters and self.rows is not None and self.rows.is_without_gaps

    @property
    def key_bytes(self) -> int | None:
        """How many bytes each key of text has; None if not all have as many, or that is unknown."""
        return None if self.rows is None else self.rows.key_bytes

    @property
    def refusal(self) -> str:
        """Why it cannot be part of a loop, as far as its columns tell; empty if it can."""
        if self.why_not:
            return self.why_not
        if self.join.has_changes:
            return "a table that changes"
        if len(self.join.keys) > 1:
            return "a key of several columns"
        if self.table is None:
            return "a table whose columns are known when rows come; then it is decided"
        key = self.join.right_keys[0]
        if key in self.table and common_type(self.table.field(key).type).name not in _KEYS:
            return f"a key of type {self.table.field(key).type}"
        return ""
