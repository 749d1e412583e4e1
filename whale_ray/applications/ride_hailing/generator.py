"""A seeded generator of positions and requests, calibrated on a real week.

It writes the two files that `prepare` reads, with the columns and types of the real ones. Cabs are
simulated one second at a time (see `generator_kernels`); a request is a cab that turns occupied, as
in the real data. The same settings give the same rows, whatever the machine's number of cores.

Fleets larger than a city's are spread over copies of the city, so that a request finds as many cabs
nearby as in the real data, unless `vehicles_per_city` says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ..shared.ranges import check_number, check_whole
from . import generator_statistics as statistics
from .generator_kernels import (
    CAB,
    FIX,
    HOUR_S,
    TRIP,
    CabStatistics,
    Records,
    advance,
    order_by_time,
    start,
)

__all__ = ["POSITIONS_SCHEMA", "REQUESTS_SCHEMA", "CabGeneratorSettings", "Generated", "generate"]

POSITIONS_FILE = "positions.parquet"
REQUESTS_FILE = "requests.parquet"

_TIME = pa.timestamp("ms", tz="UTC")
_NAME = pa.dictionary(pa.int32(), pa.string())
POSITIONS_SCHEMA = pa.schema(
    [
        ("vehicle_id", _NAME),
        ("event_time", _TIME),
        ("lat_e5", pa.int32()),
        ("lon_e5", pa.int32()),
        ("occupied", pa.bool_()),
    ]
)
REQUESTS_SCHEMA = pa.schema(
    [
        ("request_id", pa.int32()),
        ("request_time", _TIME),
        ("pickup_lat", pa.float32()),
        ("pickup_lon", pa.float32()),
        ("dropoff_lat", pa.float32()),
        ("dropoff_lon", pa.float32()),
        ("trip_seconds", pa.int32()),
        ("served_by_vehicle", _NAME),
    ]
)

#: Midnight in San Francisco, the first of the seven days that the statistics come from.
_START_MS = 1_212_217_200_000
_ROW_GROUP_ROWS = 262_144
_FIXES_PER_CAB_AND_HOUR = 48
_VEHICLES_MAX = 1_000_000
_HOURS_MAX = 24.0 * 366
_SEED_STEP = np.uint64(0xD1342543DE82EF95)
_MIXER = np.uint64(0xBF58476D1CE4E5B9)
_OTHER_MIXER = np.uint64(0x94D049BB133111EB)
# Copies of the city stand on a lattice of parallels and meridians, the first one where it is.
_CITY_COLUMNS, _CITY_COLUMN_E5 = 72, 500_000
_CITY_ROWS, _CITY_ROW_E5 = 25, 350_000
_SOUTHWARD_ROWS = 21
_CITY_LATITUDE = 37.785
_CITIES_MAX = _CITY_COLUMNS * _CITY_ROWS


@dataclass(frozen=True)
class CabGeneratorSettings:
    """How much to generate.

    Raises:
        SettingsError: a value lies outside its range.
    """

    vehicles: int = 520
    """Cabs; the real data has 520."""
    hours: float = 24.0
    """Length in time, from midnight, local time."""
    seed: int = 1
    """The same seed gives the same rows."""
    vehicles_per_city: int = 520
    """Cabs that share a city; more of them make a request find more."""

    def __post_init__(self) -> None:
        check_whole("vehicles", self.vehicles, 1, _VEHICLES_MAX)
        check_number("hours", self.hours, 1.0 / HOUR_S, _HOURS_MAX)
        check_whole("seed", self.seed, 0, 2**63 - 1)
        least = -(-self.vehicles // _CITIES_MAX)
        check_whole("vehicles_per_city", self.vehicles_per_city, least, _VEHICLES_MAX)


@dataclass(frozen=True)
class Generated:
    """What was written."""

    positions_path: Path
    requests_path: Path
    positions: int
    """Rows."""
    requests: int
    """Rows."""


def generate(directory: str | Path, settings: CabGeneratorSettings | None = None) -> Generated:
    """Write positions.parquet and requests.parquet into a folder, which is made if need be.

    Memory: one hour of positions and all requests. Files of these names are replaced, each at once.
    """
    settings = settings or CabGeneratorSettings()
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    names = pa.array([f"cab{number:06d}" for number in range(settings.vehicles)])
    positions_path, requests_path = folder / POSITIONS_FILE, folder / REQUESTS_FILE
    simulation = _Simulation(settings)
    partial = positions_path.with_suffix(".partial")
    with pq.ParquetWriter(partial, POSITIONS_SCHEMA, compression="zstd") as writer:
        for table in _in_row_groups(_positions(simulation, names)):
            writer.write_table(table, _ROW_GROUP_ROWS)
    os.replace(partial, positions_path)
    partial = requests_path.with_suffix(".partial")
    pq.write_table(_requests(simulation, names), partial, compression="zstd")
    os.replace(partial, requests_path)
    return Generated(positions_path, requests_path, *simulation.rows)


class _Simulation:
    """State of the simulated fleet, and its trips so far."""

    def __init__(self, settings: CabGeneratorSettings) -> None:
        self._parameters = _parameters()
        self._cabs = _cabs(settings)
        self._end_s = round(settings.hours * HOUR_S)
        self._trips = np.empty(1024, TRIP)
        self._counts = np.zeros(2, np.int64)
        self._fix_count = 0
        start(self._cabs, self._parameters, 0)

    @property
    def rows(self) -> tuple[int, int]:
        """Fixes and trips so far."""
        return self._fix_count, int(self._counts[1])

    @property
    def trips(self) -> Records:
        """All trips so far, `TRIP` records in no order."""
        return self._trips[: self._counts[1]]

    def hours(self) -> Iterator[Records]:
        """Continue hour by hour; yield each hour's fixes, `FIX` records by time and then by cab."""
        fixes = np.empty(len(self._cabs) * _FIXES_PER_CAB_AND_HOUR, FIX)
        for first_s in range(0, self._end_s, HOUR_S):
            until_s = min(first_s + HOUR_S, self._end_s)
            self._counts[0] = cab = 0
            while True:
                cab = advance(
                    self._cabs, cab, self._parameters, until_s, fixes, self._trips, self._counts
                )
                if cab == len(self._cabs):
                    break
                fixes = _with_room(fixes, int(self._counts[0]))
                self._trips = _with_room(self._trips, int(self._counts[1]))
            made = fixes[: self._counts[0]]
            self._fix_count += len(made)
            yield made[order_by_time(made, first_s, until_s - first_s)]


