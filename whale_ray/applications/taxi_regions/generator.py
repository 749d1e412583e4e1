"""A seeded generator of trips in New York: generated, not real.

The thesis has the trips of 2009 to 2015; here their distributions are chosen to be like those that
are known of them. Half of the trips are of each vendor; distances are log-normal with a median of
1.8 miles, 13 % of them longer than 5; three quarters of the pickups are normal around Midtown, the
others uniform over the box of the regions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..shared.generated_file import write_stream
from .regions import NEW_YORK
from .settings import TaxiSettings

__all__ = ["TRIPS", "generate", "tables"]

TRIPS = pa.schema(
    {
        "vendor_id": pa.string(),
        "pickup_time": pa.timestamp("us"),
        "dropoff_time": pa.timestamp("us"),
        "passenger_count": pa.int64(),
        "trip_distance": pa.float64(),
        "pickup_longitude": pa.float64(),
        "pickup_latitude": pa.float64(),
        "dropoff_longitude": pa.float64(),
        "dropoff_latitude": pa.float64(),
        "fare_amount": pa.float64(),
    }
)
"""Distances are in miles, fares in dollars, times those of the event."""

_CHUNK_TRIPS = 500_000
_START_US = 1_356_998_400_000_000  # 2013-01-01 00:00:00 UTC
_VENDORS = pa.array(["VTS", "CMT"])
_DISTANCE_LOG_MILES = (0.588, 0.9)
_MIDTOWN, _SPREAD = (-73.98, 40.755), (0.02, 0.025)
_AROUND_MIDTOWN = 0.75
_MILES_PER_HOUR = 12
_DEGREES_PER_MILE = 1 / 69


def tables(settings: TaxiSettings) -> Iterator[pa.Table]:
    """Yield the trips, `TRIPS`, in the order of pickup, in parts."""
    for chunk, start in enumerate(range(0, settings.trips, _CHUNK_TRIPS)):
        count = min(_CHUNK_TRIPS, settings.trips - start)
        draws = np.random.default_rng((settings.seed, chunk))
        numbers = np.arange(start, start + count, dtype=np.int64)
        miles = np.round(draws.lognormal(*_DISTANCE_LOG_MILES, count), 2)
        times_us = _START_US + numbers * 1_000_000 // settings.trips_per_s
        central = draws.random(count) < _AROUND_MIDTOWN
        longitude, latitude = (
            np.where(central, draws.normal(middle, spread, count), draws.uniform(low, high, count))
            for middle, spread, low, high in zip(
                _MIDTOWN,
                _SPREAD,
                (NEW_YORK.west, NEW_YORK.south),
                (NEW_YORK.east, NEW_YORK.north),
                strict=True,
            )
        )
        angle = draws.uniform(0, 2 * np.pi, count)
        yield pa.table(
            {
                "vendor_id": _VENDORS.take(draws.integers(0, 2, count)),
                "pickup_time": times_us,
                "dropoff_time": times_us + (miles / _MILES_PER_HOUR * 3.6e9).astype(np.int64),
                "passenger_count": draws.integers(1, 7, count),
                "trip_distance": miles,
                "pickup_longitude": longitude,
                "pickup_latitude": latitude,
                "dropoff_longitude": longitude + miles * _DEGREES_PER_MILE * np.cos(angle),
                "dropoff_latitude": latitude + miles * _DEGREES_PER_MILE * np.sin(angle),
                "fare_amount": np.round(2.5 + 2.5 * miles, 2),
            },
            schema=TRIPS,
        )


def generate(folder: str | Path, settings: TaxiSettings | None = None) -> Path:
    """Write trips.parquet into a folder, which is made if need be; return the file's path.

    Memory: 500,000 trips. A file of that name is replaced.
    """
    return write_stream(folder, "trips", TRIPS, tables(settings or TaxiSettings()))
