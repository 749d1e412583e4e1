"""Emitters of `kernels.arithmetic`: integers wrap, dividing by zero gives null.

numba tells LLVM that signed integers never overflow, which then takes `a * 2 > 0` for `a > 0`. It
computes narrower ones in 64 bits, where they do not; those of 64 bits are computed as unsigned.
"""

from __future__ import annotations

import pyarrow as pa

from .code import Code, LoopWriter, NotCompilable, both
from .conversions import converted, numbers, unified

__all__ = [
    "add",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "divide",
    "multiply",
    "negative",
    "remainder",
    "subtract",
]


def add(loop: LoopWriter, left: Code, right: Code) -> Code:
    """Add numbers."""
    return _computed(loop, left, "+", right)


def subtract(loop: LoopWriter, left: Code, right: Code) -> Code:
    """Subtract numbers."""
    return _computed(loop, left, "-", right)


def multiply(loop: LoopWriter, left: Code, right: Code) -> Code:
    """Multiply numbers."""
    return _computed(loop, left, "*", right)


def divide(loop: LoopWriter, left: Code, right: Code) -> Code:
    """Divide numbers as float64; by zero: null."""
    numbers(loop, left, right)  # refuses others; their common type may be float32, which rounds
    left, right = (converted(loop, code, pa.float64()) for code in (left, right))
    usable = loop.let(f"{right.value} != 0.0")
    divisor = loop.let(f"{right.value} if {usable} else 1.0")
    return loop.typed(
        pa.float64(), f"{left.value} / {divisor}", both(left.valid, right.valid, usable)
    )


def remainder(loop: LoopWriter, left: Code, right: Code) -> Code:
    """Return the remainder of a division, with the dividend's sign; by zero: null."""
    left, right = numbers(loop, left, right)
    kind = left.kind
    usable = loop.let(f"{right.value} != 0")
    valid = both(left.valid, right.valid, usable)
    if pa.types.is_floating(kind):
        divisor = loop.typed(kind, f"{right.value} if {usable} else 1.0", None)
        return loop.typed(kind, f"np.fmod({left.value}, {divisor.value})", valid)
    # The least integer by -1 overflows in the processor: by 1 the remainder is 0, too.
    safe = usable
    if pa.types.is_signed_integer(kind):
        safe = loop.let(f"{usable} & ({right.value} != -1)")
    divisor = loop.typed(kind, f"{right.value} if {safe} else 1", None)
    helper = loop.helper("remainder_of")
    return loop.typed(kind, f"{helper}({left.value}, {divisor.value})", valid)


def negative(loop: LoopWriter, value: Code) -> Code:
    """Change the sign."""
    kind = value.kind
    if not (pa.types.is_signed_integer(kind) or pa.types.is_floating(kind)):
        msg = f"negating {kind}"
        raise NotCompilable(msg)
    text = f"-{value.value}"
    if pa.types.is_int64(kind):
        text = f"np.uint64(0) - np.uint64({value.value})"
    return loop.typed(kind, text, value.valid)


def bitwise_and(loop: LoopWriter, left: Code, right: Code) -> Code:
    """Combine bits with and."""
    return _bits(loop, left, "&", right)


def bitwise_or(loop: LoopWriter, left: Code, right: Code) -> Code:
    """Combine bits with or."""
    return _bits(loop, left, "|", right)


def bitwise_xor(loop: LoopWriter, left: Code, right: Code) -> Code:
    """Combine bits with exclusive or."""
    return _bits(loop, left, "^", right)


def _computed(loop: LoopWriter, left: Code, symbol: str, right: Code) -> Code:
    left, right = numbers(loop, left, right)
    a, b = left.value, right.value
    if pa.types.is_int64(left.kind):
        a, b = f"np.uint64({a})", f"np.uint64({b})"
    return loop.typed(left.kind, f"{a} {symbol} {b}", both(left.valid, right.valid))


def _bits(loop: LoopWriter, left: Code, symbol: str, right: Code) -> Code:
    if not (pa.types.is_integer(left.kind) and pa.types.is_integer(right.kind)):
        msg = f"bit operations on {left.kind} and {right.kind}"
        raise NotCompilable(msg)
    left, right = unified(loop, [left, right])
    text = f"{left.value} {symbol} {right.value}"
    return loop.typed(left.kind, text, both(left.valid, right.valid))
