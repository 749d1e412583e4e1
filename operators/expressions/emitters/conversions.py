"""Implicit casts in a compiled loop, by the rules of `kernels.coercion`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from ..kernels.coercion import coerced, coerced_literal
from ..kernels.type_rules import common_type, is_number, is_text, number_type
from .code import Code, LoopWriter, NotCompilable, constructor_of

if TYPE_CHECKING:
    from ..kernels.type_rules import ArrowType

__all__ = ["beside", "converted", "numbers", "unified"]


def converted(loop: LoopWriter, code: Code, target: ArrowType, *, to_compare: bool = False) -> Code:
    """Return a value in a type that `common_type` or `number_type` returned for it.

    `to_compare` as for `kernels.coercion.coerced`.
    """
    if code.kind == target:
        return code
    if code.constant is not None:
        return loop.constant(coerced(code.constant, target, to_compare=to_compare))
    if pa.types.is_null(code.kind):
        return loop.constant(pa.scalar(None, target))
    if is_text(code.kind) and is_text(target):
        return code
    if not (is_number(code.kind) and is_number(target)):
        msg = f"converting {code.kind} to {target}"
        raise NotCompilable(msg)
    constructor_of(code.kind)
    return loop.typed(target, code.value, code.valid)


def beside(loop: LoopWriter, code: Code, kind: ArrowType) -> Code:
    """Return a literal in the type that its neighbour suggests, anything else as it is."""
    if code.constant is None:
        return code
    return loop.constant(coerced_literal(code.constant, kind))


def unified(loop: LoopWriter, codes: Sequence[Code], *, to_compare: bool = False) -> list[Code]:
    """Return values in their common type; see `kernels.coercion.unified`."""
    target = common_type([code.kind for code in codes if code.constant is None])
    codes = [beside(loop, code, target) for code in codes]
    literals = [code.kind for code in codes if code.constant is not None]
    target = common_type([target, *literals])
    return [converted(loop, code, target, to_compare=to_compare) for code in codes]


def numbers(loop: LoopWriter, left: Code, right: Code) -> tuple[Code, Code]:
    """Return both operands in the type in which arithmetic computes; see `kernels.arithmetic`."""
    for code in (left, right):
        if pa.types.is_decimal(code.kind) or not (
            is_number(code.kind) or pa.types.is_null(code.kind)
        ):
            msg = f"arithmetic with {code.kind}"
            raise NotCompilable(msg)
    if pa.types.is_null(left.kind) or pa.types.is_null(right.kind):
        target = common_type([left.kind, right.kind])
        target = pa.float64() if pa.types.is_null(target) else target
    else:
        left, right = beside(loop, left, right.kind), beside(loop, right, left.kind)
        target = number_type(left.kind, right.kind)
    return converted(loop, left, target), converted(loop, right, target)
