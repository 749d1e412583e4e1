"""From an aggregate and the types of its inputs to the accumulator that computes it."""

from __future__ import annotations

from ...configs.errors import ExpressionError
from ...transport.wire.types import DataType
from .accumulator import Accumulator
from .aggregate import Aggregate
from .distinct import ApproximateDistinct, ExactDistinct
from .lists import CollectList
from .moments import Moments
from .percentiles import ApproximatePercentile
from .picks import Pick, is_compiled
from .totals import Count, DecimalTotal, FloatTotal, IntegerTotal
from .user_accumulator import UserAccumulator

__all__ = ["accumulator_of"]

_MOMENTS = {
    # name: (sample, root)
    "var_samp": (True, False),
    "var_pop": (False, False),
    "stddev_samp": (True, True),
    "stddev_pop": (False, True),
}
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
_FLOATS = ("float16", "float32", "float64")


def accumulator_of(aggregate: Aggregate, types: tuple[DataType, ...]) -> Accumulator:
    """Return the accumulator of an aggregate whose inputs have these types.

    Raises:
        ExpressionError: the function does not take them.
    """
    function = aggregate.function
    if not isinstance(function, str):
        return UserAccumulator(function)
    match function:
        case "count":
            return Count()
        case "sum" | "avg":
            return _total(aggregate, types[0], mean=function == "avg")
        case "min" | "max":
            return Pick(types[0], None, greatest=function == "max", later=False)
        case "min_by" | "max_by":
            return Pick(types[1], types[0], greatest=function == "max_by", later=True)
        case "first" | "last":
            later = function == "last"
            ignored = bool(aggregate.options)
            return Pick(None, types[0], greatest=later, later=later, ignore_nulls=ignored)
        case "count_distinct":
            return ExactDistinct(types)
        case "approx_count_distinct":
            return ApproximateDistinct(types[0], *aggregate.options)
        case "percentile_approx":
            if not is_compiled(types[0]) or types[0].family == "bool":
                raise _refused(aggregate, types[0], "integers, floats, dates and times")
            return ApproximatePercentile(types[0], *aggregate.options)
        case "collect_list":
            return CollectList(types[0], *aggregate.options)
        case name if name in _MOMENTS:
            if types[0].family not in (*_INTEGERS, *_FLOATS):
                raise _refused(aggregate, types[0], "integers and floats")
            return Moments(*_MOMENTS[name])
    msg = f"there is no aggregate {function!r}"
    raise ExpressionError(msg)


def _total(aggregate: Aggregate, kind: DataType, mean: bool) -> Accumulator:
    if kind.family in _INTEGERS:
        return IntegerTotal(mean)
    if kind.family in _FLOATS:
        return FloatTotal(mean)
    if kind.family == "decimal128":
        return DecimalTotal(kind, mean)
    raise _refused(aggregate, kind, "integers, floats and decimals")


def _refused(aggregate: Aggregate, kind: DataType, taken: str) -> ExpressionError:
    if kind.family == "uint64" and "integers" in taken:
        taken = taken.replace("integers", "integers up to 63 bits")
    is_decimal = kind.family == "decimal128"
    remedy = "cast it to 'double'" if is_decimal else "cast it"
    return ExpressionError(
        f"{aggregate} of a column of type {kind}: {aggregate.function} takes {taken}; {remedy}"
    )
