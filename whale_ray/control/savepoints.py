"""Which savepoints users have asked for, and where they are. Users ask from any thread."""

from __future__ import annotations

from collections import OrderedDict

from ..state.epochs.coordinator_events import SavepointRequested

_KEPT = 1024
"""Whereabouts of savepoints that are remembered for those who asked; the oldest are forgotten."""


UNKNOWN = ""
"""In the place of a savepoint: this controller does not know the request, a former one may have."""


class Savepoints:
    """Requests for savepoints, and the epochs that serve them.

    Requests are numbered upwards from `first`, which differs from that of a former controller.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._asked = first - 1
        self._told = self._asked  # requests that the coordinator of the present attempt knows
        self._begun = self._asked  # requests that the present epoch serves, and all before it
        self._serving: int | None = None
        self._written = self._asked
        self._places: OrderedDict[int, str] = OrderedDict()
        self._has_told_stop = False
        self.stops = False
        """Whether the job is to be stopped after a savepoint."""

    def ask(self) -> int:
        """Ask for a savepoint; `place_of` the number that is returned says where it is, later."""
        self._asked += 1
        return self._asked

    def stop(self) -> None:
        """Ask for a last savepoint."""
        self.stops = True

    def place_of(self, number: int) -> str | None:
        """Return where the savepoint of a request is; None as long as there is none, or UNKNOWN."""
        is_known = self._first <= number <= self._asked
        return self._places.get(number) if is_known else UNKNOWN

    # --- for the session --------------------------------------------------------------------------

    def request_again(self) -> None:
        """Ask the coordinator of a new attempt for what was not served."""
        self._told, self._serving, self._has_told_stop = self._written, None, False

    def next_request(self) -> SavepointRequested | None:
        """Return what the coordinator has not been asked for yet."""
        if self.stops and not self._has_told_stop:
            self._has_told_stop, self._told = True, self._asked
            return SavepointRequested(stop=True)
        if self._told < self._asked:
            self._told = self._asked
            return SavepointRequested()
        return None

    def begun(self, epoch: int, serves: SavepointRequested | None) -> None:
        """Note that an epoch has begun, and whether it serves those who asked until now."""
        self._serving = None if serves is None else epoch
        self._begun = self._told

    def are_served_by(self, epoch: int) -> bool:
        """Return whether an epoch is a savepoint."""
        return self._serving == epoch

    def written(self, epoch: int, place: str) -> None:
        """Note where the manifest of an epoch is."""
        if self._serving != epoch:
            return
        for number in range(self._written + 1, self._begun + 1):
            self._places[number] = place
        self._written = self._begun
        while len(self._places) > _KEPT:
            self._places.popitem(last=False)
