"""What an operator object takes over from the snapshots of the objects that there were before.

With the same parallelism and the same instances, an object takes what its like kept. Otherwise
state moves by virtual node. What belongs to no key, such as rows that wait for the types of their
columns, goes as a whole to one instance: the number of the object's lowest instance, modulo the new
parallelism.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..configs.errors import UsageError
from ..metrics.counters import InstanceMetrics
from ..operators.instance_context import InstanceContext
from ..operators.snapshots import OperatorSnapshot
from ..state.watermarks import WATERMARK_END, WATERMARK_NONE

__all__ = ["Predecessors", "counts_of", "restore_counts"]

_COUNTERS = ("rows_in", "rows_out", "rows_late")
_COUNTERS_BY_NAME = ("side_rows_out", "rows_dropped")


class Predecessors:
    """The snapshots of all objects of an operator, for the object with this context.

    Attributes:
        all: of all objects, by their lowest instance.
        own: of the object with the same instances of as many; None if there was none.
        sources: those that the object takes anything of: its own alone, if there is one.
        dealt: those whose indivisible values the object takes.
        same_producers: whether the producers of its inputs are those that there were, by number.
    """

    def __init__(
        self,
        snapshots: Iterable[OperatorSnapshot],
        context: InstanceContext,
        *,
        same_producers: bool = True,
    ) -> None:
        self.same_producers = same_producers
        self.all = tuple(sorted(snapshots, key=lambda one: one.instances))
        self.own: OperatorSnapshot | None = None
        parallelism = context.parallelism
        for one in self.all:
            if (one.instances, one.parallelism) == (context.instances, parallelism):
                self.own = one
        self.dealt: Sequence[OperatorSnapshot] = tuple(
            one for one in self.all if one.instances[0] % parallelism in context.instances
        )
        self.sources: Sequence[OperatorSnapshot] = self.all
        if self.own is not None:
            self.sources = self.dealt = (self.own,)

    @property
    def ended(self) -> bool:
        """Whether no row comes out any more."""
        return all(map(has_ended, self.sources))

    @property
    def watermark_ns(self) -> int:
        """The least watermark of those that had not ended; `WATERMARK_END` if all had."""
        running = (one.watermark_ns for one in self.sources if not has_ended(one))
        return min(running, default=WATERMARK_END if self.all else WATERMARK_NONE)

    def known(self, name: str) -> Any:
        """Return a value that is the same for all objects, as soon as they know it; None if not."""
        found = (one.values.get(name) for one in (*self.dealt, *self.sources))
        return next((value for value in found if value is not None), None)

    def least(self, name: str) -> int:
        """Return the least of a value of those that had not ended."""
        running = (one.values[name] for one in self.sources if not has_ended(one))
        return min(running, default=WATERMARK_END)

    def only(self, what: str, remedy: str, context: InstanceContext) -> OperatorSnapshot:
        """Return the snapshot of the object with the same instances.

        Raises:
            UsageError: there is none, so `what`, which cannot be divided, has no place; `remedy`
                says how it could.
        """
        if self.own is not None:
            return self.own
        then = " and ".join(str(len(one.instances)) for one in self.all)
        msg = (
            f"operator {context.operator_id!r}: {what} moves whole, and cannot be divided: it was"
            f" kept by objects with {then} instances, and {len(context.instances)} of"
            f" {context.parallelism} are here now; restore it with parallelism"
            f" {self.all[0].parallelism} and as many workers as then, or {remedy}"
        )
        raise UsageError(msg)


def has_ended(snapshot: OperatorSnapshot) -> bool:
    """Return whether an object had ended: then, and only then, its watermark is the last."""
    return snapshot.watermark_ns == WATERMARK_END


def counts_of(metrics: InstanceMetrics) -> dict[str, Any]:
    """Return the counters that continue in a restored job."""
    counts: dict[str, Any] = {name: getattr(metrics, name) for name in _COUNTERS}
    return counts | {name: dict(getattr(metrics, name)) for name in _COUNTERS_BY_NAME}


def restore_counts(metrics: InstanceMetrics, counts: Mapping[str, Any]) -> None:
    """Add what `counts_of` returned, before any row is counted."""
    for name in _COUNTERS:
        setattr(metrics, name, getattr(metrics, name) + counts[name])
    for name in _COUNTERS_BY_NAME:
        mine = getattr(metrics, name)
        for reason, rows in counts[name].items():
            mine[reason] = mine.get(reason, 0) + rows
    metrics.restored = counts_of(metrics)
