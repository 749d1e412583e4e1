"""Where an instance is in an input of units: what it has still to read, and how far it has begun.

A position is a mapping of JSON values::

    left       the units that are not begun, see `units_left`
    begun      [unit, place] of each unit that was begun and may not be read to its end; a place
               says how many rows of it were passed on (`rows`), since where in it, how many were
               counted as left out since there (`rejected`), and what the file was like
    …          facts about the whole input, by which another one is recognized

Units begun are dealt out whole to the instances that continue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from .units_left import UnitsLeft, deal_out

if TYPE_CHECKING:
    from ..instance_context import InstanceContext
    from ..snapshots import Position

__all__ = ["Progress", "own_or_first"]

Place = Mapping[str, Any]


class Progress:
    """Follows one instance through its units, which it reads in ascending order.

    Args:
        left: the units to read, without those begun.
        begun: the place in each unit that was begun before.
        facts: about the whole input.

    Attributes:
        rejected: the rows left out, by reason, which the reader counts; less those of a unit begun
            that were counted before, until they are read again.
        facts: part of every position; the reader may change them.
    """

    def __init__(
        self,
        left: UnitsLeft,
        begun: Mapping[int, Place],
        facts: Mapping[str, Any],
    ) -> None:
        self.rejected: dict[str, int] = {}
        self._left = left
        self._begun = dict(begun)
        self.facts = dict(facts)
        self._rejected_before: dict[str, int] = {}
        self._units: Sequence[int] = ()
        self._ends: Sequence[int] = ()
        self._rows_before = 0
        self._place: Place = {}

    @classmethod
    def opened(
        cls,
        context: InstanceContext,
        positions: Sequence[Position] | None,
        facts: Mapping[str, Any],
    ) -> Progress:
        """Return the progress of an instance that begins, or resumes from positions.

        Args:
            context: the instance.
            positions: as for `Source.open_at`; None to begin.
            facts: about the whole input.
        """
        instance, parallelism = context.instance, context.parallelism
        if positions is None:
            return cls(UnitsLeft.of_share(instance, parallelism), {}, facts)
        lefts = [UnitsLeft.from_json(one["left"]) for one in positions]
        if len(positions) == parallelism:
            return cls(lefts[instance], dict(positions[instance]["begun"]), facts)
        begun = sorted((tuple(one) for each in positions for one in each["begun"]), key=_unit_of)
        mine = deal_out(begun, [1] * len(begun), instance, parallelism)
        left = UnitsLeft.divided(lefts, instance, parallelism)
        return cls(left, dict(mine), facts)

    @property
    def first(self) -> int:
        """The first unit to read."""
        units = [*self._begun, *(() if self._left.first is None else (self._left.first,))]
        return min(units, default=0)

    def units(self, start: int, stop: int) -> Iterator[tuple[int, Place | None]]:
        """Yield the units from `start` to before `stop`, ascending, and the place in one begun."""
        begun = sorted(unit for unit in self._begun if start <= unit < stop)
        for unit in self._left.from_unit(start).before(stop):
            while begun and begun[0] < unit:
                yield begun[0], self._begun[begun.pop(0)]
            yield unit, None
        yield from ((unit, self._begun[unit]) for unit in begun)

    def discount(self, place: Place) -> None:
        """Take off the rows after a place that were counted as left out, to count them again."""
        for reason, rows in place["rejected"].items():
            self.rejected[reason] = self.rejected.get(reason, 0) - rows

    def enter(self, unit: int, place: Place) -> None:
        """Begin with a unit after `place`, which says `rows` among others."""
        self._units = (unit,)
        self._ends = ()
        self._rows_before = place["rows"]
        self._place = place
        self._rejected_before = dict(self.rejected)

    def enter_run(self, units: Sequence[int], lengths: Sequence[int], place: Place) -> None:
        """Begin with several units, one after the other, from the first's begin.

        Args:
            units: ascending.
            lengths: the number of rows of each.
            place: what each place says beside its rows.
        """
        self._units = units
        self._ends = list(accumulate(lengths))
        self._rows_before = 0
        self._place = place

    def move(self, rows_before: int) -> None:
        """Note how many rows of the unit, or of the run, were passed on before the next batch."""
        self._rows_before = rows_before

    def begin_at(self, unit: int) -> None:
        """Leave out the units before `unit`, of an input that begins there."""
        self._left = self._left.from_unit(unit)

    def end(self) -> None:
        """Nothing is left."""
        if self._units:
            self._left = self._left.from_unit(self._units[-1] + 1)
        self._begun = {}
        self._units = ()

    def position(self, rows: int) -> Position:
        """Return the position after so many rows of the batch that was announced last."""
        left, begun = self._left, self._begun
        if self._units:
            unit, passed_on = self._whereabouts(self._rows_before + rows)
            left = left.from_unit(unit + 1)
            begun = {one: place for one, place in begun.items() if one > unit}
            place = {**self._place, "rows": passed_on, "rejected": self._rejected_since()}
            begun = {unit: place, **begun}
        return {
            "left": left.to_json(),
            "begun": [[unit, dict(place)] for unit, place in begun.items()],
            **self.facts,
        }

    def _rejected_since(self) -> dict[str, int]:
        before = self._rejected_before
        since = {reason: rows - before.get(reason, 0) for reason, rows in self.rejected.items()}
        return {reason: rows for reason, rows in since.items() if rows}

    def _whereabouts(self, rows: int) -> tuple[int, int]:
        """Return the unit that holds the row after `rows` others, and the rows of it before."""
        before = 0
        for unit, end in zip(self._units, self._ends, strict=False):
            if rows < end or unit == self._units[-1]:
                return unit, rows - before
            before = end
        return self._units[0], rows


def own_or_first(context: InstanceContext, positions: Sequence[Position], name: str) -> Any:
    """Return what the instance knew under a name; with other instances, what the first one did."""
    if len(positions) == context.parallelism:
        return positions[context.instance].get(name)
    return next((known for one in positions if (known := one.get(name)) is not None), None)


def _unit_of(begun: tuple[int, Place]) -> int:
    return begun[0]
