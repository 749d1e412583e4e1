"""Coercion: the implicit casts by which the operands of a kernel get one type."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ....configs.errors import ExpressionError
from .arrays import Value, from_numpy, to_numpy
from .casts import cast_to, number_to_float
from .timestamp_casts import date_to_timestamp, in_unit
from .type_rules import ArrowType, as_decimal, common_type, is_date, is_text

__all__ = ["coerced", "coerced_literal", "literal_scalar", "unified"]


def literal_scalar(constant: Any) -> Value:
    """Return a Python or numpy value as an Arrow scalar of the type that `lit` documents.

    The usual literals are laid out by hand: `pa.scalar` loads pandas, if it is installed, which
    every process of a job would pay with 0.2 s and 45 MB.
    """
    if type(constant) is int:
        return _integer(constant)
    if type(constant) is float:
        return _number(constant, np.float64, pa.float64())
    if type(constant) is str and constant.isascii():
        text = constant.encode()
        offsets = np.array([0, len(text)], np.int32)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), 1, buffers)[0]
    if isinstance(constant, datetime.datetime) and constant.tzinfo is not None:
        return pa.scalar(constant, pa.timestamp("us", "UTC"))
    return pa.scalar(constant)


def _integer(constant: int) -> Value:
    if -(2**31) <= constant < 2**31:
        return _number(constant, np.int32, pa.int32())
    if -(2**63) <= constant < 2**63:
        return _number(constant, np.int64, pa.int64())
    return pa.scalar(constant, pa.int64())  # raises the error of a number that does not fit


def _number(constant: float, dtype: npt.DTypeLike, kind: pa.DataType) -> Value:
    return pa.Array.from_buffers(kind, 1, [None, pa.py_buffer(np.array([constant], dtype))])[0]


def unified(values: Sequence[Value], *, to_compare: bool = False) -> list[Value]:
    """Cast values to their common type; `to_compare` as for `coerced`.

    A literal takes part with the type that the columns suggest: text beside a date or timestamp is
    read as one, an integer beside an unsigned column takes its type. As in Spark, an integer to
    compare with a decimal counts only the digits that it has, else all digits of its type.

    Raises:
        ExpressionError: there is no common type; the message names two and the remedy.
    """
    columns = [value.type for value in values if not isinstance(value, pa.Scalar)]
    target = common_type(columns)
    if to_compare or not pa.types.is_decimal(target):
        values = [coerced_literal(value, target) for value in values]
    target = common_type([target, *(v.type for v in values if isinstance(v, pa.Scalar))])
    return [coerced(value, target, to_compare=to_compare) for value in values]


def coerced(value: Value, target: ArrowType, *, to_compare: bool = False) -> Value:
    """Cast a value to a type that `common_type` returned for it.

    A number may be rounded to a float; everything else keeps its value, or is null if it does not
    fit: a time of the year 9999 in nanoseconds. `to_compare`: such a time becomes the first or last
    one that fits, which is as far from all others.
    """
    if value.type == target:
        return value
    if pa.types.is_floating(target):
        return number_to_float(value, target)
    is_time = pa.types.is_timestamp(target) or pa.types.is_duration(target)
    if is_time and not pa.types.is_null(value.type):
        if isinstance(value, pa.Scalar):
            return _as_time(pa.repeat(value, 1), target, to_compare)[0]
        return _as_time(value, target, to_compare)
    try:
        return pc.cast(value, target)
    except pa.ArrowInvalid:  # a decimal has more digits than the common type
        if isinstance(value, pa.Scalar):
            return cast_to(pa.repeat(value, 1), target)[0]
        return cast_to(value, target)


def _as_time(value: Value, target: ArrowType, to_compare: bool) -> Value:
    if is_date(value.type):
        made = date_to_timestamp(value, target)
    else:
        made = pc.cast(in_unit(value, target.unit), target)
    if not to_compare or made.null_count == value.null_count:
        return made
    steps = pc.cast(value, pa.int32() if pa.types.is_date32(value.type) else pa.int64())
    numbers, valid = to_numpy(steps, len(value))
    ends = np.where(numbers < 0, np.int64(-(2**63)), np.int64(2**63 - 1))
    return pc.coalesce(made, pc.cast(from_numpy(ends, valid), target))


def coerced_literal(value: Value, beside: ArrowType) -> Value:
    """Return a literal in the type that its neighbour suggests, anything else as it is.

    Raises:
        ExpressionError: the literal is text beside a date or timestamp, and cannot be read as one.
    """
    if not isinstance(value, pa.Scalar) or not value.is_valid:
        return value
    if is_text(value.type) and (is_date(beside) or pa.types.is_timestamp(beside)):
        return _time_literal(value, beside)
    if pa.types.is_integer(value.type):
        if pa.types.is_unsigned_integer(beside) and beside.bit_width == 64 and value.as_py() >= 0:
            return value.cast(beside)
        if pa.types.is_decimal(beside):
            digits = max(1, len(str(abs(value.as_py()))))
            return value.cast(as_decimal(value.type)).cast(pa.decimal128(digits, 0))
    return value


def _time_literal(text: Value, beside: ArrowType) -> Value:
    # Beside a date a text with a time of day is read as a timestamp: it must not lose its hours.
    has_time = is_date(beside) and len(text.as_py().strip()) > len("2000-01-01")
    kind = pa.timestamp("us") if has_time else beside
    read = cast_to(pa.repeat(text, 1), kind)[0]
    if not read.is_valid and pa.types.is_timestamp(kind):  # the year 9999 beside nanoseconds
        read = cast_to(pa.repeat(text, 1), pa.timestamp("us", kind.tz))[0]
    if not read.is_valid:
        msg = f"{text.as_py()!r} is no date or time: write it as '2008-05-17 12:00:00'"
        raise ExpressionError(msg)
    return read
