"""Collecting the values of a group, bounded."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ...transport.wire.column import Column
from ...transport.wire.column_rows import rows_of_columns
from ...transport.wire.types import DataType
from .accumulator import (
    Accumulator,
    OutOfRange,
    SetField,
    Slots,
    SlottedRows,
    State,
)

__all__ = ["CollectList"]

_TEXT, _INT64 = DataType.parse("string"), DataType.parse("int64")


class CollectList(Accumulator):
    """The values that are not null as a JSON array, ordered by event time, then by arrival.

    Args:
        kind: the type of the values.
        limit: how many of them a group has at most.
    """

    output = _TEXT

    def __init__(self, kind: DataType, limit: int) -> None:
        self._kind, self._limit = kind, limit
        self.sets = (SetField("values", (_INT64, _kept_type(kind)), is_list=True),)

    def update(self, state: State, rows: SlottedRows) -> None:
        """See `Accumulator.update`."""
        (values,) = rows.columns
        times = np.zeros(len(rows.slots), np.int64) if rows.times is None else rows.times
        kept: Sequence[Column] = [Column(_INT64, times), _as_kept(values)]
        slots, valid = rows.slots, None
        if values.validity is not None:
            valid = np.flatnonzero(values.validity)
            slots, kept = slots[valid], rows_of_columns(kept, valid)
        lists: Any = state["values"]
        lists.append(slots, kept)
        self._check(lists, slots, valid)

    def merge(self, state: State, slots: Slots, other: State, other_slots: Slots) -> None:
        """See `Accumulator.merge`."""
        lists: Any = state["values"]
        lists.merge(slots, other["values"], other_slots)
        self._check(lists, slots, None)

    def finish(self, state: State, slots: Slots) -> Column:
        """See `Accumulator.finish`."""
        lists: Any = state["values"]
        rows, (numbers, times, kept) = lists.listed(slots)
        order = np.lexsort((numbers.data, times.data, rows))
        (values,) = rows_of_columns([_as_given(kept, self._kind)], order)
        texts = [_json(value) for value in values.to_pylist()]
        ends = np.cumsum(lists.sizes(slots)).tolist()
        return Column.of(
            [f"[{','.join(texts[start:end])}]" for start, end in pairwise([0, *ends])], _TEXT
        )

    def _check(self, lists: Any, slots: Slots, rows: Slots | None) -> None:
        """Raise OutOfRange if a list is too long; `rows` are those of the slots, if not all."""
        too_many = lists.sizes(slots) > self._limit
        if too_many.any():
            row = int(np.argmax(too_many))
            reason = f"it has more values than its limit of {self._limit}"
            raise OutOfRange(
                row if rows is None else int(rows[row]),
                f"{reason}: pass a higher limit=, or use an aggregate of bounded size",
            )


def _kept_type(kind: DataType) -> DataType:
    """Return the type of which values are kept: of floats the bits, as sets take -0.0 for 0.0."""
    if kind.kind == "fixed" and kind.storage.kind == "f":
        return DataType.parse(f"int{8 * kind.width}")
    return kind


def _as_kept(column: Column) -> Column:
    kept = _kept_type(column.type)
    if kept == column.type:
        return Column(kept, column.data, column.offsets)
    return Column(kept, column.data.view(kept.storage))


def _as_given(column: Column, kind: DataType) -> Column:
    if column.type == kind:
        return column
    return Column(kind, column.data.view(kind.storage))


def _json(value: Any) -> str:
    """Return a value as Spark's `to_json` writes it."""
    if isinstance(value, float):
        if math.isfinite(value):
            return json.dumps(value)
        return f'"{"NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}"'
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return json.dumps(base64.b64encode(value).decode())
    if isinstance(value, datetime.date | datetime.time):
        return json.dumps(value.isoformat())
    if isinstance(value, datetime.timedelta):
        return json.dumps(str(value))
    return json.dumps(value, ensure_ascii=False)
