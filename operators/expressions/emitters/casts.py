"""Emitters of `kernels.casts`, between numbers and booleans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from ..kernels.type_rules import is_number
from .code import Code, LoopWriter, NotCompilable, constructor_of

if TYPE_CHECKING:
    from ....transport.wire.types import DataType
    from ..kernels.type_rules import ArrowType

__all__ = ["cast", "float_to_integer"]


def cast(loop: LoopWriter, value: Code, to: DataType) -> Code:
    """Convert a number or a boolean to another; an integer that does not fit keeps its low bits."""
    from ....transport.wire.arrow import type_to_arrow

    source, target = value.kind, type_to_arrow(to)
    if source == target:
        return value
    for kind in (source, target):
        if not (pa.types.is_boolean(kind) or (is_number(kind) and not pa.types.is_decimal(kind))):
            msg = f"CAST of {source} AS {target}"
            raise NotCompilable(msg)
        constructor_of(kind)
    if pa.types.is_boolean(target):
        return loop.truth(f"{value.value} != 0", value.valid)
    if pa.types.is_floating(source) and pa.types.is_integer(target):
        return float_to_integer(loop, value, target)
    return loop.typed(target, value.value, value.valid)


def float_to_integer(loop: LoopWriter, value: Code, to: ArrowType) -> Code:
    """Truncate to the nearest integer of the range, and NaN to 0; see `kernels.casts`."""
    bits = 32 if pa.types.is_signed_integer(to) and to.bit_width < 32 else to.bit_width
    signed = pa.types.is_signed_integer(to)
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    wide = pa.int64() if signed else pa.uint64()
    least, most = (loop.constant(pa.scalar(bound, wide)).value for bound in (low, high))
    cut = loop.let(f"np.trunc(np.float64({value.value}))")
    inside = loop.let(f"({cut} > {float(low)!r}) & ({cut} < {float(high)!r})")
    whole = loop.typed(wide, f"{cut} if {inside} else 0.0", None).value
    upper = loop.let(f"{most} if {cut} >= {float(high)!r} else {whole}")
    lower = loop.let(f"{least} if {cut} <= {float(low)!r} else {upper}")
    return loop.typed(to, lower, value.valid)
