"""Refuses times that texts cannot hold: those outside the years 0 to 9999.

ISO 8601 has years of four digits, and sources read no others. Arrow would write something else
instead: a remark, a fifth digit or, with a zone, another year.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...configs.errors import OutputError

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST_DAY, _END_DAY = -719_528, 2_932_897
"""Days since 1970 of 0000-01-01 and 10000-01-01."""
_PER_DAY = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000}


def refuse_unwritable_times(record: pa.RecordBatch, name: str) -> None:
    """Raise `OutputError` naming a column with a time outside the years 0 to 9999 in UTC.

    Args:
        record: the rows that are to be written as text.
        name: the format, for the message.
    """
    import pyarrow.compute as pc

    for field, column in zip(record.schema, record.columns, strict=True):
        per_day = _per_day(field.type)
        if per_day is None or column.null_count == len(column):
            continue
        ends = pc.min_max(column)
        for end in (ends["min"], ends["max"]):
            if not _FIRST_DAY * per_day <= end.value < _END_DAY * per_day:
                msg = (
                    f"{name} cannot hold column {field.name!r}: a {field.type} of {end.value} lies "
                    "outside the years 0 to 9999; correct it, cast the column to 'string', or "
                    "write Parquet"
                )
                raise OutputError(msg)


def _per_day(kind: pa.DataType) -> int | None:
    """Return how many units a day has; None if all values of a type can be written."""
    import pyarrow as pa

    if pa.types.is_date32(kind):
        return 1
    if pa.types.is_date64(kind):
        return _PER_DAY["ms"]
    return _PER_DAY.get(kind.unit) if pa.types.is_timestamp(kind) else None
