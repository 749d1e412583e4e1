"""The generator's compiled simulation of cabs: they cruise, wait, carry passengers, go off duty.

Every cab has its own random sequence (splitmix64), so its behaviour depends only on the seed and
its number, not on the number of cabs or on the steps in which time is simulated. Time is in whole
seconds since the start, which is midnight, local time; places are in degrees × 10⁵.

numba keeps compiled functions from run to run, and looks for changes only in the file that a
function is in. So all that is compiled into one lies in its own module, constants included.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...transport.compiling import njit

__all__ = [
    "CAB",
    "FIX",
    "HOUR_S",
    "TRIP",
    "CabStatistics",
    "Records",
    "advance",
    "order_by_time",
    "start",
]

Floats: TypeAlias = npt.NDArray[np.float64]
#: Shape (n,), a structured dtype.
Records: TypeAlias = npt.NDArray[Any]

#: One cab: what it is doing and where it goes.
CAB = np.dtype(
    [
        ("random", np.uint64),  # state of its random sequence
        ("next_s", np.int64),  # time of its next fix
        ("last_s", np.int64),  # time of its last fix
        ("next_duty_s", np.int64),  # when it next considers to start or to stop working
        ("phase_start_s", np.int64),  # of the trip, or of the time between trips
        ("phase_end_s", np.int64),
        ("approach_s", np.int64),  # time of the last occupied fix
        ("arrival_s", np.int64),  # when it has reached its target
        ("trip", np.int64),  # row of its open trip, or −1
        ("from_latitude", np.float64),
        ("from_longitude", np.float64),
        ("to_latitude", np.float64),
        ("to_longitude", np.float64),
        ("home_latitude", np.float64),  # added to the calibrated city's places
        ("home_longitude", np.float64),
        ("stretch", np.float64),  # of longitudes, since degrees are shorter farther north
        ("occupied", np.bool_),
        ("working", np.bool_),
    ],
    align=True,
)

#: One pick-up, and its drop-off if it came.
TRIP = np.dtype(
    [
        ("time_s", np.int64),
        ("cab", np.int64),
        ("pickup_latitude", np.int64),
        ("pickup_longitude", np.int64),
        ("dropoff_latitude", np.int64),
        ("dropoff_longitude", np.int64),
        ("trip_s", np.int64),  # −1: not dropped off
    ],
    align=True,
)

#: One fix.
FIX = np.dtype(
    [
        ("time_s", np.int64),
        ("cab", np.int32),
        ("latitude", np.int32),
        ("longitude", np.int32),
        ("occupied", np.bool_),
    ],
    align=True,
)

#: Rows of `CabStatistics.quantiles`.
FREE_GAP, BUSY_GAP, DROPOFF_GAP, TRIP_LENGTH, IDLE_LENGTH = range(5)
#: Rows of `CabStatistics.by_hour`.
TRIP_MEAN, IDLE_MEAN, ON_DUTY = range(3)
#: Rows of `CabStatistics.cells`.
PICKUPS, DROPOFFS = 2, 3

HOUR_S = 3_600
_LONG_GAP_S = 200
_APPROACH_GAP_S = 30
_REQUEST_GAP_S_MAX = 1_800
_CRUISE_E5_PER_S = 7.0
_FASTEST_E5_PER_S = 27.0
_CHOICES = 12
_METRES_PER_E5 = 1.112
_LONGITUDE_SCALE = 0.79
_CELL_E5 = 1_000
_AWAY_E5 = 30_000
_NOISE_E5 = 3.0


class CabStatistics(NamedTuple):
    """The statistics that the simulation reproduces, see `generator_statistics`."""

    quantiles: Floats
    """Shape (5, 2, points): probabilities and values of `FREE_GAP` … `IDLE`."""
    by_hour: Floats
    """Shape (3, 24): `TRIP_MEAN`, `IDLE_MEAN`, `ON_DUTY` by hour of the day."""
    trip_distance: Floats
    """Shape (2, points): seconds, metres."""
    cells: Floats
    """Shape (4, cells): southern and western edges, shares of `PICKUPS` and `DROPOFFS`."""
    away_share: float
    """Share of places that lie anywhere in a wide box around the city."""


@njit(cache=True, nogil=True)
def _uniform(cab: Any) -> float:
    """Return the cab's next random number in [0, 1)."""
    cab.random = cab.random + np.uint64(0x9E3779B97F4A7C15)
    mixed = cab.random
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = mixed ^ (mixed >> np.uint64(31))
    return np.float64(mixed >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@njit(cache=True, nogil=True)
def _interpolate(points: Floats, at: float) -> float:
    """Return the value at `at` of the line through the points, shape (2, points)."""
    last = points.shape[1] - 1
    right = min(np.searchsorted(points[0], at, side="right"), last)
    left = max(right - 1, 0)
    width = points[0, right] - points[0, left]
    if width <= 0.0 or at >= points[0, last]:
        return points[1, right]
    return points[1, left] + (at - points[0, left]) / width * (points[1, right] - points[1, left])


@njit(cache=True, nogil=True)
def _draw_s(cab: Any, quantiles: Floats, mean_s: float) -> int:
    """Return a random number of whole seconds, at least 1."""
    return max(1, int(_interpolate(quantiles, _uniform(cab)) * mean_s + 0.5))


@njit(cache=True, nogil=True)
def _draw_place(cab: Any, parameters: CabStatistics, shares: int) -> tuple[float, float]:
    """Return a random place in a cell drawn by its share."""
    if _uniform(cab) < parameters.away_share:
        latitude = parameters.cells[0, 0] + (2.0 * _uniform(cab) - 1.0) * _AWAY_E5
        longitude = parameters.cells[1, 0] + (2.0 * _uniform(cab) - 1.0) * _AWAY_E5
    else:
        cell = np.searchsorted(parameters.cells[shares], _uniform(cab), side="right")
        latitude = parameters.cells[0, cell] + _uniform(cab) * _CELL_E5
        longitude = parameters.cells[1, cell] + _uniform(cab) * _CELL_E5
    return (
        latitude + cab.home_latitude,
        parameters.cells[1, 0]
        + cab.home_longitude
        + (longitude - parameters.cells[1, 0]) * cab.stretch,
    )


@njit(cache=True, nogil=True)
def _apart_e5(cab: Any, latitude: float, longitude: float) -> float:
    """Return how far a place is from where the cab's phase began, in 10⁻⁵ degrees of latitude."""
    north = latitude - cab.from_latitude
    east = (longitude - cab.from_longitude) / cab.stretch * _LONGITUDE_SCALE
    return math.sqrt(north * north + east * east)


@njit(cache=True, nogil=True)
def _place_at(cab: Any, time_s: int) -> tuple[float, float]:
    """Return where the cab is: on the line to its target, or there."""
    if time_s >= cab.arrival_s:
        return cab.to_latitude, cab.to_longitude
    share = (time_s - cab.phase_start_s) / (cab.arrival_s - cab.phase_start_s)
    return (
        cab.from_latitude + share * (cab.to_latitude - cab.from_latitude),
        cab.from_longitude + share * (cab.to_longitude - cab.from_longitude),
    )


@njit(cache=True, nogil=True)
def _begin_trip(cab: Any, parameters: CabStatistics, time_s: int, hour: int) -> None:
    """Take a passenger: of a few drop-off places, choose the one that fits the trip's length."""
    length_s = _draw_s(cab, parameters.quantiles[TRIP_LENGTH], parameters.by_hour[TRIP_MEAN, hour])
    _begin_phase(cab, time_s, length_s)
    wanted_e5 = _interpolate(parameters.trip_distance, length_s) / _METRES_PER_E5
    best = np.inf
    for _ in range(_CHOICES):
        latitude, longitude = _draw_place(cab, parameters, DROPOFFS)
        misfit = abs(_apart_e5(cab, latitude, longitude) - wanted_e5)
        if misfit < best:
            best = misfit
            cab.to_latitude, cab.to_longitude = latitude, longitude
    cab.arrival_s = cab.phase_end_s
    cab.approach_s = cab.phase_end_s - _draw_s(cab, parameters.quantiles[DROPOFF_GAP], 1.0)
    cab.occupied = True


@njit(cache=True, nogil=True)
def _begin_idle(cab: Any, parameters: CabStatistics, time_s: int, hour: int) -> None:
    """Drive to where the next passenger will be, and wait there."""
    length_s = _draw_s(cab, parameters.quantiles[IDLE_LENGTH], parameters.by_hour[IDLE_MEAN, hour])
    _begin_phase(cab, time_s, length_s)
    distance = np.inf
    for _ in range(_CHOICES):
        cab.to_latitude, cab.to_longitude = _draw_place(cab, parameters, PICKUPS)
        distance = _apart_e5(cab, cab.to_latitude, cab.to_longitude)
        if distance <= length_s * _FASTEST_E5_PER_S:
            break
    cab.arrival_s = time_s + max(1, min(length_s, int(distance / _CRUISE_E5_PER_S)))
    cab.occupied = False


@njit(cache=True, nogil=True)
def _begin_phase(cab: Any, time_s: int, length_s: int) -> None:
    """Start from where the cab is now."""
    cab.from_latitude, cab.from_longitude = _place_at(cab, time_s)
    cab.phase_start_s = time_s
    cab.phase_end_s = time_s + length_s


@njit(cache=True, nogil=True)
def _next_work_s(cab: Any, parameters: CabStatistics, time_s: int) -> int:
    """Return `time_s`, or when the cab is back if it goes off duty now.

    Once an hour some cabs start or stop, as few as needed for the share on duty to follow the hour.
    """
    while not cab.working or cab.next_duty_s <= time_s:
        hour = cab.next_duty_s // HOUR_S
        before, share = (
            parameters.by_hour[ON_DUTY, (hour - 1) % 24],
            parameters.by_hour[ON_DUTY, hour % 24],
        )
        chance = _uniform(cab)
        if cab.working:
            cab.working = chance >= (before - share) / before
        elif chance < (share - before) / (1.0 - before):
            cab.working = True
            time_s = max(time_s, cab.next_duty_s)
        cab.next_duty_s += HOUR_S
    return time_s


@njit(cache=True, nogil=True)
def _plan_next_fix(cab: Any, parameters: CabStatistics, time_s: int) -> None:
    """Set when the cab reports next; pick-up and drop-off always report."""
    if cab.occupied:
        next_s = time_s + _draw_s(cab, parameters.quantiles[BUSY_GAP], 1.0)
        if time_s + _APPROACH_GAP_S <= cab.approach_s < next_s:
            next_s = cab.approach_s
    else:
        gap_s = _draw_s(cab, parameters.quantiles[FREE_GAP], 1.0)
        next_s = time_s + gap_s
        if gap_s > _LONG_GAP_S:  # a break: nobody gets in before it ends
            cab.phase_end_s = max(cab.phase_end_s, next_s)
    cab.next_s = min(next_s, cab.phase_end_s)


@njit(cache=True, nogil=True)
def start(cabs: Records, parameters: CabStatistics, hour: int) -> None:
    """Put every cab somewhere, in the middle of what it would be doing at that hour.

    Args:
        cabs: with `random`, `home_latitude`, `home_longitude` and `stretch` set.
        habits: the statistics.
        hour: of the day, at time 0.
    """
    for number in range(len(cabs)):
        cab = cabs[number]
        cab.trip = -1
        cab.to_latitude, cab.to_longitude = _draw_place(cab, parameters, PICKUPS)
        trip_s, idle_s = parameters.by_hour[TRIP_MEAN, hour], parameters.by_hour[IDLE_MEAN, hour]
        if _uniform(cab) < trip_s / (trip_s + idle_s):
            _begin_trip(cab, parameters, 0, hour)
        else:
            _begin_idle(cab, parameters, 0, hour)
        elapsed_s = int(_uniform(cab) * (cab.phase_end_s - cab.phase_start_s))
        cab.phase_start_s -= elapsed_s
        cab.phase_end_s -= elapsed_s
        cab.arrival_s -= elapsed_s
        cab.approach_s -= elapsed_s
        cab.next_duty_s = HOUR_S + int(_uniform(cab) * HOUR_S)
        cab.working = _uniform(cab) < parameters.by_hour[ON_DUTY, hour]
        cab.next_s = int(_uniform(cab) * 60.0)
        if not cab.working:
            cab.next_s = _next_work_s(cab, parameters, cab.next_s)
            _rest_until(cab, parameters, 0, cab.next_s)
        cab.last_s = -2 * _REQUEST_GAP_S_MAX  # there is none yet


@njit(cache=True, nogil=True)
def _rest_until(cab: Any, parameters: CabStatistics, time_s: int, back_s: int) -> None:
    """Stay where the cab is, without a fix, and continue free."""
    cab.to_latitude, cab.to_longitude = _place_at(cab, time_s)
    cab.arrival_s = time_s
    _begin_idle(cab, parameters, back_s, back_s // HOUR_S % 24)
    cab.next_s = back_s


@njit(cache=True, nogil=True)
def advance(
    cabs: Records,
    first: int,
    parameters: CabStatistics,
    until_s: int,
    fixes: Records,
    trips: Records,
    counts: npt.NDArray[np.int64],
) -> int:
    """Let the cabs from `first` on continue until `until_s`, or until there is no room.

    Args:
        cabs: `CAB` records, changed in place.
        first: the cab to begin with.
        habits: the statistics; hour 0 of the day begins at time 0.
        until_s: no fix is made at this second or later.
        fixes: `FIX` records to fill.
        trips: `TRIP` records to fill, and to complete.
        counts: shape (2,): fixes and trips filled so far; counted on in place.

    Returns:
        The cab that needs more room for its next fix; the number of cabs when all are done.
    """
    for number in range(first, len(cabs)):
        cab = cabs[number]
        while cab.next_s < until_s:
            if counts[0] == len(fixes) or counts[1] == len(trips):
                return number
            time_s = cab.next_s
            hour = time_s // HOUR_S % 24
            due = time_s >= cab.phase_end_s
            if due and cab.occupied:
                _begin_idle(cab, parameters, time_s, hour)
            elif due:
                _begin_trip(cab, parameters, time_s, hour)
            latitude, longitude = _reported_place(cab, time_s)
            if due:
                _note_trip(cab, number, time_s, latitude, longitude, trips, counts)
            fix = fixes[counts[0]]
            fix.time_s, fix.cab, fix.occupied = time_s, number, cab.occupied
            fix.latitude, fix.longitude = latitude, longitude
            counts[0] += 1
            cab.last_s = time_s
            back_s = time_s if cab.occupied else _next_work_s(cab, parameters, time_s)
            if back_s > time_s:
                _rest_until(cab, parameters, time_s, back_s)
            else:
                _plan_next_fix(cab, parameters, time_s)
    return len(cabs)


@njit(cache=True, nogil=True)
def _reported_place(cab: Any, time_s: int) -> tuple[np.int64, np.int64]:
    """Return where the cab says that it is: within a few metres, longitude in −180° … 180°."""
    latitude, longitude = _place_at(cab, time_s)
    latitude += (2.0 * _uniform(cab) - 1.0) * _NOISE_E5
    longitude += (2.0 * _uniform(cab) - 1.0) * _NOISE_E5
    whole = np.int64(math.floor(longitude + 0.5))
    return np.int64(math.floor(latitude + 0.5)), (whole + 18_000_000) % 36_000_000 - 18_000_000


@njit(cache=True, nogil=True)
def _note_trip(
    cab: Any,
    number: int,
    time_s: int,
    latitude: np.int64,
    longitude: np.int64,
    trips: Records,
    counts: npt.NDArray[np.int64],
) -> None:
    """Note a drop-off, or a pick-up if the fix before it is recent."""
    if not cab.occupied:
        if cab.trip >= 0:
            trip = trips[cab.trip]
            trip.dropoff_latitude, trip.dropoff_longitude = latitude, longitude
            trip.trip_s = time_s - trip.time_s
        cab.trip = -1
    elif time_s - cab.last_s <= _REQUEST_GAP_S_MAX:
        trip = trips[counts[1]]
        trip.time_s, trip.cab, trip.trip_s = time_s, number, -1
        trip.pickup_latitude, trip.pickup_longitude = latitude, longitude
        cab.trip = counts[1]
        counts[1] += 1


@njit(cache=True, nogil=True)
def order_by_time(fixes: Records, first_s: int, seconds: int) -> npt.NDArray[np.int64]:
    """Return the order that sorts fixes within `first_s` … `first_s + seconds − 1`; stable."""
    starts = np.zeros(seconds + 1, np.int64)
    for row in range(len(fixes)):
        starts[fixes[row].time_s - first_s + 1] += 1
    for second in range(seconds):
        starts[second + 1] += starts[second]
    order = np.empty(len(fixes), np.int64)
    for row in range(len(fixes)):
        second = fixes[row].time_s - first_s
        order[starts[second]] = row
        starts[second] += 1
    return order
