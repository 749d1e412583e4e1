"""The snapshots of members' counters that rates are computed from."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..metrics.counters import WorkerSnapshot


@dataclass
class SnapshotHistory:
    """The newest and the previous snapshot of every member."""

    newest: dict[int, WorkerSnapshot] = field(default_factory=dict)
    previous: dict[int, WorkerSnapshot] = field(default_factory=dict)

    def take(self, snapshot: WorkerSnapshot) -> None:
        """Keep a snapshot, unless a newer one of its member came first."""
        before = self.newest.get(snapshot.worker)
        if before is not None and snapshot.at_ns < before.at_ns:
            return
        if before is not None and snapshot.at_ns > before.at_ns:
            self.previous[snapshot.worker] = before
        self.newest[snapshot.worker] = snapshot

    def clear(self) -> None:
        """Begin anew: the next attempt counts from zero."""
        self.newest.clear()
        self.previous.clear()
