"""The columns of the application's inputs and results, by name and type."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...configs.errors import BadRowError
from ...transport.wire.batch import Batch
from ...transport.wire.types import DataType

__all__ = [
    "BEST_COLUMNS",
    "FLOAT64",
    "POSITION_COLUMNS",
    "REQUEST_COLUMNS",
    "STRING",
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
#: Of the candidates and of the result alike.
BEST_COLUMNS = ("request_id", "request_time", "vehicle_id", "distance_m")


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
