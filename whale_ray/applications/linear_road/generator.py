"""A seeded generator of traffic: vehicles that enter, travel, stand in accidents, and leave.

The benchmark has a simulator of its own (MITSIM); this one is simpler, and its distributions are
chosen so that all cases of the queries occur. The ten segments in the middle are jammed: a third of
the vehicles enter there, the others anywhere, and leave after 2 to 40 segments. The usual speed is
normal (55 ± 10 miles per hour), in the jam a third of it. Each report is 30 s after the one before
it, at the vehicle's own second.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..shared.generated_file import write_stream
from .schemas import EXIT_LANE, FEET_PER_SEGMENT, POSITION, REPORTS, SEGMENTS
from .settings import LinearRoadSettings

__all__ = ["generate", "tables"]

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_PERIOD_S = 30
_ROAD_FT = SEGMENTS * FEET_PER_SEGMENT
_FEET_PER_S = FEET_PER_SEGMENT / 3_600  # of one mile per hour
_SPEED_MPH = (55, 10)
_LEAST_MPH, _MOST_MPH = 10, 100
_TRIP_SEGMENTS = (2, 40)
_JAM = (45, 55)
_JAM_SHARE = 3
_STANDING_REPORTS = 10
_STAND_LANE = 2


class _Traffic:
    """The vehicles of all expressways; each array has the shape (vehicles,)."""

    def __init__(self, settings: LinearRoadSettings) -> None:
        self._settings = settings
        self._draws = np.random.default_rng(settings.seed)
        count = settings.expressways * settings.vehicles
        self.xway = np.arange(count, dtype=np.int64) // settings.vehicles
        self.second = self._draws.integers(0, _PERIOD_S, count)
        self.vid = np.arange(count, dtype=np.int64)
        self.direction, self.travelled_ft, self.trip_ft, self.start_ft, self.usual_mph = (
            np.zeros(count, np.int64) for _ in range(5)
        )
        self.standing = np.zeros(count, np.int64)
        self.is_new = np.ones(count, np.bool_)
        self._next_vid = count
        self._enter(np.arange(count))
        self._accident_turns = self._draws.integers(
            0, max(1, settings.minutes * 2), (settings.expressways, settings.accidents)
        )

    def _enter(self, who: Int64s) -> None:
        """Let vehicles begin a trip."""
        draws, count = self._draws, len(who)
        self.direction[who] = draws.integers(0, 2, count)
        jam_ft = draws.integers(FEET_PER_SEGMENT * _JAM[0], FEET_PER_SEGMENT * _JAM[1], count)
        in_jam = draws.random(count) < 1 / 3
        self.start_ft[who] = np.where(in_jam, jam_ft, draws.integers(0, _ROAD_FT, count))
        self.trip_ft[who] = draws.integers(*_TRIP_SEGMENTS, count) * FEET_PER_SEGMENT
        usual = np.round(draws.normal(*_SPEED_MPH, count)).astype(np.int64)
        self.usual_mph[who] = np.clip(usual, _LEAST_MPH, _MOST_MPH)
        self.travelled_ft[who] = self.standing[who] = 0
        self.is_new[who] = True

    def positions_ft(self) -> Int64s:
        """Return where the vehicles are; westbound ones began at the other end."""
        along = np.minimum(self.start_ft + self.travelled_ft, _ROAD_FT - 1)
        return np.where(self.direction == 0, along, _ROAD_FT - 1 - along)

    def leaving(self) -> Bools:
        """Return who is at the end of the trip or of the road."""
        at_end = self.start_ft + self.travelled_ft >= _ROAD_FT - 1
        return (self.standing == 0) & (at_end | (self.travelled_ft >= self.trip_ft))

    def crash(self, turn: int) -> None:
        """Let two vehicles stand together for each accident that begins now."""
        per_road = self._settings.vehicles
        for road, turns in enumerate(self._accident_turns):
            for _ in range(int((turns == turn).sum())):
                one, other = road * per_road + self._draws.choice(per_road, 2, replace=False)
                for name in ("direction", "start_ft", "travelled_ft", "trip_ft"):
                    getattr(self, name)[other] = getattr(self, name)[one]
                self.standing[[one, other]] = _STANDING_REPORTS
                if not self.is_new[other]:  # it appears somewhere else, so it is another vehicle
                    self.vid[other] = self._next_vid
                    self._next_vid += 1

    def report(self, turn: int) -> pa.Table:
        """Return the reports of 30 s, `REPORTS`, in the order of time."""
        positions_ft, leaving = self.positions_ft(), self.leaving()
        segments = positions_ft // FEET_PER_SEGMENT
        jammed = (segments >= _JAM[0]) & (segments < _JAM[1])
        speed_mph = np.where(jammed, self.usual_mph // _JAM_SHARE, self.usual_mph)
        speed_mph[self.standing > 0] = 0
        lane = 1 + self.vid % 3
        lane[self.is_new] = 0
        lane[leaving] = EXIT_LANE
        lane[self.standing > 0] = _STAND_LANE
        columns = {
            "type": np.full(len(self.vid), POSITION),
            "time_s": turn * _PERIOD_S + self.second,
            "vid": self.vid.copy(),
            "speed_mph": speed_mph,
            "xway": self.xway,
            "lane": lane,
            "dir": self.direction.copy(),
            "seg": segments,
            "pos_ft": positions_ft,
        }
        order = np.argsort(self.second, kind="stable")
        self._move(speed_mph, leaving)
        return pa.table(
            [columns[field.name][order].astype(np.int32) for field in REPORTS], schema=REPORTS
        )

    def _move(self, speed_mph: Int64s, leaving: Bools) -> None:
        self.is_new[:] = False
        moved_ft = np.round(speed_mph * _PERIOD_S * _FEET_PER_S).astype(np.int64)
        self.travelled_ft += moved_ft
        self.standing = np.maximum(self.standing - 1, 0)
        gone = np.flatnonzero(leaving)
        self.vid[gone] = self._next_vid + np.arange(len(gone))
        self._next_vid += len(gone)
        self._enter(gone)


def tables(settings: LinearRoadSettings) -> Iterator[pa.Table]:
    """Yield the reports, `REPORTS`, in the order of time, 30 s in a part."""
    traffic = _Traffic(settings)
    for turn in range(settings.minutes * 60 // _PERIOD_S):
        traffic.crash(turn)
        yield traffic.report(turn)


def generate(folder: str | Path, settings: LinearRoadSettings | None = None) -> Path:
    """Write reports.parquet into a folder, which is made if need be; return the file's path.

    Memory: the reports of 30 s. A file of that name is replaced.
    """
    return write_stream(folder, "reports", REPORTS, tables(settings or LinearRoadSettings()))
