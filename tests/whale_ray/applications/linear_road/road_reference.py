"""Linear Road's accidents and tolls in plain Python, by the definitions of its paper."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from math import fsum
from typing import Any

Row = Mapping[str, Any]
Place = tuple[int, int, int]


def notifications(reports: Iterable[Row]) -> list[tuple]:
    """Return what each vehicle is told as it enters a segment; `reports` in the order of time."""
    rows = [row for row in reports if row["type"] == 0]
    statistics = _statistics(rows)
    entries, accidents = _movements(rows)
    told = []
    for row in entries:
        minute, place = row["time_s"] // 60, (row["xway"], row["dir"], row["seg"])
        before = [statistics[place][m] for m in range(minute - 5, minute) if m in statistics[place]]
        lav = fsum(speed for speed, _ in before) / len(before) if before else None
        _, cars = statistics[place].get(minute - 1, (None, 0))
        ahead = _nearest(accidents, place, minute)
        due = lav is not None and lav < 40 and cars > 50 and ahead is None
        toll = 2 * (cars - 50) ** 2 if due else 0
        told.append((row["time_s"], row["vid"], *place, lav, cars, toll, ahead))
    return told


def _statistics(rows: Iterable[Row]) -> Mapping[Place, Mapping[int, tuple[float, int]]]:
    """Return place → minute → the mean of the vehicles' mean speeds, and their number."""
    speeds: dict[Place, dict[int, dict[int, list[int]]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        of_minute = speeds[row["xway"], row["dir"], row["seg"]][row["time_s"] // 60]
        of_minute.setdefault(row["vid"], []).append(row["speed_mph"])
    found: dict[Place, dict[int, tuple[float, int]]] = defaultdict(dict)
    for place, minutes in speeds.items():
        for minute, vehicles in minutes.items():
            means = [sum(values) / len(values) for values in vehicles.values()]
            found[place][minute] = (fsum(means) / len(means), len(means))
    return found


def _movements(rows: Iterable[Row]) -> tuple[list[Row], list[tuple[Place, int, int]]]:
    """Return the reports that enter a segment, and the accidents: place, first, last minute."""
    history: dict[int, list[Row]] = defaultdict(list)
    standing: dict[tuple[int, ...], set[int]] = defaultdict(set)
    began: dict[tuple[int, ...], tuple[Place, int]] = {}
    entries, accidents = [], []
    for row in rows:
        past = history[row["vid"]]
        last = past[-1] if past else None
        segment = (row["xway"], row["dir"], row["seg"])
        if (last is None or segment != (last["xway"], last["dir"], last["seg"])) and row[
            "lane"
        ] != 4:
            entries.append(row)
        if last is not None and _spot(last) != _spot(row):
            spot = _spot(last)
            if row["vid"] in standing[spot]:
                standing[spot].remove(row["vid"])
                if len(standing[spot]) == 1:
                    place, first = began.pop(spot)
                    accidents.append((place, first, row["time_s"] // 60))
        past.append(row)
        if len(past) >= 4 and len({_spot(one) for one in past[-4:]}) == 1:
            spot = _spot(row)
            if row["vid"] not in standing[spot]:
                standing[spot].add(row["vid"])
                if len(standing[spot]) == 2:
                    began[spot] = (segment, row["time_s"] // 60)
    accidents += [(place, first, 1 << 40) for place, first in began.values()]
    return entries, accidents


def _spot(row: Row) -> tuple[int, ...]:
    return (row["xway"], row["dir"], row["lane"], row["pos_ft"])


def _nearest(accidents: Iterable[tuple[Place, int, int]], place: Place, minute: int) -> int | None:
    """Return the segment of the nearest accident, from the vehicle's own to the fourth ahead."""
    xway, direction, segment = place
    step = 1 if direction == 0 else -1
    found = {
        (there[2] - segment) * step
        for there, first, last in accidents
        if there[:2] == (xway, direction) and first < minute <= last
    }
    near = [distance for distance in found if 0 <= distance <= 4]
    return segment + step * min(near) if near else None
