"""Collecting the values of a group, bounded."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
from operator import itemgetter
from typing import Any

import numpy as np

from ...transport.wire.column import Column
from ...transport.wire.types import DataType
from .accumulator import (
    Accumulator,
    OutOfRange,
    Slots,
    SlottedRows,
    State,
    StateField,
    merged_objects,
)

__all__ = ["CollectList"]

_TEXT = DataType.parse("string")


class CollectList(Accumulator):
    """The values that are not null as a JSON array, ordered by event time, then by arrival."""

    fields = (StateField("values", np.dtype(object)),)
    output = _TEXT

    def __init__(self, limit: int) -> None:
        self._limit = limit

    def update(self, state: State, rows: SlottedRows) -> None:
        """See `Accumulator.update`."""
        slots, values = rows.slots.tolist(), rows.columns[0].to_pylist()
        times = [0] * len(slots) if rows.times is None else rows.times.tolist()
        lists = state["values"]
        for row, (slot, time_ns, value) in enumerate(zip(slots, times, values, strict=True)):
            if value is None:
                continue
            if lists[slot] is None:
                lists[slot] = []
            lists[slot].append((time_ns, value))
            self._check(lists[slot], row)

    def merge(self, state: State, slots: Slots, other: State, other_slots: Slots) -> None:
        """See `Accumulator.merge`."""
        lists = state["values"]
        for pair, slot, values in merged_objects(other["values"], slots, other_slots):
            lists[slot] = (lists[slot] or []) + values
            self._check(lists[slot], pair)

    def finish(self, state: State, slots: Slots) -> Column:
        """See `Accumulator.finish`."""
        texts = []
        for values in state["values"][slots]:
            ordered = sorted(values or [], key=itemgetter(0))
            texts.append(f"[{','.join(_json(value) for _, value in ordered)}]")
        return Column.of(texts, _TEXT)

    def object_bytes(self, state: State, slots: Slots) -> int:
        """See `Accumulator.object_bytes`."""
        lists = [one for one in state["values"][slots] if one]
        return sum(len(one) * (96 + one[0][1].__sizeof__()) for one in lists)

    def _check(self, values: list[Any], row: int) -> None:
        if len(values) > self._limit:
            reason = f"it has more values than its limit of {self._limit}"
            raise OutOfRange(
                row, f"{reason}: pass a higher limit=, or use an aggregate of bounded size"
            )


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
