"""The compiled matching loop: processes two merged streams row by row, stores fixes, finds matches.

One call processes all rows, unless the buffer for matches is full: then it returns early, the
caller empties the buffer and calls again, and the loop continues at the row where it stopped.

The grid of free vehicles is three-dimensional, see `vehicles`; distances are haversine distances in
float64 on a sphere of radius 6,371,008.8 m. Before one is computed, chords are compared: the
straight line through the sphere is never longer than the arc, and costs no sine.

numba keeps compiled functions from run to run, and looks for changes only in the file that a
function is in. So all that is compiled into one lies in its own module, constants included.
In hot loops arrays are passed one by one, or inline: numba copies a tuple of arrays, and counts
references to each array, at every call.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ...transport.compiling import njit

__all__ = [
    "CELL_BITS",
    "EARTH_RADIUS_M",
    "NO_CELL",
    "NO_SLOT",
    "Fixes",
    "Found",
    "Requests",
    "Search",
    "gather_ids",
    "id_offsets",
    "merge_rows",
    "relink",
]

EARTH_RADIUS_M = 6_371_008.8

NO_SLOT = -1
NO_CELL = -1
CELL_BITS = 21
_CELLS = 1 << CELL_BITS
_MIXER = np.uint64(0x9E3779B97F4A7C15)

Bytes: TypeAlias = npt.NDArray[np.uint8]
Int32s: TypeAlias = npt.NDArray[np.int32]
#: Shape (capacity,), dtype `VEHICLE`.
Rows: TypeAlias = npt.NDArray[Any]


class Search(NamedTuple):
    """Parameters of the search for vehicles near a request."""

    radius_m: float
    """Greatest haversine distance, inclusive."""
    chord_squared_m2: float
    """Square of the longest chord that can still lie within the radius."""
    cell_m: float
    """Side of a grid cell: at least that chord."""
    max_age_ns: int
    """Greatest age of a fix when the request is made, inclusive."""


class Fixes(NamedTuple):
    """Rows of the positions stream, in event-time order."""

    slots: Int32s
    latitudes_e5: npt.NDArray[np.int32]
    longitudes_e5: npt.NDArray[np.int32]
    occupied: npt.NDArray[np.bool_]
    times_ns: npt.NDArray[np.int64]


class Requests(NamedTuple):
    """Rows of the requests stream, in event-time order; coordinates in degrees."""

    latitudes: npt.NDArray[np.float64]
    longitudes: npt.NDArray[np.float64]
    times_ns: npt.NDArray[np.int64]


class _Here(NamedTuple):
    """Place and time of a request, in the fields of `VEHICLE` that it is compared with."""

    x_m: float
    y_m: float
    z_m: float
    latitude: float
    longitude: float
    cos_latitude: float
    oldest_ns: int
    """Event time of the oldest fix that counts."""


class Found(NamedTuple):
    """Buffer for matches: (request, vehicle) pairs; slot −1 stands for the request alone."""

    request_rows: npt.NDArray[np.int64]
    slots: npt.NDArray[np.int32]
    distances_m: npt.NDArray[np.float64]


@njit(cache=True, nogil=True)
def merge_rows(
    heads: Int32s,
    rows: Rows,
    search: Search,
    fixes: Fixes,
    requests: Requests,
    order: npt.NDArray[np.bool_],
    cursor: npt.NDArray[np.int64],
    found: Found,
    mark_requests: bool,
) -> int:
    """Process the merged rows from `cursor` on, until `found` is full or all rows are done.

    Args:
        heads, rows: of the `Vehicles`, changed in place.
        search: radius and age.
        fixes, requests: the two streams' rows.
        order: shape (fixes + requests,): False = the next fix, True = the next request.
        cursor: shape (3,): merged rows, fixes and requests taken so far; moved on in place.
        found: filled from its beginning.
        mark_requests: whether each request also yields one row without a vehicle.

    Returns:
        How many rows of `found` were filled. A request is answered whole or not at all.
    """
    slots, latitudes_e5, longitudes_e5, occupied, times_ns = fixes
    cell_m = search.cell_m
    filled = 0
    step, fix, request = cursor[0], cursor[1], cursor[2]
    while step < len(order):
        if order[step]:
            after = _answer(heads, rows, search, requests, request, found, filled, mark_requests)
            if after < 0:
                break
            filled = after
            request += 1
        else:
            _put_fix(
                heads,
                rows,
                slots[fix],
                cell_m,
                latitudes_e5[fix],
                longitudes_e5[fix],
                occupied[fix],
                times_ns[fix],
            )
            fix += 1
        step += 1
    cursor[0], cursor[1], cursor[2] = step, fix, request
    return filled


@njit(cache=True, nogil=True)
def id_offsets(rows: Rows, slots: Int32s, offsets: Int32s) -> None:
    """Fill the offsets of the ids of `slots`, shape (slots + 1,); empty where the slot is −1."""
    offsets[0] = 0
    for row in range(len(slots)):
        slot = slots[row]
        length = 0
        if slot != NO_SLOT:
            length = rows[slot].id_stop - rows[slot].id_start
        offsets[row + 1] = offsets[row] + length


@njit(cache=True, nogil=True)
def gather_ids(rows: Rows, ids: Bytes, slots: Int32s, offsets: Int32s, pool: Bytes) -> None:
    """Fill the pool of the ids of `slots`, which lie there as `id_offsets` says."""
    for row in range(len(slots)):
        if slots[row] != NO_SLOT:
            start = rows[slots[row]].id_start
            for step in range(offsets[row + 1] - offsets[row]):
                pool[offsets[row] + step] = ids[start + step]


@njit(cache=True, nogil=True)
def relink(known: int, heads: Int32s, rows: Rows) -> None:
    """Put the free ones of the first `known` vehicles into empty chains."""
    for slot in range(known):
        if rows[slot].cell != NO_CELL:
            _link(heads, rows, slot, rows[slot].cell)


@njit(cache=True, nogil=True, inline="always")
def _put_fix(
    heads: Int32s,
    rows: Rows,
    slot: int,
    cell_m: float,
    latitude_e5: int,
    longitude_e5: int,
    occupied: bool,
    time_ns: int,
) -> None:
    """Take a vehicle's next fix, which replaces its last one.

    Args:
        heads, rows: of the `Vehicles`, changed in place.
        slot: the vehicle.
        cell_m: side of a grid cell in metres.
        latitude_e5, longitude_e5: place in degrees × 10⁵.
        occupied: whether the vehicle has a passenger, and so cannot be found.
        time_ns: event time.
    """
    row = rows[slot]
    row.time_ns = time_ns
    cell = NO_CELL
    if not occupied:
        latitude = latitude_e5 / 1e5 * (math.pi / 180.0)
        longitude = longitude_e5 / 1e5 * (math.pi / 180.0)
        cosine = math.cos(latitude)
        row.latitude, row.longitude, row.cos_latitude = latitude, longitude, cosine
        row.x_m = EARTH_RADIUS_M * (1.0 + cosine * math.cos(longitude))
        row.y_m = EARTH_RADIUS_M * (1.0 + cosine * math.sin(longitude))
        row.z_m = EARTH_RADIUS_M * (1.0 + math.sin(latitude))
        cell = _pack_cell(int(row.x_m / cell_m), int(row.y_m / cell_m), int(row.z_m / cell_m))
    if cell != row.cell:
        if row.cell != NO_CELL:
            _unlink(heads, rows, slot)
        if cell != NO_CELL:
            _link(heads, rows, slot, cell)


@njit(cache=True, nogil=True)
def _answer(
    heads: Int32s,
    rows: Rows,
    search: Search,
    requests: Requests,
    request: int,
    found: Found,
    filled: int,
    mark_requests: bool,
) -> int:
    """Append the free vehicles near one request; return the new fill, or −1 if room ran out."""
    if mark_requests:
        filled = _append(found, filled, request, NO_SLOT, 0.0)
    latitude = requests.latitudes[request] * (math.pi / 180.0)
    longitude = requests.longitudes[request] * (math.pi / 180.0)
    if filled < 0 or not (math.isfinite(latitude) and math.isfinite(longitude)):
        return filled
    cosine = math.cos(latitude)
    x_m = EARTH_RADIUS_M * (1.0 + cosine * math.cos(longitude))
    y_m = EARTH_RADIUS_M * (1.0 + cosine * math.sin(longitude))
    z_m = EARTH_RADIUS_M * (1.0 + math.sin(latitude))
    oldest_ns = requests.times_ns[request] - search.max_age_ns
    here = _Here(x_m, y_m, z_m, latitude, longitude, cosine, oldest_ns)
    side = search.cell_m
    for cell_x in range(max(int(x_m / side) - 1, 0), min(int(x_m / side) + 2, _CELLS)):
        for cell_y in range(max(int(y_m / side) - 1, 0), min(int(y_m / side) + 2, _CELLS)):
            for cell_z in range(max(int(z_m / side) - 1, 0), min(int(z_m / side) + 2, _CELLS)):
                cell = _pack_cell(cell_x, cell_y, cell_z)
                filled = _scan_cell(heads, rows, search, cell, here, request, found, filled)
                if filled < 0:
                    return filled
    return filled


@njit(cache=True, nogil=True)
def _scan_cell(
    heads: Int32s,
    rows: Rows,
    search: Search,
    cell: int,
    here: _Here,
    request: int,
    found: Found,
    filled: int,
) -> int:
    """Append the vehicles of one cell that suit a request; return the new fill, −1 if no room."""
    slot = heads[_bucket_of(cell, len(heads))]
    while slot != NO_SLOT and filled >= 0:
        row = rows[slot]
        if row.cell == cell and row.time_ns >= here.oldest_ns:
            x_m, y_m, z_m = row.x_m - here.x_m, row.y_m - here.y_m, row.z_m - here.z_m
            if x_m * x_m + y_m * y_m + z_m * z_m <= search.chord_squared_m2:
                distance_m = _haversine_m(
                    here.latitude,
                    here.longitude,
                    here.cos_latitude,
                    row.latitude,
                    row.longitude,
                    row.cos_latitude,
                )
                if distance_m <= search.radius_m:
                    filled = _append(found, filled, request, slot, distance_m)
        slot = row.after
    return filled


@njit(cache=True, nogil=True)
def _append(found: Found, filled: int, request: int, slot: int, distance_m: float) -> int:
    """Append one found row; return the new fill, or −1 if there is no room."""
    if filled == len(found.slots):
        return -1
    found.request_rows[filled] = request
    found.slots[filled] = slot
    found.distances_m[filled] = distance_m
    return filled + 1


@njit(cache=True, nogil=True)
def _haversine_m(
    latitude: float,
    longitude: float,
    cos_latitude: float,
    other_latitude: float,
    other_longitude: float,
    other_cos_latitude: float,
) -> float:
    """Return the great-circle distance in metres of two places given in radians.

    The cosines of the latitudes are passed in because a place is compared many times.
    """
    half_latitude = math.sin((other_latitude - latitude) / 2.0)
    half_longitude = math.sin((other_longitude - longitude) / 2.0)
    haversine = (
        half_latitude * half_latitude
        + cos_latitude * other_cos_latitude * half_longitude * half_longitude
    )
    return 2.0 * EARTH_RADIUS_M * math.asin(min(1.0, math.sqrt(haversine)))


@njit(cache=True, nogil=True, inline="always")
def _pack_cell(x: int, y: int, z: int) -> int:
    """Return one number for the cell at x, y, z, each in [0, 2²¹)."""
    return (x << (2 * CELL_BITS)) | (y << CELL_BITS) | z


@njit(cache=True, nogil=True, inline="always")
def _bucket_of(cell: int, buckets: int) -> np.int64:
    """Return the chain, of a power of two, that a cell belongs to."""
    return np.int64(((np.uint64(cell) * _MIXER) >> np.uint64(32)) & np.uint64(buckets - 1))


@njit(cache=True, nogil=True, inline="always")
def _link(heads: Int32s, rows: Rows, slot: int, cell: int) -> None:
    """Put a vehicle that is in no chain at the front of its cell's chain."""
    bucket = _bucket_of(cell, len(heads))
    first = heads[bucket]
    rows[slot].cell = cell
    rows[slot].before = NO_SLOT
    rows[slot].after = first
    if first != NO_SLOT:
        rows[first].before = slot
    heads[bucket] = slot


@njit(cache=True, nogil=True, inline="always")
def _unlink(heads: Int32s, rows: Rows, slot: int) -> None:
    """Take a vehicle out of its chain."""
    before, after = rows[slot].before, rows[slot].after
    if after != NO_SLOT:
        rows[after].before = before
    if before != NO_SLOT:
        rows[before].after = after
    else:
        heads[_bucket_of(rows[slot].cell, len(heads))] = after
    rows[slot].cell = NO_CELL
