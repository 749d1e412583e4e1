"""Windows and aggregates in plain Python, row by row, as the documentation defines them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

NO_WATERMARK_NS = -(1 << 63)


@dataclass(frozen=True)
class AnyOf:
    """A result that may be any of several."""

    values: list[Any]


@dataclass(frozen=True)
class Event:
    """A row: event time, key, an integer, a float and a text, each but the time nullable."""

    time_ns: int
    key: int | None
    number: int | None
    ratio: float | None
    text: str | None


def windows_of(time_ns: int, size: int, slide: int, start: int) -> list[tuple[int, int]]:
    """Return the bounds of all windows with start ≤ time < end."""
    last = (time_ns - start) // slide
    found = []
    while last * slide + start + size > time_ns:
        found.append((last * slide + start, last * slide + start + size))
        last -= 1
    return found


def tumble(
    batches: Iterable[tuple[Sequence[Event], int]], size: int, slide: int, start: int, lateness: int
) -> tuple[dict[tuple[int, int, Any], list[Event]], int]:
    """Return the rows of each (start, end, key), in the order of arrival, and the late rows.

    Each batch comes with the watermark behind it.
    """
    groups: dict[tuple[int, int, Any], list[Event]] = {}
    watermark_ns, late = NO_WATERMARK_NS, 0
    for events, after_ns in batches:
        for event in events:
            windows = windows_of(event.time_ns, size, slide, start)
            taken = [w for w in windows if w[1] - 1 + lateness > watermark_ns]
            late += not taken
            for window in taken:
                groups.setdefault((*window, event.key), []).append(event)
        watermark_ns = max(after_ns, watermark_ns)
    return groups, late


def sessions(
    batches: Iterable[tuple[Sequence[Event], int]], gap: int, lateness: int = 0
) -> tuple[dict[tuple[int, int, Any], list[Event]], int]:
    """Return the rows of each session, in the order of arrival, and the late rows.

    Rows at most `gap` apart are in one session. It is closed once the watermark has passed its
    end, `gap` behind its last row, by `lateness`; a row is late if a session of it alone would be
    closed.
    """
    opened: list[tuple[Any, list[Event]]] = []
    closed: dict[tuple[int, int, Any], list[Event]] = {}
    watermark_ns, late = NO_WATERMARK_NS, 0
    for events, after_ns in [*batches, ((), 1 << 62)]:
        for event in events:
            if event.time_ns + gap + lateness <= watermark_ns:
                late += 1
                continue
            joined = [
                (key, rows)
                for key, rows in opened
                if key == event.key and any(abs(r.time_ns - event.time_ns) <= gap for r in rows)
            ]
            opened = [one for one in opened if one not in joined]
            rows = [row for _, rows in joined for row in rows]
            opened.append((event.key, [*rows, event]))
        watermark_ns = max(watermark_ns, after_ns)
        for key, rows in list(opened):
            end = max(row.time_ns for row in rows) + gap
            if end + lateness <= watermark_ns:
                closed[min(row.time_ns for row in rows), end, key] = rows
                opened.remove((key, rows))
    return closed, late


def _known(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _order(value: Any) -> Any:
    """Order as Spark does: NaN is greater than all numbers, and -0.0 equals 0.0."""
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value + 0.0)
    return value


def _variance(values: list[Any], ddof: int) -> float | None:
    if len(values) <= ddof:
        return None
    if not all(math.isfinite(value) for value in values):
        return math.nan
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - ddof)


def _sum(values: list[Any]) -> Any:
    if not values:
        return None
    if isinstance(values[0], int):
        return sum(values)
    return math.fsum(values) if all(map(math.isfinite, values)) else sum(values)


def _mean(values: list[Any]) -> Any:
    return _sum(values) / len(values) if values else None


def _by(
    rows: list[Event], value: Callable[[Event], Any], order: Callable[[Event], Any], greatest: bool
) -> AnyOf:
    """Return the values of the rows with the least or greatest order."""
    rows = [row for row in rows if order(row) is not None]
    if not rows:
        return AnyOf([None])
    best = (max if greatest else min)(_order(order(row)) for row in rows)
    return AnyOf([value(row) for row in rows if _order(order(row)) == best])


def _first(rows: list[Event]) -> Event:
    return min(rows, key=lambda row: row.time_ns)


def _last(rows: list[Event]) -> Event:
    latest = max(row.time_ns for row in rows)
    return [row for row in rows if row.time_ns == latest][-1]


def _ranked(values: list[Any], percentage: float) -> Any:
    ordered = sorted(values, key=_order)
    return ordered[max(0, math.ceil(percentage * len(values)) - 1)] if values else None


def _list(rows: list[Event]) -> str:
    """Return the ratios by event time, then by arrival, as Spark writes them."""
    ordered = sorted(rows, key=lambda row: row.time_ns)
    values = [row.ratio for row in ordered if row.ratio is not None]
    shown = ['"NaN"' if math.isnan(one) else repr(one) for one in values]
    return f"[{','.join(shown)}]"


def aggregates(rows: list[Event]) -> dict[str, Any]:
    """Return the aggregates of the rows of a group, in the order of arrival, by name."""
    numbers, ratios = _known(r.number for r in rows), _known(r.ratio for r in rows)
    texts = _known(r.text for r in rows)
    deviation = _variance(ratios, 0)
    return {
        "rows": len(rows),
        "numbers": len(numbers),
        "sum": _sum(numbers),
        "total": _sum(ratios),
        "mean": _mean(numbers),
        "average": _mean(ratios),
        "least": min(numbers, default=None),
        "most": max(ratios, key=_order, default=None),
        "lowest": min(ratios, key=_order, default=None),
        "word": min(texts, default=None),
        "first": _first(rows).text,
        "last": _last(rows).number,
        "least_by": _by(rows, lambda r: r.text, lambda r: r.ratio, greatest=False),
        "most_by": _by(rows, lambda r: r.ratio, lambda r: r.number, greatest=True),
        "variance": _variance(numbers, 1),
        "deviation": deviation if deviation is None else math.sqrt(deviation),
        "different": len({"NaN" if math.isnan(r) else r for r in ratios}),
        "pairs": len({(r.number, r.text) for r in rows if None not in (r.number, r.text)}),
        "median": _ranked(numbers, 0.5),
        "list": _list(rows),
    }


def same(found: Any, expected: Any) -> bool:
    """Whether two results are the same; floats within 1e-9, since they are added in any order."""
    if isinstance(expected, AnyOf):
        return any(same(found, one) for one in expected.values)
    if isinstance(expected, float) and isinstance(found, float):
        if math.isnan(expected) or math.isnan(found):
            return math.isnan(expected) and math.isnan(found)
        return math.isclose(found, expected, rel_tol=1e-9, abs_tol=1e-9)
    return found == expected and isinstance(found, bool) == isinstance(expected, bool)
