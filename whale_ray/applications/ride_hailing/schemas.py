"""The columns of the application's inputs and results, by name and type."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ...configs.errors import BadRowError, InputError
from ...transport.wire.batch import Batch
from ...transport.wire.types import DataType

__all__ = [
    "BEST_COLUMNS",
    "FLOAT64",
    "POSITION_COLUMNS",
    "REQUEST_COLUMNS",
    "STRING",
    "check_columns",
    "event_times",
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


def check_columns(side: str, batch: Batch, expected: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse a batch that lacks a column or has one of another type.

    Raises:
        InputError: names the column, its type and the remedy.
    """
    for name, types in expected.items():
        if name not in batch.schema:
            msg = (
                f"{side} have no column {name!r}: they have {', '.join(batch.schema.names)};"
                " rename one with select(col('…').alias(…))"
            )
            raise InputError(msg)
        found = batch.schema.field(name).type.name
        if types and found not in types:
            msg = (
                f"{side}: column {name!r} is {found} where {types[0]} is needed:"
                f" cast it with with_column({name!r}, col({name!r}).cast({types[0]!r}))"
            )
            raise InputError(msg)


def event_times(side: str, batch: Batch) -> npt.NDArray[np.int64]:
    """Return the rows' event times, int64 ns since the epoch, shape (num_rows,).

    Raises:
        InputError: the rows have none.
    """
    times = batch.times
    if times is None:
        msg = f"{side} have no event times: give their source event_time='column'"
        raise InputError(msg)
    return times


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
