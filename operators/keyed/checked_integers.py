"""Arithmetic of a compiled `on_row` that notes when whole numbers leave their type.

Python's integers have no bounds. numba's wrap, and it even tells LLVM that signed ones never do, so
that `a * 2 > 0` becomes `a > 0`. So sums, differences and products of signed integers are computed
here: they set `left[0]` if they leave 64 bits. All other operands are computed as numba does.

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


def _note(context: Any, builder: Any, left: Any, beyond: Any) -> None:
    """Emit `left[0] |= beyond`."""
    array = context.make_array(_FLAG)(context, builder, left)
    flag = builder.or_(builder.load(array.data), builder.zext(beyond, _BYTE))
    builder.store(flag, array.data)


def _is_signed(kind: Any) -> bool:
    """Whether numba computes with it in signed 64 bits."""
    if isinstance(kind, types.Integer):
        return bool(kind.signed or kind.bitwidth < 64)
    return isinstance(kind, types.Boolean)


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
        if _is_signed(types.unliteral(first)) and _is_signed(types.unliteral(second)):
            return types.int64(types.int64, types.int64, left), checked
        found = _as_numba_types(typing, function, first, second)

        def as_numba_does(context: Any, builder: Any, _: Any, args: Any) -> Any:
            return context.get_function(function, found)(builder, args[:2])

        return found.return_type(*found.args, left), as_numba_does

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
    found = _as_numba_types(typing, operator.neg, value)

    def as_numba_does(context: Any, builder: Any, _: Any, args: Any) -> Any:
        return context.get_function(operator.neg, found)(builder, args[:1])

    return found.return_type(*found.args, left), as_numba_does


def _fitted(_: Any, array: Any, value: Any, left: Any) -> Any:
    """Return a value that is about to be written into an array; note that it does not fit."""
    kind, target = types.unliteral(value), array.dtype
    if not isinstance(kind, types.Integer) or not isinstance(target, types.Integer):
        return kind(array, kind, left), lambda _context, _builder, _sig, args: args[1]

    def checked(context: Any, builder: Any, _: Any, args: Any) -> Any:
        given = args[1]
        written = context.cast(builder, given, kind, target)
        beyond = builder.icmp_unsigned("!=", context.cast(builder, written, target, kind), given)
        if kind.signed and not target.signed:
            beyond = builder.or_(beyond, cgutils.is_neg_int(builder, given))
        if target.signed and not kind.signed:
            beyond = builder.or_(beyond, cgutils.is_neg_int(builder, written))
        _note(context, builder, args[2], beyond)
        return given

    return kind(array, kind, left), checked


CHECKED = {
    "_added": _checked(operator.add, "add"),
    "_subtracted": _checked(operator.sub, "sub"),
    "_multiplied": _checked(operator.mul, "mul"),
    "_negated": intrinsic(_negated),
    "_fitted": intrinsic(_fitted),
}
"""What a translated loop calls, by name."""
