"""Arithmetic of a compiled `on_row` with Python's numbers, that notes where it cannot have them.

Python's integers have no bounds. numba's wrap, and it even tells LLVM that signed ones never do, so
that `a * 2 > 0` becomes `a > 0`. So what signed integers become is computed here: `left[0]` is set
if a result leaves 64 bits, or if Python would raise or give a fraction, as for `1 << -1`,
`2 ** -1` and `int(nan)`. All other operands are computed as numba does.

Columns and handles are read as 64 bits, since `~` of a uint8 and products of float32 are others.

The functions can be called from compiled code only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

__all__ = ["CHECKED"]

_FLAG = types.Array(types.uint8, 1, "C")
_BYTE = ir.IntType(8)
_WHOLE = ir.IntType(64)
_NOTHING = ir.Constant(_WHOLE, 0)
_LEAST = ir.Constant(_WHOLE, -(1 << 63))
_MINUS_ONE = ir.Constant(_WHOLE, -1)
_MOST_BITS = ir.Constant(_WHOLE, 63)
_EXACT = {types.float64: 1 << 53, types.float32: 1 << 24, types.float16: 1 << 11}
"""Up to here every whole number is one of the type."""


def _note(context: Any, builder: Any, left: Any, beyond: Any) -> None:
    """Emit `left[0] |= beyond`."""
    array = context.make_array(_FLAG)(context, builder, left)
    flag = builder.or_(builder.load(array.data), builder.zext(beyond, _BYTE))
    builder.store(flag, array.data)


def _is_signed(kind: Any) -> bool:
    """Whether numba computes with it in signed 64 bits."""
    if isinstance(kind, types.IntEnumMember):
        kind = kind.dtype
    if isinstance(kind, types.Integer):
        return bool(kind.signed or kind.bitwidth < 64)
    return isinstance(kind, types.Boolean)


def _are_signed(*kinds: Any) -> bool:
    return all(_is_signed(types.unliteral(kind)) for kind in kinds)


def _as_numba_types(typing: Any, function: Any, *kinds: Any) -> Any:
    """Return the signature of an operator for operands of some types."""
    found = typing.resolve_function_type(function, kinds, {})
    if found is None:
        msg = f"no {function.__name__} of {' and '.join(map(str, kinds))}"
        raise TypingError(msg)
    return found


def _checked(function: Callable[[Any, Any], Any], operation: str) -> Any:
    """Return an intrinsic `(first, second, left)` for an operator and LLVM's name of it."""

    def checked(context: Any, builder: Any, _: Any, args: Any) -> Any:
        first, second, left = args
        both = getattr(builder, f"s{operation}_with_overflow")(first, second)
        _note(context, builder, left, builder.extract_value(both, 1))
        return builder.extract_value(both, 0)

    def typed(typing: Any, first: Any, second: Any, left: Any) -> Any:
        if _are_signed(first, second):
            return types.int64(types.int64, types.int64, left), checked
        return _as_numba_does(typing, function, first, second, left)

    return intrinsic(typed)


def _as_numba_does(
    typing: Any, function: Any, first: Any, second: Any, left: Any, beyond: Any = None
) -> Any:
    """Return what an intrinsic returns that computes as numba, and notes where `beyond` says so.

    It takes the operands as they are, not as `function` does: of two ways to compute for the same
    types numba would take the one that it has met last, also in loops that it compiles later.
    """
    found = _as_numba_types(typing, function, first, second)
    given = types.unliteral(first), types.unliteral(second)

    def compute(context: Any, builder: Any, _: Any, args: Any) -> Any:
        if beyond is not None:
            _note(context, builder, args[2], beyond(builder, *args[:2]))
        operands = [
            context.cast(builder, *one) for one in zip(args[:2], given, found.args, strict=True)
        ]
        return context.get_function(function, found)(builder, operands)

    return found.return_type(*given, left), compute