def _with_room(records: Records, filled: int) -> Records:
    """Return the same records, with twice the room if there is none left."""
    if filled < len(records):
        return records
    return np.concatenate([records, np.empty_like(records)])


def _parameters() -> CabStatistics:
    quantiles = (
        statistics.FREE_GAP_S,
        statistics.BUSY_GAP_S,
        statistics.DROPOFF_GAP_S,
        statistics.TRIP_IN_MEANS,
        statistics.IDLE_IN_MEANS,
    )
    by_hour = (statistics.TRIP_MEAN_S, statistics.IDLE_MEAN_S, statistics.ON_DUTY_SHARE)
    return CabStatistics(
        np.stack(quantiles),
        np.stack(by_hour),
        statistics.TRIP_DISTANCE_M,
        statistics.cells_of_a_city(),
        statistics.AWAY_SHARE,
    )


def _cabs(settings: CabGeneratorSettings) -> npt.NDArray[np.void]:
    """Return the fleet, each cab with its random sequence and its city."""
    cabs = np.zeros(settings.vehicles, CAB)
    numbers = np.arange(settings.vehicles, dtype=np.uint64)
    # Sequences of neighbouring cabs must not be shifted copies of each other: mix seed and number.
    mixed = (numbers + np.full(1, settings.seed, np.uint64) * _SEED_STEP) * _MIXER
    cabs["random"] = (mixed ^ (mixed >> np.uint64(29))) * _OTHER_MIXER
    cities = numbers.astype(np.int64) // settings.vehicles_per_city
    rows, columns = cities // _CITY_COLUMNS, cities % _CITY_COLUMNS
    # Southwards first, then northwards: 38° … −36° and 41° … 49°.
    steps = np.where(rows <= _SOUTHWARD_ROWS, -rows, rows - _SOUTHWARD_ROWS)
    cabs["home_latitude"] = steps * _CITY_ROW_E5
    cabs["home_longitude"] = columns * _CITY_COLUMN_E5
    latitudes = np.radians(_CITY_LATITUDE + cabs["home_latitude"] / 1e5)
    cabs["stretch"] = np.cos(np.radians(_CITY_LATITUDE)) / np.cos(latitudes)
    return cabs


def _positions(simulation: _Simulation, names: pa.Array) -> Iterator[pa.Table]:
    for fixes in simulation.hours():
        columns = [
            pa.DictionaryArray.from_arrays(pa.array(fixes["cab"]), names),
            _timestamps(fixes["time_s"]),
            pa.array(fixes["latitude"]),
            pa.array(fixes["longitude"]),
            pa.array(fixes["occupied"]),
        ]
        yield pa.Table.from_arrays(columns, schema=POSITIONS_SCHEMA)


def _in_row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Gather small tables, so that a row group is not smaller than it must be."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(one.num_rows for one in waiting) >= _ROW_GROUP_ROWS:
            yield pa.concat_tables(waiting)
            waiting.clear()
    if waiting:
        yield pa.concat_tables(waiting)


def _requests(simulation: _Simulation, names: pa.Array) -> pa.Table:
    trips = simulation.trips
    trips = trips[np.lexsort((trips["cab"], trips["time_s"]))]
    unfinished = trips["trip_s"] < 0
    columns = [
        pa.array(np.arange(len(trips), dtype=np.int32)),
        _timestamps(trips["time_s"]),
        _degrees(trips["pickup_latitude"]),
        _degrees(trips["pickup_longitude"]),
        _degrees(trips["dropoff_latitude"], unfinished),
        _degrees(trips["dropoff_longitude"], unfinished),
        pa.array(trips["trip_s"].astype(np.int32), mask=unfinished),
        pa.DictionaryArray.from_arrays(pa.array(trips["cab"].astype(np.int32)), names),
    ]
    return pa.Table.from_arrays(columns, schema=REQUESTS_SCHEMA)


def _timestamps(times_s: npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(times_s * 1_000 + _START_MS).cast(_TIME)


def _degrees(
    values_e5: npt.NDArray[np.int64], missing: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    return pa.array((values_e5 / 1e5).astype(np.float32), mask=missing)
