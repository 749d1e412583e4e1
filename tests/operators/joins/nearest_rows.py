"""As-of joins in plain Python: a search through all right rows for each left one."""

from __future__ import annotations

from collections.abc import Sequence

from tests.operators.joins.nested_loops import Event, same
from whale_ray.operators.joins.asof_join import Strategy


def join_asof(
    left: Sequence[tuple[int, Event]],
    right: Sequence[tuple[int, Event]],
    strategy: Strategy,
    tolerance_ns: int | None,
    exact: bool,
) -> list[tuple[int, int | None]]:
    """Return the number of each left row, and that of the right row next to it or None.

    Args:
        left, right: rows with their numbers, in the order of their times.
        strategy, tolerance_ns, exact: as the arguments of `join_asof` say.
    """
    return [(n, _next_to(row, right, strategy, tolerance_ns, exact)) for n, row in left]


def _next_to(
    row: Event,
    right: Sequence[tuple[int, Event]],
    strategy: Strategy,
    tolerance_ns: int | None,
    exact: bool,
) -> int | None:
    near = [
        (n, other.time_ns - row.time_ns)
        for n, other in right
        if same(row.key, other.key)
        and (exact or other.time_ns != row.time_ns)
        and (tolerance_ns is None or abs(other.time_ns - row.time_ns) <= tolerance_ns)
    ]
    before = [(distance, n) for n, distance in near if distance <= 0]
    after = [(distance, n) for n, distance in near if distance >= 0]
    last_before = [n for distance, n in before if distance == max(before)[0]][-1:]
    at_next = [n for distance, n in after if distance == min(after)[0]]
    if strategy == "backward":
        found = last_before
    elif strategy == "forward":
        found = at_next[:1]
    elif not before or (after and min(after)[0] <= -max(before)[0]):
        found = at_next[-1:]
    else:
        found = last_before
    return found[0] if found else None
