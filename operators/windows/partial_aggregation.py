"""`PartialAggregation`: that an aggregate is computed in parts before its rows are sent by key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .aggregation import Aggregation

if TYPE_CHECKING:
    from .partial_windows import PartialWindows

__all__ = ["TABLE_BYTES_MAX", "PartialAggregation"]

TABLE_BYTES_MAX = 16 << 20
"""Memory for the groups of one partial aggregate, nearly."""

_HELD_NS_MAX = 1_000_000_000
_HELD_FOR_UPDATES_NS = _HELD_UNASKED_NS = 100_000_000
"""For updates, and where nobody has asked for late merge: a watermark that waits keeps operators
behind from theirs."""


@dataclass(frozen=True)
class PartialAggregation:
    """The payload of a partial aggregate; calling it makes the operator.

    Attributes:
        aggregation: what the operator that merges the deltas was asked for.
        measures: whether it steps aside where a delta stands for too few rows.
        merging: the id of that operator, which is the one that users know.
        keeps_open: whether groups of windows that stay open may stay as a watermark is passed on;
            not where the merging operator looks at event times: for rows that come after idleness.
    """

    aggregation: Aggregation
    measures: bool
    merging: str
    keeps_open: bool = False

    def describe(self) -> str:
        """Return the label that `explain` prints."""
        return f"partial; {self.aggregation.describe()}"

    @property
    def held_ns_max(self) -> int:
        """For how long watermarks, and rows before them, may be kept back at most."""
        asked = self.aggregation
        longest_ns = _HELD_UNASKED_NS if self.measures else _HELD_NS_MAX
        if asked.output_mode == "append":
            return longest_ns
        return min(asked.trigger_ns or _HELD_FOR_UPDATES_NS, longest_ns)

    def __call__(self) -> PartialWindows:
        """Return a new operator."""
        from .partial_windows import PartialWindows
        from .reduction import Reduction

        reduction = Reduction() if self.measures else None
        return PartialWindows(self.aggregation, reduction, keeps_open=self.keeps_open)
