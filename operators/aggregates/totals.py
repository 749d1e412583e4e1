"""Counts, sums and means.

Integers and decimals are added in 128 bits, so a sum does not depend on the order of its rows, and
fails only if the total itself does not fit. Floats are added with Neumaier's compensation.
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...state.field_updates import FieldUpdate
from ...transport.wire.column import Column
from ...transport.wire.types import DataType
from .accumulator import (
    Accumulator,
    OutOfRange,
    Slots,
    SlottedRows,
    State,
    StateField,
    numbers_of,
    validity_of,
)
from .kernels import (
    add_decimals,
    add_floats,
    add_integers,
    count_rows,
    merge_counts,
    merge_floats,
    merge_totals,
)

__all__ = ["Count", "DecimalTotal", "FloatTotal", "IntegerTotal"]

_INT64 = DataType.parse("int64")
_FLOAT64 = DataType.parse("float64")
_COUNT = StateField("count", np.dtype(np.int64))
_ALL_VALID = np.empty(0, np.bool_)
_DIGITS_MAX = 38
_EXACT = decimal.Context(prec=100, rounding=decimal.ROUND_HALF_UP)


class Count(Accumulator):
    """The number of rows, or of values that are not null."""

    merges_exactly = True
    fields = (_COUNT,)
    output = _INT64

    def update(self, state: State, rows: SlottedRows) -> None:
        """See `Accumulator.update`."""
        validity = validity_of(rows.columns[0]) if rows.columns else _ALL_VALID
        count_rows(state["count"], rows.slots, validity)

    def field_update(self, columns: Sequence[Column]) -> FieldUpdate | None:
        """See `Accumulator.field_update`."""
        return FieldUpdate.of_count("count", validity_of(columns[0]) if columns else _ALL_VALID)

    def merge(self, state: State, slots: Slots, other: State, other_slots: Slots) -> None:
        """See `Accumulator.merge`."""
        merge_counts(state["count"], slots, other["count"], other_slots)

    def finish(self, state: State, slots: Slots) -> Column:
        """See `Accumulator.finish`."""
        return Column(_INT64, state["count"][slots])


class _Wide(Accumulator):
    """A total of 128 bits."""

    merges_exactly = True
    fields = (
        StateField("low", np.dtype(np.uint64)),
        StateField("high", np.dtype(np.int64)),
        StateField("left", np.dtype(np.uint8)),
        _COUNT,
    )

    def merge(self, state: State, slots: Slots, other: State, other_slots: Slots) -> None:
        """See `Accumulator.merge`."""
        merge_totals(*self.arrays(state), slots, *self.arrays(other), other_slots)


class IntegerTotal(_Wide):
    """The sum of integers as an int64, or their mean as a float64."""

    def __init__(self, mean: bool) -> None:
        self._mean = mean
        self.output = _FLOAT64 if mean else _INT64

    def update(self, state: State, rows: SlottedRows) -> None:
        """See `Accumulator.update`."""
        (values,) = rows.columns
        fields = (state["low"], state["high"], state["count"])
        add_integers(*fields, rows.slots, values.data, validity_of(values))

    def field_update(self, columns: Sequence[Column]) -> FieldUpdate | None:
        """See `Accumulator.field_update`."""
        (values,) = columns
        return FieldUpdate.of_sum(("count", "low", "high"), values.data, validity_of(values))

    def finish(self, state: State, slots: Slots) -> Column:
        """See `Accumulator.finish`."""
        low, high, count = (state[name][slots] for name in ("low", "high", "count"))
        valid = count > 0
        small = low.view(np.int64)
        fits = high == small >> 63
        if self._mean:
            total = np.where(fits, small.astype(np.float64), high * 2.0**64 + low)
            return Column(_FLOAT64, total / np.maximum(count, 1), validity=_nulls(valid))
        if not fits.all():
            row = int(np.argmin(fits))
            reason = f"the sum {_integer(low[row], high[row])} does not fit into an int64"
            raise OutOfRange(row, f"{reason}: cast the column to decimal(38, 0) before")
        return Column(_INT64, small, validity=_nulls(valid))


class DecimalTotal(_Wide):
    """The sum or mean of decimals, of the types that Spark gives them."""

    def __init__(self, kind: DataType, mean: bool) -> None:
        assert kind.precision is not None and kind.scale is not None
        self._scale = kind.scale
        self._mean = mean
        digits, scale = (4, 4) if mean else (10, 0)
        precision = min(_DIGITS_MAX, kind.precision + digits)
        self.output = DataType.parse(
            f"decimal128({precision}, {min(_DIGITS_MAX, kind.scale + scale)})"
        )

    def update(self, state: State, rows: SlottedRows) -> None:
        """See `Accumulator.update`."""
        (values,) = rows.columns
        halves = values.data.view(np.int64).reshape(-1, 2)
        add_decimals(*self.arrays(state), rows.slots, halves, validity_of(values))

    def finish(self, state: State, slots: Slots) -> Column:
        """See `Accumulator.finish`."""
        low, high, left, count = (field[slots] for field in self.arrays(state))
        valid = count > 0
        numbers = [self._result(*one) for one in zip(low, high, left, count, strict=True)]
        for row, number in enumerate(numbers):
            if number is None:
                reason = f"the total does not fit into a {self.output}"
                raise OutOfRange(row, f"{reason}: cast the column to double before")
        data = np.empty((len(numbers), 2), np.int64)
        for row, number in enumerate(numbers):
            assert number is not None
            data[row] = np.frombuffer(number.to_bytes(16, "little", signed=True), np.int64)
        return Column(self.output, data.reshape(-1).view("V16"), validity=_nulls(valid))

    def _result(self, low: Any, high: Any, left: Any, count: Any) -> int | None:
        """Return a result as an integer at the output's scale; None if it does not fit."""
        if left:
            return None
        total = _integer(low, high)
        if self._mean and count:
            assert self.output.scale is not None
            shift = self.output.scale - self._scale
            quotient = _EXACT.divide(decimal.Decimal(total).scaleb(shift, _EXACT), int(count))
            total = int(quotient.to_integral_value(decimal.ROUND_HALF_UP, _EXACT))
        assert self.output.precision is not None
        return total if abs(total) < 10**self.output.precision else None


