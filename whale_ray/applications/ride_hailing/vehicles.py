"""The state of a matching instance: the latest fix of every vehicle, and a grid of the free ones.

A vehicle gets a slot number at its first fix and keeps it. Each free vehicle is linked into a cell
of a three-dimensional grid of cubes around the earth. The side of a cube is at least the search
radius, so all vehicles within the radius of a place are in the cube of that place or in one of its
26 neighbours. Only cubes that the earth's surface passes through hold vehicles. Unlike a grid of
latitudes and longitudes, it is exact everywhere, at the poles and across the antimeridian too.

::

    slots_by_hash  hash of vehicle id → slot + 1, or 0; a hash index, see `byte_keys`
    heads          hash of cell → first slot of its chain or −1; cells may share: compare `cell`
    rows           slot → VEHICLE, a record of 96 bytes
    ids            the bytes of all ids, one after another
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from .byte_keys import Bytes, index_size
from .matcher_kernels import CELL_BITS, EARTH_RADIUS_M, NO_CELL, NO_SLOT, Search, relink
from .slot_kernels import reindex

__all__ = ["VEHICLE", "Vehicles", "grown", "new_vehicles", "search_within"]

#: So that a coordinate within the sphere's cube, 0 … 2R, has a cell number that fits.
_SMALLEST_CELL_M = 8.0
assert 2 * EARTH_RADIUS_M / _SMALLEST_CELL_M < 1 << CELL_BITS
#: Added to a chord before comparing, so that rounding never rejects a place at the radius.
_CHORD_SLACK_M = 1e-3

#: The last fix of one vehicle; place and cell are those of its last *free* fix.
VEHICLE = np.dtype(
    [
        ("x_m", np.float64),  # from the corner of the cube around the sphere
        ("y_m", np.float64),
        ("z_m", np.float64),
        ("latitude", np.float64),  # radians
        ("longitude", np.float64),  # radians
        ("cos_latitude", np.float64),
        ("time_ns", np.int64),  # event time, since 1970
        ("cell", np.int64),  # packed x | y | z, 21 bits each; −1: occupied, in no chain
        ("hash", np.uint64),  # of the id
        ("id_start", np.int64),  # the id is ids[id_start:id_stop]
        ("id_stop", np.int64),
        ("after", np.int32),  # next slot of the chain, or −1
        ("before", np.int32),
    ],
    align=True,
)

Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
#: Shape (capacity,), dtype `VEHICLE`.
Rows: TypeAlias = npt.NDArray[Any]


class Vehicles(NamedTuple):
    """The vehicles of one matching object, changed in place by the kernels."""

    counts: Int64s
    """Shape (2,): vehicles known, bytes of `ids` in use."""
    slots_by_hash: Int32s
    heads: Int32s
    rows: Rows
    ids: Bytes


def search_within(radius_m: float, max_age_s: float) -> Search:
    """Return the parameters of a search by distance in metres and age of the fix in seconds."""
    half_angle = min(radius_m / (2.0 * EARTH_RADIUS_M), math.pi / 2.0)
    chord_m = 2.0 * EARTH_RADIUS_M * math.sin(half_angle) * (1.0 + 1e-9) + _CHORD_SLACK_M
    cell_m = max(chord_m * (1.0 + 1e-6), _SMALLEST_CELL_M)
    return Search(float(radius_m), chord_m * chord_m, cell_m, round(max_age_s * 1e9))


def new_vehicles(capacity: int, id_bytes: int) -> Vehicles:
    """Return empty arrays for `capacity` vehicles, whose ids have `id_bytes` bytes in all."""
    rows = np.zeros(capacity, VEHICLE)
    rows["cell"] = NO_CELL
    return Vehicles(
        counts=np.zeros(2, np.int64),
        slots_by_hash=np.zeros(index_size(capacity), np.int32),
        heads=np.full(index_size(capacity), NO_SLOT, np.int32),
        rows=rows,
        ids=np.zeros(id_bytes, np.uint8),
    )


def grown(vehicles: Vehicles, vehicles_more: int, id_bytes_more: int) -> Vehicles:
    """Copy the vehicles into larger arrays; a size that does not suffice is doubled."""
    known, bytes_used = (int(count) for count in vehicles.counts)
    capacity, id_bytes = len(vehicles.rows), len(vehicles.ids)
    while known + vehicles_more > capacity:
        capacity *= 2
    while bytes_used + id_bytes_more > id_bytes:
        id_bytes *= 2
    larger = new_vehicles(capacity, id_bytes)
    larger.counts[:] = vehicles.counts
    larger.ids[:bytes_used] = vehicles.ids[:bytes_used]
    larger.rows[:known] = vehicles.rows[:known]
    reindex(known, larger.slots_by_hash, larger.rows)
    relink(known, larger.heads, larger.rows)
    return larger
