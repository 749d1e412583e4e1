"""Emitters of `kernels.numbers`: those whose results do not depend on a library of mathematics."""

from __future__ import annotations

import pyarrow as pa

from ..kernels.type_rules import is_number
from .arithmetic import negative
from .casts import float_to_integer
from .code import Code, LoopWriter, NotCompilable, constructor_of
from .conversions import converted

__all__ = ["abs", "ceil", "floor", "shiftleft", "shiftright", "sqrt"]

# The names are PySpark's and shadow some of Python's.


def abs(loop: LoopWriter, value: Code) -> Code:
    """Return the absolute value; the least integer stays negative, as in Java."""
    _check(value)
    kind = value.kind
    if pa.types.is_floating(kind):
        return loop.typed(kind, f"np.abs({value.value})", value.valid)
    if pa.types.is_unsigned_integer(kind):
        return value
    opposite = negative(loop, value).value
    return loop.typed(kind, f"{opposite} if {value.value} < 0 else {value.value}", value.valid)


def sqrt(loop: LoopWriter, value: Code) -> Code:
    """Return the square root."""
    _check(value)
    value = converted(loop, value, pa.float64())
    return loop.typed(pa.float64(), f"np.sqrt({value.value})", value.valid)


def floor(loop: LoopWriter, value: Code) -> Code:
    """Round down."""
    return _whole(loop, value, "np.floor")


def ceil(loop: LoopWriter, value: Code) -> Code:
    """Round up."""
    return _whole(loop, value, "np.ceil")


def shiftleft(loop: LoopWriter, value: Code, bits: int) -> Code:
    """Shift left."""
    return _shift(loop, value, "<<", bits)


def shiftright(loop: LoopWriter, value: Code, bits: int) -> Code:
    """Shift right, keeping the sign."""
    return _shift(loop, value, ">>", bits)


def _check(value: Code) -> None:
    if not is_number(value.kind):
        msg = f"arithmetic with {value.kind}"
        raise NotCompilable(msg)
    constructor_of(value.kind)


def _whole(loop: LoopWriter, value: Code, function: str) -> Code:
    _check(value)
    kind = value.kind
    if pa.types.is_integer(kind):
        return value if pa.types.is_uint64(kind) else converted(loop, value, pa.int64())
    rounded = loop.typed(kind, f"{function}({value.value})", value.valid)
    return float_to_integer(loop, rounded, pa.int64())


def _shift(loop: LoopWriter, value: Code, symbol: str, bits: int) -> Code:
    if not pa.types.is_integer(value.kind):
        msg = f"bit operations on {value.kind}"
        raise NotCompilable(msg)
    kind = value.kind if value.kind.bit_width >= 32 else pa.int32()
    value = converted(loop, value, kind)
    by, text = bits % kind.bit_width, value.value
    if symbol == "<<":  # the bits that go beyond 64 are none of a signed integer's
        text = f"np.uint64({text})"
    return loop.typed(kind, f"{text} {symbol} np.uint64({by})", value.valid)
