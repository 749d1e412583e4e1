"""Joins within sessions in plain Python, row by row, as the documentation has them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tests.operators.joins.nested_loops import LEFT, NO_WATERMARK_NS, RIGHT, Event, Joined, same
from whale_ray.operators.joins.equi_join import How

Numbered = tuple[int, Event]


def alike(one: tuple[Any, ...], two: tuple[Any, ...]) -> bool:
    """Return whether rows of two keys are in one session: null is like null there."""
    return all((a is None and b is None) or same((a,), (b,)) for a, b in zip(one, two, strict=True))


def emits_alone(side: int, how: How) -> bool:
    """Return whether a join emits rows of a side that meet none."""
    return how == "outer" or how in (("left", "anti"), ("right",))[side]


def join_sessions(
    batches: Iterable[tuple[Sequence[Event], int]], gap: int, how: How, lateness: int
) -> Joined:
    """Join rows, which are numbered in the order in which they come.

    Each batch comes with the watermark behind it. Rows of null keys that are not emitted alone have
    no part in sessions.
    """
    made = Joined()
    opened: list[list[Numbered]] = []
    closed: list[list[Numbered]] = []
    watermark_ns, number = NO_WATERMARK_NS, 0
    for events, after_ns in batches:
        for event in events:
            numbered = (number, event)
            number += 1
            if event.time_ns + gap <= watermark_ns - lateness:
                made.late += 1
                continue
            if None in event.key and not emits_alone(event.side, how):
                continue
            touched = [
                rows
                for rows in opened
                if alike(rows[0][1].key, event.key)
                and any(abs(row.time_ns - event.time_ns) <= gap for _, row in rows)
            ]
            opened = [rows for rows in opened if rows not in touched]
            opened.append([*(row for rows in touched for row in rows), numbered])
        watermark_ns = max(watermark_ns, after_ns)
        ended = [rows for rows in opened if _end(rows, gap) <= watermark_ns - lateness]
        opened = [rows for rows in opened if rows not in ended]
        closed += ended
    for rows in closed + opened:
        bounds = min(row.time_ns for _, row in rows), _end(rows, gap)
        made.rows += [(n, m, bounds) for n, m in _of_session(rows, how)]
    return made


def _end(rows: list[Numbered], gap: int) -> int:
    return max(row.time_ns for _, row in rows) + gap


def _of_session(rows: list[Numbered], how: How) -> list[tuple[int | None, int | None]]:
    left, right = ([n for n, row in rows if row.side == side] for side in (LEFT, RIGHT))
    meets = bool(left and right) and None not in rows[0][1].key
    if how == "semi":
        return [(n, None) for n in left if meets]
    if how == "anti":
        return [(n, None) for n in left if not meets]
    if meets:
        return [(n, m) for n in left for m in right]
    return [
        *((n, None) for n in left if emits_alone(LEFT, how)),
        *((None, m) for m in right if emits_alone(RIGHT, how)),
    ]
