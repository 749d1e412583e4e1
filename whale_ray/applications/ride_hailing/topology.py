"""The application's topology.

::

    positions ─ valid ─ by vehicle_id ─┐
                                       match × 16 ─ by request_id ─ best × 4 ─ out
    requests  ────────── to all ───────┘
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ...api.topology import Topology
from ...operators.expressions.expression import col
from ..shared.preparing import OnBadRows
from .best import BestVehicle
from .matcher import VehicleMatcher
from .schemas import answers_schema
from .settings import RideHailingSettings

if TYPE_CHECKING:
    from ...operators.sinks.base import Sink
    from ...operators.sources.base import Source

__all__ = ["APPLICATION", "build"]

APPLICATION = "ride-hailing"

_LATITUDE_E5_MAX = 90 * 100_000
_LONGITUDE_E5_MAX = 180 * 100_000


def build(
    positions: Source,
    requests: Source,
    sink: Sink,
    settings: RideHailingSettings | None = None,
    *,
    on_bad_rows: OnBadRows = "fail",
) -> Topology:
    """Return the topology that finds the best free vehicle for every request.

    Args:
        positions: vehicle_id, event_time, lat_e5, lon_e5, occupied; sorted by event_time.
        requests: request_id, request_time, pickup_lat, pickup_lon; sorted by request_time.
        sink: receives request_id, request_time, vehicle_id, distance_m, one row per request.
        settings: radius, age and numbers of instances.
        on_bad_rows: what the sources do with rows that cannot be read or have no time.

    Raises:
        InputError: an input is missing or lacks a column.
    """
    settings = settings or RideHailingSettings()
    topology = Topology(APPLICATION)
    vehicles = topology.source(
        positions, id="positions", event_time="event_time", on_bad_rows=on_bad_rows
    )
    passengers = topology.source(
        requests, id="requests", event_time="request_time", on_bad_rows=on_bad_rows
    )
    valid = vehicles.filter(
        col("lat_e5").between(-_LATITUDE_E5_MAX, _LATITUDE_E5_MAX)
        & col("lon_e5").between(-_LONGITUDE_E5_MAX, _LONGITUDE_E5_MAX),
        id="valid",
    )
    matches = (
        valid.key_by("vehicle_id")
        .connect(passengers.broadcast())
        .process(
            partial(VehicleMatcher, settings), id="match", parallelism=settings.matching_instances
        )
    )
    best = matches.key_by("request_id").process(
        partial(BestVehicle, answers_schema(requests.schema())),
        id="best",
        parallelism=settings.best_instances,
    )
    best.sink(sink, id="out")
    return topology
