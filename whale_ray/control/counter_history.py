"""The counters of members that rates are computed from."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..metrics.counters import MemberCounters


@dataclass
class CounterHistory:
    """The newest and the previous counters of every member."""

    newest: dict[int, MemberCounters] = field(default_factory=dict)
    previous: dict[int, MemberCounters] = field(default_factory=dict)

    def take(self, counters: MemberCounters) -> None:
        """Keep the counters of a member, unless newer ones came first."""
        before = self.newest.get(counters.worker)
        if before is not None and counters.at_ns < before.at_ns:
            return
        if before is not None and counters.at_ns > before.at_ns:
            self.previous[counters.worker] = before
        self.newest[counters.worker] = counters

    def clear(self) -> None:
        """Begin anew: the next attempt counts from zero."""
        self.newest.clear()
        self.previous.clear()