def _divided(typing: Any, first: Any, second: Any, left: Any) -> Any:
    """Divide and round down; the least whole number by -1 has no result."""

    def beyond(builder: Any, first: Any, second: Any) -> Any:
        return builder.and_(
            builder.icmp_signed("==", first, _LEAST), builder.icmp_signed("==", second, _MINUS_ONE)
        )

    signed = _are_signed(first, second)
    if signed:
        first, second = types.int64, types.int64
    return _as_numba_does(
        typing, operator.floordiv, first, second, left, beyond if signed else None
    )


def _powered(typing: Any, first: Any, second: Any, left: Any) -> Any:
    """Raise to a power; a whole number to a negative one is a fraction.

    Powers of fractions are the C library's, as Python's are: numba would multiply.
    """
    if not _are_signed(first, second):
        if any(isinstance(types.unliteral(one), types.Float) for one in (first, second)):
            first, second = types.float64, types.float64
        return _as_numba_does(typing, operator.pow, first, second, left)
    signature = types.int64(types.int64, types.int64, left)
    return signature, lambda context, builder, _, args: context.compile_internal(
        builder, _power, signature, args
    )


def _shifted(function: Callable[[Any, Any], Any]) -> Any:
    """Return an intrinsic `(value, bits, left)` that shifts, also by 64 bits or more."""

    def shifted(context: Any, builder: Any, _: Any, args: Any) -> Any:
        value, bits, left = args
        _note(context, builder, left, cgutils.is_neg_int(builder, bits))
        is_wide = builder.icmp_unsigned(">", bits, _MOST_BITS)
        few = builder.select(is_wide, _MOST_BITS, bits)
        if function is operator.rshift:
            return builder.ashr(value, few)
        moved = builder.select(is_wide, _NOTHING, builder.shl(value, few))
        _note(context, builder, left, builder.icmp_signed("!=", builder.ashr(moved, few), value))
        return moved

    def typed(typing: Any, value: Any, bits: Any, left: Any) -> Any:
        if _are_signed(value, bits):
            return types.int64(types.int64, types.int64, left), shifted
        return _as_numba_does(typing, function, value, bits, left)

    return intrinsic(typed)


def _negated(typing: Any, value: Any, left: Any) -> Any:
    """Negate a number."""
    if _is_signed(types.unliteral(value)):

        def checked(context: Any, builder: Any, _: Any, args: Any) -> Any:
            zero = ir.Constant(args[0].type, 0)
            both = builder.ssub_with_overflow(zero, args[0])
            _note(context, builder, args[1], builder.extract_value(both, 1))
            return builder.extract_value(both, 0)

        return types.int64(types.int64, left), checked
    found, given = _as_numba_types(typing, operator.neg, value), types.unliteral(value)

    def as_numba_does(context: Any, builder: Any, _: Any, args: Any) -> Any:
        operand = context.cast(builder, args[0], given, found.args[0])
        return context.get_function(operator.neg, found)(builder, [operand])

    return found.return_type(given, left), as_numba_does


def _read(_: Any, value: Any) -> Any:
    """Return a number as Python has it: a whole one of 64 bits, or a double."""
    kind = types.unliteral(value)
    wide = kind
    if isinstance(kind, types.Integer) and kind.bitwidth < 64:
        wide = types.int64
    elif isinstance(kind, types.Float):
        wide = types.float64
    return wide(kind), lambda context, builder, _, args: context.cast(builder, args[0], kind, wide)


def _negatable(_: Any, value: Any, left: Any) -> Any:
    """Return the argument of `abs`; note that its negative leaves 64 bits."""
    kind = types.unliteral(value)
    if not _is_signed(kind):
        return kind(kind, left), lambda _context, _builder, _sig, args: args[0]

    def checked(context: Any, builder: Any, _: Any, args: Any) -> Any:
        _note(context, builder, args[1], builder.icmp_signed("==", args[0], _LEAST))
        return args[0]

    return types.int64(types.int64, left), checked


def _whole(_: Any, value: Any, left: Any) -> Any:
    """Return the argument of `int`, `round` and so on; note that it is no number of 64 bits."""
    kind = types.unliteral(value)

    def checked(context: Any, builder: Any, _: Any, args: Any) -> Any:
        if isinstance(kind, types.Float):
            _note(context, builder, args[1], _is_outside(builder, args[0], 64, signed=True))
        return args[0]

    return kind(kind, left), checked


