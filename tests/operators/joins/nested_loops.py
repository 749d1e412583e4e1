"""Joins within windows and intervals in plain Python, row by row, as the documentation has them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.operators.windows.model import NO_WATERMARK_NS, windows_of
from whale_ray.operators.joins.equi_join import How
from whale_ray.operators.joins.interval import TimeInterval
from whale_ray.operators.windows.specifications import TimeWindow

LEFT, RIGHT = 0, 1
Bounds = tuple[int, int] | None


@dataclass(frozen=True)
class Event:
    """A row of one side; its key is of one column or several, each nullable."""

    side: int
    time_ns: int
    key: tuple[Any, ...]


@dataclass
class Joined:
    """What a join makes: of each result the left and the right row's number, and the window."""

    rows: list[tuple[int | None, int | None, Bounds]] = field(default_factory=list)
    late: int = 0


def same(one: tuple[Any, ...], two: tuple[Any, ...]) -> bool:
    """Return whether two keys are equal: null equals nothing, NaN equals NaN."""
    return all(
        a is not None and b is not None and (a == b or (_is_nan(a) and _is_nan(b)))
        for a, b in zip(one, two, strict=True)
    )


def join(
    batches: Iterable[tuple[Sequence[Event], int]],
    within: TimeWindow | TimeInterval,
    how: How,
    lateness: int,
) -> Joined:
    """Join rows, which are numbered in the order in which they come.

    Each batch comes with the watermark behind it.
    """
    made = Joined()
    taken: dict[Bounds, tuple[list[tuple[int, Event]], list[tuple[int, Event]]]] = {}
    watermark_ns, number = NO_WATERMARK_NS, 0
    for events, after_ns in batches:
        for event in events:
            patient_ns = watermark_ns - lateness
            if isinstance(within, TimeInterval):
                spans: list[Bounds] = [None] if event.time_ns > patient_ns else []
            else:
                all_of = windows_of(event.time_ns, within.size_ns, within.slide_ns, within.start_ns)
                spans = [w for w in all_of if w[1] - 1 > patient_ns]
            made.late += not spans
            for span in spans:
                taken.setdefault(span, ([], []))[event.side].append((number, event))
            number += 1
        watermark_ns = max(after_ns, watermark_ns)
    for span, (left, right) in taken.items():
        made.rows += [(n, m, span) for n, m in _of_span(left, right, within, how)]
    return made


def _of_span(
    left: list[tuple[int, Event]],
    right: list[tuple[int, Event]],
    within: TimeWindow | TimeInterval,
    how: How,
) -> list[tuple[int | None, int | None]]:
    pairs = [
        (n, m)
        for n, one in left
        for m, two in right
        if same(one.key, two.key)
        and (
            isinstance(within, TimeWindow)
            or within.lower_ns <= two.time_ns - one.time_ns <= within.upper_ns
        )
    ]
    lefts, rights = {n for n, _ in pairs}, {m for _, m in pairs}
    if how == "semi":
        return [(n, None) for n in lefts]
    lonely_left = [(n, None) for n, _ in left if n not in lefts]
    if how == "anti":
        return lonely_left
    lonely_right = [(None, m) for m, _ in right if m not in rights]
    return [
        *pairs,
        *(lonely_left if how in ("left", "outer") else []),
        *(lonely_right if how in ("right", "outer") else []),
    ]


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