class FloatTotal(Accumulator):
    """The sum or mean of floats."""

    fields = (
        StateField("total", np.dtype(np.float64)),
        StateField("lost", np.dtype(np.float64)),
        _COUNT,
    )
    output = _FLOAT64

    def __init__(self, mean: bool) -> None:
        self._mean = mean

    def update(self, state: State, rows: SlottedRows) -> None:
        """See `Accumulator.update`."""
        (values,) = rows.columns
        add_floats(*self.arrays(state), rows.slots, numbers_of(values), validity_of(values))

    def field_update(self, columns: Sequence[Column]) -> FieldUpdate | None:
        """See `Accumulator.field_update`."""
        (values,) = columns
        return FieldUpdate.of_sum(("count", "total", "lost"), values.data, validity_of(values))

    def merge(self, state: State, slots: Slots, other: State, other_slots: Slots) -> None:
        """See `Accumulator.merge`."""
        merge_floats(*self.arrays(state), slots, *self.arrays(other), other_slots)

    def finish(self, state: State, slots: Slots) -> Column:
        """See `Accumulator.finish`."""
        total, lost, count = (field[slots] for field in self.arrays(state))
        # Once a total is infinite or NaN, so is what was lost, or NaN instead.
        total = np.where(np.isfinite(total), total + lost, total)
        if self._mean:
            total = total / np.maximum(count, 1)
        return Column(_FLOAT64, total, validity=_nulls(count > 0))


def _integer(low: Any, high: Any) -> int:
    return (int(high) << 64) | int(low)


def _nulls(valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_] | None:
    return None if valid.all() else valid
