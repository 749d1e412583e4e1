"""`BestVehicle`: chooses the nearest of the vehicles that match a request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ...operators.process import InstanceContext, Output, Process
from ...state.keys import hash_keys
from ...transport.wire.batch import Batch
from ...transport.wire.types import Schema
from ..shared.columns import event_times, frozen
from .best_kernels import best_rows, requests_of
from .byte_keys import index_size, key_bytes
from .schemas import BEST_COLUMNS

__all__ = ["BestVehicle"]

_CANDIDATES = "candidates"
_NO_CANDIDATES = Batch.empty(
    Schema.of(request_id="int32", vehicle_id="string", distance_m="float64")
).with_times(np.empty(0, np.int64))


class BestVehicle(Process):
    """Reads the matches, keyed by request, in event-time order; emits one row per request.

    The nearest vehicle is chosen. Distances are compared in whole millimetres (half a millimetre
    is rounded up); among equal distances the smallest vehicle id by its bytes is chosen. For a
    request without a match, vehicle and distance are null. All rows of a request have the same
    event time, so they arrive in one call, and the operator needs no state.
    """

    per_worker: ClassVar[bool] = True

    def __init__(self, schema: Schema | None = None) -> None:
        """Take the output columns, if known, for an output without rows."""
        self.schema = schema

    def open(self, context: InstanceContext) -> None:
        """Load the compiled loop before the first row arrives."""
        self._choose(_NO_CANDIDATES)

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Emit the best row of every request in the batch."""
        out.emit(batch.select(BEST_COLUMNS).take(self._choose(batch)))

    def dump(self, nodes: npt.NDArray[np.int64]) -> Iterable[Batch]:
        """Return nothing: it keeps nothing."""
        return ()

    def load(self, batch: Batch) -> None:
        """Take nothing."""

    def _choose(self, batch: Batch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        vehicles, distances = batch.column("vehicle_id"), batch.column("distance_m")
        validity = vehicles.validity
        has_vehicle = np.ones(batch.num_rows, np.bool_) if validity is None else validity
        hashes, _ = hash_keys(batch, ("request_id",))
        requests, count = requests_of(
            np.zeros(index_size(batch.num_rows), np.int32),
            hashes,
            *key_bytes(batch.column("request_id")),
            frozen(event_times(_CANDIDATES, batch)),
        )
        rows: np.ndarray[tuple[int], np.dtype[np.int64]] = best_rows(
            requests, count, *key_bytes(vehicles), frozen(has_vehicle), frozen(distances.data)
        )
        return rows
