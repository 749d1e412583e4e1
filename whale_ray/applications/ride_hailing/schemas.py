"""The columns of the application's inputs and results, by name and type."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...configs.errors import BadRowError
from ...transport.wire.batch import Batch
from ...transport.wire.types import DataType, Schema

__all__ = [
    "BEST_COLUMNS",
    "FLOAT64",
    "POSITION_COLUMNS",
    "REQUEST_COLUMNS",
    "STRING",
    "VEHICLES",
    "answers_schema",
    "without_nulls",
]

STRING = DataType.parse("string")
FLOAT64 = DataType.parse("float64")

#: Column → the types it may have, the first one being usual; () = any.
POSITION_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "vehicle_id": ("string", "large_string"),
    "lat_e5": ("int32",),
    "lon_e5": ("int32",),
    "occupied": ("bool",),
}
REQUEST_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "request_id": (),
    "request_time": (),
    "pickup_lat": ("float32", "float64"),
    "pickup_lon": ("float32", "float64"),
}
#: What a matcher keeps of a vehicle when its state is moved: fields of `vehicles.VEHICLE`.
VEHICLES = Schema.of(
    vehicle_id=STRING,
    x_m=FLOAT64,
    y_m=FLOAT64,
    z_m=FLOAT64,
    latitude=FLOAT64,
    longitude=FLOAT64,
    cos_latitude=FLOAT64,
    time_ns="int64",
    cell="int64",
)
#: Of the candidates and of the result alike.
BEST_COLUMNS = ("request_id", "request_time", "vehicle_id", "distance_m")


def answers_schema(requests: Schema | None) -> Schema | None:
    """Return the types of `BEST_COLUMNS`, of those of the requests; None if these are not known."""
    if requests is None or not {"request_id", "request_time"} <= set(requests.names):
        return None
    return Schema.of(
        request_id=requests.field("request_id").type,
        request_time=requests.field("request_time").type,
        vehicle_id=STRING,
        distance_m=FLOAT64,
    )


def without_nulls(side: str, batch: Batch, name: str) -> None:
    """Refuse a null in a column.

    Raises:
        BadRowError: names the column and shows the row.
    """
    column = batch.column(name)
    if column.validity is None or column.validity.all():
        return
    row = int(np.argmin(column.validity))
    msg = (
        f"{side}: column {name!r} is null in {batch.preview(row)}:"
        f" filter such rows out with col({name!r}).is_not_null()"
    )
    raise BadRowError(msg)
