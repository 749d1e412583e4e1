"""The application's topology.

::

    trips ─ long ones of a vendor ─ by region and window ─ busy ─ out
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import functions
from ...api.topology import Topology
from ...operators.expressions.expression import col
from ...operators.windows.specifications import window as time_window
from .regions import NEW_YORK, CityBox

if TYPE_CHECKING:
    from ...api.topology import Stream
    from ...operators.sinks.base import Sink
    from ...operators.sources.base import Source
    from ...operators.windows.durations import Duration

__all__ = ["APPLICATION", "LONG_MILES", "READS", "VENDOR", "build", "count_trips"]

APPLICATION = "taxi-regions"

READS = ("vendor_id", "pickup_time", "trip_distance", "pickup_longitude", "pickup_latitude")
VENDOR, LONG_MILES = "VTS", 5
"""Whose trips count, and beyond which distance."""


def build(
    trips: Source,
    sink: Sink,
    *,
    window: Duration = "2 seconds",
    box: CityBox = NEW_YORK,
    parallelism: int | None = None,
) -> Topology:
    """Return the topology that counts long trips of one vendor per region and window.

    Args:
        trips: `READS`, in the order of pickup_time.
        sink: receives window_start, window_end, region, trips, mean_distance (in miles).
        window: the length of the windows; the thesis has 2 s.
        box: the regions; trips from elsewhere are left out.
        parallelism: the number of instances; None is one per worker.

    Raises:
        InputError: the input is missing, or lacks a column.
    """
    topology = Topology(APPLICATION)
    stream = topology.source(trips, id="trips", event_time="pickup_time")
    count_trips(stream, window=window, box=box, parallelism=parallelism).sink(sink, id="out")
    return topology


def count_trips(
    trips: Stream,
    *,
    window: Duration = "2 seconds",
    box: CityBox = NEW_YORK,
    parallelism: int | None = None,
) -> Stream:
    """Return the long trips per region and window; arguments and columns as `build`."""
    is_long = (col("vendor_id") == VENDOR) & (col("trip_distance") > LONG_MILES)
    long_ones = trips.filter(is_long, id="long").filter(
        box.holds("pickup_longitude", "pickup_latitude"), id="inside"
    )
    regions = long_ones.select(
        "pickup_time",
        "trip_distance",
        box.region("pickup_longitude", "pickup_latitude").alias("region"),
    )
    return regions.group_by(time_window("pickup_time", window), "region").agg(
        functions.count().alias("trips"),
        functions.avg("trip_distance").alias("mean_distance"),
        id="busy",
        parallelism=parallelism,
    )
