"""Event time of an input of several parts (*splits*), such as the partitions of a topic.

A reader takes rows of the splits as they come, now more of one, now of another. Rows are in order
within a split, but not across them, so each split has a watermark of its own, and that of the
instance is the least of them (Flink's per-split watermarks). A row is late if its split is
further, or if the instance's watermark has passed it.

A split without rows would hold the others back for ever. Its reader knows whether it has come to
the split's present end; a split that has stayed there for `idle_after_ms` is idle: it leaves the
minimum until it has rows again. It has them once its reader has taken some, also if those of other
splits are returned first: else these would make them late. Time in which the reader is not asked
does not count, since rows may have come meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..state.watermarks import WATERMARK_NONE
from .event_time import EventTimeAssigner

if TYPE_CHECKING:
    from ..transport.wire.batch import Batch
    from .event_time import EventTime

__all__ = ["SplitEventTimes"]

_ASKED_AT_LEAST = 4
"""A split is idle only after its reader was asked so often whether it has rows."""


class SplitEventTimes:
    """Assigns event times by split, and computes the watermark of an instance.

    Attributes:
        watermark_ns: all rows with a time up to this have arrived, but for those of idle splits;
            never goes back; `WATERMARK_NONE` at first.
        late_rows: how many rows were late so far, whatever was done with them.
    """

    def __init__(self, event_time: EventTime, source_id: str) -> None:
        self._event_time = event_time
        self._source_id = source_id
        self._assigners: dict[str, EventTimeAssigner] = {}
        self._quiet_ns: dict[str, int] = {}  # for how long a split has had no row
        self._idle: set[str] = set()
        self._asked_ns: int | None = None
        self.late_rows = 0
        self.watermark_ns = WATERMARK_NONE

    @property
    def reads_clock(self) -> bool:
        """Whether it needs the present time."""
        return self._event_time.max_ahead_ns is not None

    @property
    def idle(self) -> bool:
        """Whether every split is idle, or there is none."""
        return len(self._idle) == len(self._assigners)

    def assign(self, split: str, batch: Batch, now_ns: int = 0) -> tuple[Batch, dict[str, int]]:
        """Return rows of a split with event times, and the number of dropped rows by reason.

        Raises:
            BadRowError, InputError: as for `EventTimeAssigner.assign`.
        """
        assigner = self._assigners.get(split) or self._add(split)
        self._end_idleness(split)
        self._quiet_ns[split] = 0
        late_before = assigner.late_rows
        try:
            return assigner.assign(batch, now_ns)
        finally:
            self.late_rows += assigner.late_rows - late_before
            self._advance()

    def observe(self, splits: Mapping[str, bool], now_ns: int) -> None:
        """Take which splits there are, and whether each may have rows at present.

        Args:
            splits: those that the reader has; others are forgotten.
            now_ns: monotonic.
        """
        for split in splits.keys() - self._assigners.keys():
            self._add(split)
        for split in self._assigners.keys() - splits.keys():
            self._remove(split)
        idle_after_ns = self._event_time.idle_after_ns
        if idle_after_ns is not None:
            elapsed_ns = 0 if self._asked_ns is None else now_ns - self._asked_ns
            counted_ns = min(elapsed_ns, -(-idle_after_ns // _ASKED_AT_LEAST))
            for split, has_rows in splits.items():
                self._quiet_ns[split] = 0 if has_rows else self._quiet_ns[split] + counted_ns
                if has_rows:
                    self._end_idleness(split)
                elif self._quiet_ns[split] >= idle_after_ns:
                    self._idle.add(split)
        self._asked_ns = now_ns
        self._advance()

    def kept(self) -> dict[str, Any]:
        """Return what a snapshot keeps of it."""
        return {
            "splits": {split: one.kept() for split, one in self._assigners.items()},
            "watermark_ns": self.watermark_ns,
            "late_rows": self.late_rows,
        }

    def restore(self, kept: Sequence[Mapping[str, Any]]) -> None:
        """Resume from what instances kept; splits that are not of this one `observe` forgets.

        An instance without a split was idle, so its watermark held nobody back.
        """
        counting = [one for one in kept if one["splits"]] or kept
        self.watermark_ns = min(one["watermark_ns"] for one in counting)
        self.late_rows = sum(one["late_rows"] for one in kept)
        for one in kept:
            for split, latest in one["splits"].items():
                self._add(split).restore([latest])
                self._assigners[split].catch_up(self.watermark_ns)

    def _add(self, split: str) -> EventTimeAssigner:
        assigner = EventTimeAssigner(self._event_time, self._source_id, split)
        assigner.catch_up(self.watermark_ns)
        self._assigners[split], self._quiet_ns[split] = assigner, 0
        return assigner

    def _end_idleness(self, split: str) -> None:
        if split in self._idle:
            self._idle.discard(split)
            self._assigners[split].catch_up(self.watermark_ns)

    def _remove(self, split: str) -> None:
        del self._assigners[split], self._quiet_ns[split]
        self._idle.discard(split)

    def _advance(self) -> None:
        active = [
            assigner.watermark_ns
            for split, assigner in self._assigners.items()
            if split not in self._idle
        ]
        if active:
            self.watermark_ns = max(self.watermark_ns, min(active))
