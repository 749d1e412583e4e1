"""`AsOfJoin`: what a `join_asof` asks for, and the columns that come of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..windows.durations import describe_ns
from .join import JoinOfStreams

if TYPE_CHECKING:
    from ..process import CoProcess

__all__ = ["AsOfJoin", "Strategy"]

Strategy: TypeAlias = Literal["backward", "forward", "nearest"]


@dataclass(frozen=True)
class AsOfJoin(JoinOfStreams):
    """A join of each left row with the right row next to it in event time; a payload.

    Attributes:
        strategy: where that row is: at the left row's time or before ("backward"), at it or after
            ("forward"), or the nearer of both ("nearest").
        tolerance_ns: how far apart the two may be at most; None: any distance.
        exact_matches: whether rows of equal time match.
    """

    strategy: Strategy = "backward"
    tolerance_ns: int | None = None
    exact_matches: bool = True

    @property
    def looks_back(self) -> bool:
        """Whether a right row before the left one may match."""
        return self.strategy != "forward"

    @property
    def looks_ahead(self) -> bool:
        """Whether a right row after the left one may match."""
        return self.strategy != "backward"

    @property
    def right_comes_first(self) -> bool:
        """Whether right rows are taken before left rows of the same time."""
        return self.exact_matches if self.looks_back else not self.exact_matches

    @property
    def kept(self) -> tuple[str, ...]:
        """What is kept for each key, in words."""
        latest = ("the latest right row",) if self.looks_back else ()
        return (*latest, *(("left rows that wait",) if self.looks_ahead else ()))

    def describe(self) -> str:
        """Return the label that `explain` prints."""
        by = f" by {self.describe_keys()}" if self.keys else ""
        parts = [f"{self.how} as-of join{by}", self.strategy]
        if not self.exact_matches:
            parts.append("no exact matches")
        if self.tolerance_ns is not None:
            parts.append(f"within {describe_ns(self.tolerance_ns)}")
        return "; ".join(parts)

    def __call__(self) -> CoProcess:
        """Return a new operator."""
        from .asof_streams import JoinAsOf

        return JoinAsOf(self)
