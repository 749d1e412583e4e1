"""`TableJoin`: what `join_table` asks for: each row of a stream with the rows of a table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..needed_columns import ALL, Needed
from .equi_join import EquiJoin

if TYPE_CHECKING:
    from ..expressions.expression import Expression
    from ..process import InstanceContext
    from .broadcast_table import BroadcastTable

__all__ = ["TableJoin"]


@dataclass(frozen=True)
class TableJoin(EquiJoin):
    """A join of a stream, the left side, with a bounded table, the right one.

    Attributes:
        has_changes: whether a second stream changes the table.
        delete_when: which rows of that stream delete the rows of their key; the others replace
            them.
        table_columns: the table's columns that are needed; None: it is not known which.
    """

    has_changes: bool = False
    delete_when: Expression | None = None
    table_columns: frozenset[str] | None = None

    def columns_needed(self, wanted: Needed) -> tuple[Needed, Needed]:
        """Return the columns of stream and table that it needs for those of its result."""
        if self.left is None or self.right is None or self.has_changes:
            return ALL, ALL
        mine, theirs = frozenset(self.left_keys), frozenset(self.right_keys)
        if wanted is None:
            return ALL, theirs if self.only_left_columns else ALL
        return mine | (wanted & frozenset(self.left.names)), theirs | (
            wanted & frozenset(self.right.names)
        )

    def with_result_needed(self, wanted: Needed) -> TableJoin:
        """Return the join that knows which of the table's columns those of its result need."""
        _, needed = self.columns_needed(wanted)
        if self.only_left_columns:
            needed = frozenset(self.right_keys)
        elif needed is None and self.right is not None:
            needed = frozenset(self.right.names)
        return replace(self, table_columns=needed)

    def describe(self) -> str:
        """Return the label that `explain` prints."""
        parts = [f"{self.how} join with a table on {self.describe_keys()}"]
        if self.has_changes:
            parts.append("rows of its changes replace those of their key as they come")
        if self.delete_when is not None:
            parts.append(f"or delete them when {self.delete_when}")
        return ", ".join(parts)

    def make_table(self, context: InstanceContext) -> BroadcastTable:
        """Return an empty table for one worker; other jobs do not load its compiled functions."""
        from .broadcast_table import BroadcastTable

        return BroadcastTable(self, context)
