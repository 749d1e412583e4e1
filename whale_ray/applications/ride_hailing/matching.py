"""Matching over plain arrays: calls the compiled loops, and grows their memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..shared.columns import frozen
from .byte_keys import Bytes
from .matcher_kernels import (
    NO_SLOT,
    Fixes,
    Found,
    Requests,
    gather_ids,
    id_offsets,
    merge_rows,
    relink,
)
from .slot_kernels import slots_of
from .vehicles import Int32s, grown, new_vehicles, search_within

__all__ = ["NO_FIXES", "NO_REQUESTS", "VehicleIndex"]

_VEHICLES_AT_START = 1024
_ID_BYTES_AT_START = 16 * _VEHICLES_AT_START
_FOUND_ROWS_AT_START = 16_384


class VehicleIndex:
    """The latest positions of all vehicles seen so far, with searches by distance.

    Memory: about 150 bytes per vehicle, and one buffer for matches, which grows only if a single
    request has more matches than it holds.
    """

    def __init__(self, radius_m: float, max_age_s: float) -> None:
        """Start without vehicles.

        Args:
            radius_m: greatest haversine distance of a vehicle, metres, inclusive.
            max_age_s: greatest age of a vehicle's last fix, seconds, inclusive.
        """
        self._search = search_within(radius_m, max_age_s)
        self._vehicles = new_vehicles(_VEHICLES_AT_START, _ID_BYTES_AT_START)
        self._found = _room_for(_FOUND_ROWS_AT_START)

    @property
    def vehicle_count(self) -> int:
        """Vehicles seen so far."""
        return int(self._vehicles.counts[0])

    def warm_up(self) -> None:
        """Load or compile the loops, without a row."""
        nothing = frozen(np.empty(0, np.uint8))
        self.slots_of(nothing, frozen(np.zeros(1, np.int32)), np.empty(0, np.uint64))
        list(self.merge(NO_FIXES, NO_REQUESTS, _NO_ORDER, mark_requests=False))
        self.ids_of(np.empty(0, np.int32))

    def slots_of(self, pool: Bytes, offsets: Int32s, hashes: npt.NDArray[np.uint64]) -> Int32s:
        """Return the slot of each vehicle, making room for those not seen before.

        Args:
            pool: UTF-8 bytes of the ids.
            offsets: shape (rows + 1,); id i is `pool[offsets[i] : offsets[i + 1]]`.
            hashes: of the ids, shape (rows,).

        Returns:
            shape (rows,)
        """
        slots = np.empty(len(offsets) - 1, np.int32)
        row = 0
        while True:
            of = self._vehicles
            row = slots_of(
                *(of.counts, of.slots_by_hash, of.rows, of.ids),
                *(pool, offsets, hashes, row, slots),
            )
            if row == len(slots):
                return frozen(slots)
            id_bytes = int(offsets[row + 1]) - int(offsets[row])
            self._vehicles = grown(of, 1, id_bytes)

    def merge(
        self,
        fixes: Fixes,
        requests: Requests,
        order: npt.NDArray[np.bool_],
        *,
        mark_requests: bool,
    ) -> Iterator[Found]:
        """Process rows of both streams in event-time order and yield the matches of the requests.

        Args:
            fixes: rows of the positions.
            requests: rows of the requests.
            order: shape (fixes + requests,): False = the next fix, True = the next request.
            mark_requests: whether each request also yields one row with slot −1.

        Yields:
            Views, valid until the next step; one of them holds all rows of a request.
        """
        cursor = np.zeros(3, np.int64)
        while True:
            filled = merge_rows(
                self._vehicles.heads,
                self._vehicles.rows,
                self._search,
                fixes,
                requests,
                order,
                cursor,
                self._found,
                mark_requests,
            )
            if filled:
                rows, slots, distances_m = self._found
                yield Found(rows[:filled], slots[:filled], distances_m[:filled])
            if cursor[0] == len(order):
                return
            if not filled:
                self._found = _room_for(2 * len(self._found.slots))

    def ids_of(self, slots: Int32s) -> tuple[Bytes, Int32s]:
        """Return the ids of vehicles: UTF-8 pool and offsets, shape (len(slots) + 1,).

        In numpy's memory: a batch in that of numba would be copied where it waits for room.
        """
        offsets = np.empty(len(slots) + 1, np.int32)
        id_offsets(self._vehicles.rows, slots, offsets)
        pool = np.empty(offsets[-1], np.uint8)
        gather_ids(self._vehicles.rows, self._vehicles.ids, slots, offsets, pool)
        return pool, offsets

    def hashes(self) -> npt.NDArray[np.uint64]:
        """Return the hash of each vehicle's id, uint64 (vehicles,)."""
        return np.ascontiguousarray(self._vehicles.rows["hash"][: self.vehicle_count])

    def fields_of(self, slots: Int32s, names: Sequence[str]) -> list[npt.NDArray[Any]]:
        """Return fields of the records of vehicles, by the names in `VEHICLE`."""
        return [np.ascontiguousarray(self._vehicles.rows[name][slots]) for name in names]

    def put(self, slots: Int32s, fields: Mapping[str, npt.NDArray[Any]]) -> None:
        """Write fields of the records of vehicles, the cell included, and build the grid anew."""
        for name, values in fields.items():
            self._vehicles.rows[name][slots] = values
        self._vehicles.heads[:] = NO_SLOT
        relink(self.vehicle_count, self._vehicles.heads, self._vehicles.rows)


NO_FIXES = Fixes(*(frozen(np.empty(0, kind)) for kind in ("i4", "i4", "i4", "?", "i8")))
NO_REQUESTS = Requests(*(frozen(np.empty(0, kind)) for kind in ("f8", "f8", "i8")))
_NO_ORDER = frozen(np.empty(0, np.bool_))


def _room_for(rows: int) -> Found:
    return Found(
        request_rows=np.empty(rows, np.int64),
        slots=np.empty(rows, np.int32),
        distances_m=np.empty(rows, np.float64),
    )
