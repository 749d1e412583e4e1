"""Which relays are being replaced within an attempt, which were, and which it does without."""

from __future__ import annotations

from collections.abc import Iterable


class RelayRepairs:
    """The relays of one attempt that have failed; at most `limit` are replaced in an attempt."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._deadlines_ns: dict[int, int] = {}
        self._resumed_ns: int | None = None  # when this controller replaced one, in this attempt
        self.count = 0
        """How many replacements were begun in this attempt."""
        self.finished: dict[int, int] = {}
        """When relays that are replacements rejoined, in ns."""
        self.departed: set[int] = set()
        """Relays that are not replaced any more, since all workers have ended."""

    @property
    def pending(self) -> set[int]:
        """The relays that are being replaced."""
        return set(self._deadlines_ns)

    @property
    def is_possible(self) -> bool:
        """Whether one more relay may be replaced in this attempt."""
        return self.count < self._limit

    def reset(self) -> None:
        """Begin with a new attempt."""
        self.count = 0
        self._resumed_ns = None
        self.finished.clear()
        self.departed.clear()

    def explains(self, relay: int | None, now_ns: int, patience_ns: int) -> bool:
        """Return whether others cannot reach a relay because it is being replaced, or just was.

        None is for losses of another kind, which nothing explains.

        A controller that has just resumed may not know yet that a relay died with the one before.
        """
        if relay is None:
            return False
        if relay in self._deadlines_ns:
            return True
        since = (self.finished.get(relay), self._resumed_ns)
        return any(one is not None and now_ns < one + patience_ns for one in since)

    def restore(
        self, pending: Iterable[int], finished: Iterable[int], now_ns: int, deadline_ns: int
    ) -> None:
        """Continue for a controller that has failed."""
        self._resumed_ns = now_ns
        self._deadlines_ns = dict.fromkeys(pending, deadline_ns)
        self.finished = dict.fromkeys(finished, now_ns)

    def begin(self, relay: int, deadline_ns: int) -> None:
        """Replace a relay; the new one has to have rejoined by `deadline_ns`."""
        self.count += 1
        self.finished.pop(relay, None)
        self._deadlines_ns[relay] = deadline_ns

    def finish(self, relay: int, now_ns: int) -> None:
        """Record that a new relay has rejoined."""
        del self._deadlines_ns[relay]
        self.finished[relay] = now_ns

    def do_without(self, relay: int) -> None:
        """Wait no longer for a relay in this attempt."""
        self.departed.add(relay)
        self._deadlines_ns.pop(relay, None)

    def give_up(self) -> None:
        """End all replacements: the attempt ends."""
        self._deadlines_ns.clear()

    def late(self, now_ns: int) -> list[int]:
        """Return the relays that have not rejoined in time."""
        return [relay for relay, late_ns in self._deadlines_ns.items() if now_ns >= late_ns]
