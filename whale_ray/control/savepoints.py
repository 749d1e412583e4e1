"""Which savepoints users have asked for, and where they are. Users ask from any thread."""

from __future__ import annotations

import itertools
from collections import OrderedDict

from ..state.epochs.coordinator_events import SavepointAsked

_KEPT = 1024
"""Whereabouts of savepoints that are remembered for those who asked; the oldest are forgotten."""


class Savepoints:
    """Requests for savepoints, numbered from 1, and the epochs that serve them."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._asked = 0
        self._told = 0  # requests that the coordinator of the present attempt knows
        self._begun = 0  # requests that the present epoch serves, and all before it
        self._serving: int | None = None
        self._written = 0
        self._places: OrderedDict[int, str] = OrderedDict()
        self._has_told_stop = False
        self.stops = False
        """Whether the job is to be stopped behind a savepoint."""

    def ask(self) -> int:
        """Ask for a savepoint; `place_of` the number that is returned says where it is, later."""
        self._asked = next(self._numbers)
        return self._asked

    def stop(self) -> None:
        """Ask for a last savepoint."""
        self.stops = True

    def place_of(self, number: int) -> str | None:
        """Return where the savepoint of a request is; None as long as there is none."""
        return self._places.get(number)

    # --- for the session --------------------------------------------------------------------------

    def ask_again(self) -> None:
        """Ask the coordinator of a new attempt for what was not served."""
        self._told, self._serving, self._has_told_stop = self._written, None, False

    def next_ask(self) -> SavepointAsked | None:
        """Return what the coordinator has not been asked for yet."""
        if self.stops and not self._has_told_stop:
            self._has_told_stop, self._told = True, self._asked
            return SavepointAsked(stop=True)
        if self._told < self._asked:
            self._told = self._asked
            return SavepointAsked()
        return None

    def begun(self, epoch: int, serves: SavepointAsked | None) -> None:
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