def _is_outside(builder: Any, value: Any, bits: int, *, signed: bool) -> Any:
    """Return whether a float, cut to a whole number, leaves so many bits; NaN does."""
    least, end = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    low = builder.fcmp_ordered(">=", value, ir.Constant(value.type, float(least)))
    high = builder.fcmp_ordered("<", value, ir.Constant(value.type, float(end)))
    return builder.not_(builder.and_(low, high))


def _fitted(_: Any, array: Any, value: Any, left: Any) -> Any:
    """Return a value that is about to be written into an array; note that it does not fit."""
    kind, target = types.unliteral(value), array.dtype
    beyond = _misfit(kind, target)
    if beyond is None:
        return kind(array, kind, left), lambda _context, _builder, _sig, args: args[1]

    def checked(context: Any, builder: Any, _: Any, args: Any) -> Any:
        _note(context, builder, args[2], beyond(context, builder, args[1]))
        return args[1]

    return kind(array, kind, left), checked


def _misfit(kind: Any, target: Any) -> Any:
    """Return what emits whether a value of a type changes in another; None if none does."""

    def leaves(context: Any, builder: Any, given: Any) -> Any:
        written = context.cast(builder, given, kind, target)
        beyond = builder.icmp_unsigned("!=", context.cast(builder, written, target, kind), given)
        if kind.signed and not target.signed:
            beyond = builder.or_(beyond, cgutils.is_neg_int(builder, given))
        if target.signed and not kind.signed:
            beyond = builder.or_(beyond, cgutils.is_neg_int(builder, written))
        return beyond

    def is_fraction(_: Any, builder: Any, given: Any) -> Any:
        trunc = builder.module.declare_intrinsic("llvm.trunc", [given.type])
        cut = builder.fcmp_unordered("!=", builder.call(trunc, [given]), given)
        outside = _is_outside(builder, given, target.bitwidth, signed=target.signed)
        return builder.or_(cut, outside)

    def is_rounded(_: Any, builder: Any, given: Any) -> Any:
        exact = _EXACT[target]
        above = builder.icmp_signed(">", given, ir.Constant(given.type, exact))
        below = builder.icmp_signed("<", given, ir.Constant(given.type, -exact))
        return builder.or_(above, below)

    def is_no_bool(context: Any, builder: Any, given: Any) -> Any:
        written = context.cast(builder, given, kind, target)
        back = context.cast(builder, written, target, kind)
        if isinstance(kind, types.Float):
            return builder.fcmp_unordered("!=", back, given)
        return builder.icmp_unsigned("!=", back, given)

    if isinstance(target, types.Boolean) and isinstance(kind, types.Integer | types.Float):
        return is_no_bool
    if isinstance(target, types.Integer) and isinstance(kind, types.Integer):
        return leaves
    if isinstance(target, types.Integer) and isinstance(kind, types.Float):
        return is_fraction
    if isinstance(target, types.Float) and isinstance(kind, types.Integer) and kind.signed:
        return is_rounded
    return None


_multiplied = _checked(operator.mul, "mul")


def _power(base: int, exponent: int, left: Any) -> int:
    """Raise a whole number to a power; compiled into loops."""
    if exponent < 0:
        left[0] = 1
    product = 1
    while exponent > 0:
        if exponent & 1:
            product = _multiplied(product, base, left)
        exponent >>= 1
        if exponent:
            base = _multiplied(base, base, left)
    return product


CHECKED = {
    "_added": _checked(operator.add, "add"),
    "_subtracted": _checked(operator.sub, "sub"),
    "_multiplied": _multiplied,
    "_negated": intrinsic(_negated),
    "_divided": intrinsic(_divided),
    "_powered": intrinsic(_powered),
    "_shifted_left": _shifted(operator.lshift),
    "_shifted_right": _shifted(operator.rshift),
    "_read": intrinsic(_read),
    "_negatable": intrinsic(_negatable),
    "_whole": intrinsic(_whole),
    "_fitted": intrinsic(_fitted),
}
"""What a translated loop calls, by name."""
