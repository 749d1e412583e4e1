"""`TopFilter`: leaves out rows that cannot be among the first of their window.

It stands in front of the edge to `top_n`, so that they are not sent. What finds them is loaded with
the first instance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..needed_columns import ALL, Needed
from ..transform_bases import Transform

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema
    from .top_n import TopN

__all__ = ["ROWS_MAX", "TopFilter"]

ROWS_MAX = 1024
"""The most rows of a window that it looks for: each new one is put in its place among them."""


class TopFilter(Transform):
    """Passes rows on that may be among the first of their window.

    Args:
        asked: what the operator behind it was asked for; without grouping columns but the bounds of
            the windows that the rows are results of.
    """

    def __init__(self, asked: TopN) -> None:
        assert asked.within_windows or not asked.keys
        assert asked.n <= ROWS_MAX
        self.asked = asked

    def instance(self, *, bounded: bool = True) -> Transform:
        """See `Transform.instance`."""
        from .greatest_rows import GreatestRows

        return GreatestRows(self.asked)

    def apply(self, batch: Batch) -> Batch | None:
        """Return all rows: only an instance knows those before them."""
        return batch

    def describe(self) -> str:
        """Return the label that `explain` prints."""
        return f"rows that may be among the first; {self.asked.describe()}"

    def output_schema(self, schema: Schema) -> Schema | None:
        """Return the input's columns."""
        return schema

    def columns_needed(self, wanted: Needed) -> Needed:
        """See `Transform.columns_needed`."""
        return ALL if wanted is None else wanted | {self.asked.by, *self.asked.keys}
