"""Which units of an input an instance has still to read, so that what is left can be divided again.

A unit is what an input is shared out by: a row group, a file, a run of rows, a row. At first
instance i of p reads the units i, i + p, i + 2p …: one progression without an end. When other
instances continue, none of them has begun a unit after the furthest of the old ones, the frontier.
Those before it that are left are a few progressions with an end, which are dealt out whole, or in
slices where one is long; from the frontier on the new instances take turns. Each has again a few
progressions and one without an end, so this can be repeated with any number of instances::

    3 instances, left:  4, 7, 10 …    2, 5, 8 …    9, 12 …
    frontier 9: left before it 4, 7 and 2, 5, 8; then 9, 10, 11 …
    2 instances:        2, 5, 8, 9, 11, 13 …       4, 7, 10, 12, 14 …
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["FOREVER", "UnitsLeft", "deal_out"]

FOREVER = 1 << 62
"""The end of a progression without an end."""

_SLICED_RUNS_MAX = 64
"""Progressions are sliced only while there are few of them, else dealt out whole."""


@dataclass(frozen=True)
class UnitsLeft:
    """Disjoint progressions of units, none of them empty."""

    runs: tuple[range, ...]

    @classmethod
    def of_share(cls, instance: int, parallelism: int) -> UnitsLeft:
        """Return the units of an instance that begins."""
        return cls((range(instance, FOREVER, parallelism),))

    @classmethod
    def from_json(cls, value: Sequence[Sequence[Any]]) -> UnitsLeft:
        """Return what `to_json` described."""
        return cls(tuple(range(a, FOREVER if b is None else b, c) for a, b, c in value))

    def to_json(self) -> list[list[int | None]]:
        """Return [start, stop, step] of each progression; the stop is None without an end."""
        return [[r.start, None if r.stop == FOREVER else r.stop, r.step] for r in self.runs]

    @classmethod
    def divided(cls, lefts: Sequence[UnitsLeft], instance: int, parallelism: int) -> UnitsLeft:
        """Return the share of one of `parallelism` instances of what all old instances left.

        Args:
            lefts: of every old instance, each with its progression without an end.
            instance: the new instance.
            parallelism: the number of new instances.
        """
        every = [run for left in lefts for run in left.runs]
        frontier = max(run.start for run in every if run.stop == FOREVER)
        before = [
            cut for run in every if (cut := range(run.start, min(run.stop, frontier), run.step))
        ]
        if len(before) * parallelism <= _SLICED_RUNS_MAX:
            before = [
                part for run in before for k in range(parallelism) if (part := run[k::parallelism])
            ]
        mine = deal_out(before, [len(run) for run in before], instance, parallelism)
        return cls((*mine, range(frontier + instance, FOREVER, parallelism)))

    def from_unit(self, unit: int) -> UnitsLeft:
        """Return those that are not before `unit`."""
        runs = (range(max(r.start, _first_from(r, unit)), r.stop, r.step) for r in self.runs)
        return UnitsLeft(tuple(run for run in runs if run))

    def before(self, stop: int) -> Iterator[int]:
        """Yield the units before `stop`, ascending."""
        if len(self.runs) == 1:
            run = self.runs[0]
            yield from range(run.start, min(stop, run.stop), run.step)
            return
        unit = self.first
        while unit is not None and unit < stop:
            yield unit
            unit = self.from_unit(unit + 1).first

    @property
    def first(self) -> int | None:
        """The first unit, None if nothing is left."""
        return min((run.start for run in self.runs), default=None)

    def from_count(self, count: int) -> UnitsLeft:
        """Return what is left when the first `count` units have been read, too."""
        if not count:
            return self
        if len(self.runs) == 1:
            run = self.runs[0]
            rest = range(run.start + count * run.step, run.stop, run.step)
            return UnitsLeft((rest,) if rest else ())
        low, high = 0, FOREVER  # the least unit that is behind `count` others
        while low < high:
            middle = (low + high) // 2
            if self._count_before(middle) >= count:
                high = middle
            else:
                low = middle + 1
        return self.from_unit(low)

    def mask(self, start: int, stop: int) -> bytes:
        """Return for each unit from `start` to before `stop` 1 if it is left, else 0."""
        marks = bytearray(stop - start)
        for run in self.runs:
            part = range(_first_from(run, start), min(stop, run.stop), run.step)
            if part:
                marks[part.start - start : part[-1] - start + 1 : run.step] = b"\1" * len(part)
        return bytes(marks)

    def _count_before(self, stop: int) -> int:
        return sum(len(range(run.start, min(stop, run.stop), run.step)) for run in self.runs)


def _first_from(run: range, unit: int) -> int:
    """Return the first member of a progression that is not before `unit`."""
    if unit <= run.start:
        return run.start
    return unit + (run.start - unit) % run.step


def deal_out(
    things: Sequence[Any], sizes: Sequence[int], instance: int, parallelism: int
) -> list[Any]:
    """Return the things that one of `parallelism` instances gets, in their order.

    The largest is dealt out first, each to the instance that has least so far, the last one of
    these, since the first ones begin the units that nobody has begun. Every instance finds the same
    division.
    """
    loads = [0] * parallelism
    mine = []
    for number in sorted(range(len(things)), key=lambda one: (-sizes[one], one)):
        to = max(range(parallelism), key=lambda one: (-loads[one], one))
        loads[to] += sizes[number]
        if to == instance:
            mine.append(number)
    return [things[number] for number in sorted(mine)]
