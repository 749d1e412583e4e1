"""The kernel that calls a user's compiled function for every row; see `CompiledFunction`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ....configs.errors import ExpressionError
from .arrays import Value, from_numpy, to_numpy
from .type_rules import ArrowType

if TYPE_CHECKING:
    from ..compiled_function import CompiledFunction

__all__ = ["argument_type", "call", "result_kind"]

_STORAGE = {
    pa.int8(): "i1",
    pa.int16(): "i2",
    pa.int32(): "i4",
    pa.int64(): "i8",
    pa.uint8(): "u1",
    pa.uint16(): "u2",
    pa.uint32(): "u4",
    pa.uint64(): "u8",
    pa.float32(): "f4",
    pa.float64(): "f8",
    pa.bool_(): "?",
    pa.date32(): "i4",
}


def call(*arguments: Any) -> Value:
    """Call a function for the rows in which no argument is null; arguments: values, function."""
    *values, function = arguments
    rows = next(len(one) for one in values if not isinstance(one, pa.Scalar))
    types = tuple(argument_type(function, value.type) for value in values)
    kind = result_kind(function, types)
    arrays, valid = [], np.ones(rows, np.bool_)
    for value in values:
        data, not_null = _raw(value, rows)
        arrays.append(data)
        if not_null is not None:
            valid &= not_null
    results = np.zeros(rows, _STORAGE[kind])
    if rows:
        function.loop(valid, results, *arrays)
    return from_numpy(results, None if valid.all() else valid, kind)


def argument_type(function: CompiledFunction, kind: ArrowType) -> Any:
    """Return numba's type for values of an Arrow type: times are integers of their unit.

    Raises:
        ExpressionError: there is none.
    """
    import numba

    storage = _storage(kind)
    if storage is None:
        msg = (
            f"{function.__name__} is compiled and takes no {kind}: compiled functions know numbers,"
            " booleans, dates and times"
        )
        raise ExpressionError(msg)
    return numba.from_dtype(np.dtype(storage))


def result_kind(function: CompiledFunction, types: tuple[Any, ...]) -> ArrowType:
    """Return the Arrow type of what a function returns for arguments of these types of numba's.

    Raises:
        ExpressionError: it does not compile for them, or returns no number or boolean.
    """
    made = function.result_type(types)
    for kind, storage in _STORAGE.items():
        if not pa.types.is_date(kind) and str(np.dtype(storage)) == _name_of(made):
            return kind
    kinds = ", ".join(map(str, types))
    msg = (
        f"{function.__name__} returns {made} for ({kinds}), which is no column: return one number"
        " or boolean in every case"
    )
    raise ExpressionError(msg)


def _name_of(made: Any) -> str:
    """Return numpy's name of a type of numba's; a literal is one of its type's values."""
    import numba

    return str(numba.types.unliteral(made)).replace("boolean", "bool")


def _storage(kind: ArrowType) -> str | None:
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return "i8"
    return _STORAGE.get(kind)


def _raw(value: Value, rows: int) -> tuple[Any, Any]:
    """Return values as the numbers that they are stored as, and where they are not null."""
    if isinstance(value, pa.Scalar):
        value = pa.repeat(value, rows)
    kind = value.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        value = value.cast(pa.int64())
    elif pa.types.is_date(kind):
        value = value.cast(pa.int32())
    elif pa.types.is_boolean(kind):
        value = value.cast(pa.uint8())
    data, valid = to_numpy(value, rows)
    return np.ascontiguousarray(data).view(_storage(kind)), valid
