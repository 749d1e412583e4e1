"""`VehicleMatcher`: keeps each vehicle's latest position and finds free vehicles near a request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ...operators.process import CoProcess, InstanceContext, Output
from ...state.keys import hash_keys, virtual_node_of
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import Field, Schema
from ..shared.columns import check_columns, event_times, frozen
from .matcher_kernels import NO_SLOT, Fixes, Found, Requests
from .matching import NO_FIXES, NO_REQUESTS, VehicleIndex
from .schemas import (
    BEST_COLUMNS,
    FLOAT64,
    POSITION_COLUMNS,
    REQUEST_COLUMNS,
    STRING,
    VEHICLES,
    without_nulls,
)
from .settings import RideHailingSettings

__all__ = ["VehicleMatcher"]

_POSITIONS, _REQUESTS = "positions", "requests"


class VehicleMatcher(CoProcess):
    """Left input: positions, keyed by vehicle. Right input: all requests, broadcast.

    A vehicle matches a request if its latest fix at the time of the request is free, at most
    `max_age_s` old and at most `radius_m` away. The operator emits request_id, request_time,
    vehicle_id and distance_m for each match. In addition, instance 0 emits one row per request
    with null vehicle and distance, so that a request without any match is not lost.

    One object serves all instances of a worker, since a search covers the vehicles of all of them.
    """

    per_worker: ClassVar[bool] = True

    def __init__(self, settings: RideHailingSettings | None = None) -> None:
        """Take radius and age from `settings`, or the defaults."""
        self._settings = settings or RideHailingSettings()

    def open(self, context: InstanceContext) -> None:
        """Start without vehicles, and load the compiled loops before the first row arrives."""
        self._context = context
        self._marks_requests = 0 in context.instances
        self._checked: set[Schema] = set()
        self._matching = VehicleIndex(self._settings.radius_m, self._settings.max_age_s)
        self._matching.warm_up()

    def on_left(self, batch: Batch, out: Output) -> None:
        """Keep the fixes."""
        fixes = self._fixes(batch)
        order = frozen(np.zeros(batch.num_rows, np.bool_))
        # Without requests there are no matches: the iteration only stores the fixes.
        list(self._matching.merge(fixes, NO_REQUESTS, order, mark_requests=False))

    def on_right(self, batch: Batch, out: Output) -> None:
        """Answer the requests from the fixes kept so far."""
        self._answer(NO_FIXES, batch, np.ones(batch.num_rows, np.bool_), out)

    def on_merged(
        self, left: Batch, right: Batch, order: npt.NDArray[np.bool_], out: Output
    ) -> None:
        """Process the rows of both inputs in event-time order, in one compiled loop."""
        if right.num_rows == 0:
            self.on_left(left, out)
        else:
            self._answer(self._fixes(left) if left.num_rows else NO_FIXES, right, order, out)

    def dump(self, nodes: npt.NDArray[np.int64]) -> Iterable[Batch]:
        """Return the vehicles with their latest fixes, rows of `VEHICLES`."""
        mine = virtual_node_of(self._matching.hashes(), self._context.virtual_nodes)
        slots = np.flatnonzero(np.isin(mine, nodes)).astype(np.int32)
        fields = self._matching.fields_of(slots, VEHICLES.names[1:])
        columns = [Column(STRING, *self._matching.ids_of(slots))]
        columns += [
            Column(one.type, kept) for one, kept in zip(VEHICLES.fields[1:], fields, strict=True)
        ]
        yield Batch(VEHICLES, columns, len(slots))

    def load(self, batch: Batch) -> None:
        """See `CoProcess.load`."""
        fields = {name: batch.column(name).data for name in VEHICLES.names[1:]}
        self._matching.put(self._slots_of(batch), fields)

    def _answer(
        self, fixes: Fixes, batch: Batch, order: npt.NDArray[np.bool_], out: Output
    ) -> None:
        requests = self._requests(batch)
        asked = batch.select(("request_id", "request_time"))
        for found in self._matching.merge(
            fixes, requests, frozen(order), mark_requests=self._marks_requests
        ):
            out.emit(self._candidates(asked, found))

    def _candidates(self, asked: Batch, found: Found) -> Batch:
        """Return the rows to emit for the matches, in memory that the batch owns."""
        rows = asked.take(found.request_rows)
        pool, offsets = self._matching.ids_of(found.slots)
        has_vehicle = found.slots != NO_SLOT if self._marks_requests else None
        distances_m = found.distances_m.copy()
        fields = (*asked.schema, Field("vehicle_id", STRING), Field("distance_m", FLOAT64))
        columns = [
            *rows.columns,
            Column(STRING, pool, offsets, has_vehicle),
            Column(FLOAT64, distances_m, None, has_vehicle),
        ]
        return Batch(
            Schema(fields).select(BEST_COLUMNS), columns, rows.num_rows, rows.times, rows.origin_ns
        )

    def _fixes(self, batch: Batch) -> Fixes:
        if batch.schema not in self._checked:
            check_columns(_POSITIONS, batch, POSITION_COLUMNS)
            self._checked.add(batch.schema)
        for name in POSITION_COLUMNS:
            without_nulls(_POSITIONS, batch, name)
        return Fixes(
            slots=self._slots_of(batch),
            latitudes_e5=frozen(batch.column("lat_e5").data),
            longitudes_e5=frozen(batch.column("lon_e5").data),
            occupied=frozen(batch.column("occupied").data),
            times_ns=frozen(event_times(_POSITIONS, batch)),
        )

    def _slots_of(self, batch: Batch) -> npt.NDArray[np.int32]:
        ids = batch.column("vehicle_id")
        assert ids.offsets is not None
        hashes, _ = hash_keys(batch, ("vehicle_id",))
        return self._matching.slots_of(frozen(ids.data), frozen(ids.offsets), hashes)

    def _requests(self, batch: Batch) -> Requests:
        if batch.schema not in self._checked:
            check_columns(_REQUESTS, batch, REQUEST_COLUMNS)
            self._checked.add(batch.schema)
        for name in REQUEST_COLUMNS:
            without_nulls(_REQUESTS, batch, name)
        return Requests(
            latitudes=frozen(batch.column("pickup_lat").data.astype(np.float64)),
            longitudes=frozen(batch.column("pickup_lon").data.astype(np.float64)),
            times_ns=frozen(event_times(_REQUESTS, batch)),
        )
