"""How a compiled loop adds a row to the state of its group: text for each accumulator that has one.

The lines do for one row what `Accumulator.update` does, with the same bits as the result. They
change the fields of a record `r`, named `a<number of the aggregate>_<field>`. In a loop an input
has a value in every row; where it is null, its `valid` is false.

The arithmetic is that of `kernels`, written a second time: a kernel takes whole columns and an
array for each field, a loop has one row and one record. Tests compare the results of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from ..expressions.emitters.code import Code, NotCompilable
from .moments import Moments
from .picks import Pick
from .totals import Count, FloatTotal, IntegerTotal

if TYPE_CHECKING:
    from .accumulator import Accumulator
    from .aggregate import Aggregate

__all__ = ["field_name", "update_lines"]


def field_name(number: int, field: str) -> str:
    """Return the name of a field of an accumulator in the records of a loop."""
    return f"a{number}_{field}"


def update_lines(
    aggregate: Aggregate, accumulator: Accumulator, number: int, inputs: Sequence[Code]
) -> list[str]:
    """Return the lines that add a row to the record `r` of its group.

    Args:
        aggregate: what is computed.
        accumulator: what computes it.
        number: which of the operator's aggregates it is.
        inputs: the columns that it reads.

    Raises:
        NotCompilable: it has no such form; the message says why.
    """
    name = f"r.a{number}_"
    for one in inputs:
        if one.constant is not None or not one.value:
            msg = f"a constant, in {aggregate}"
            raise NotCompilable(msg)
    match accumulator:
        case Count():
            return _count(name, inputs)
        case IntegerTotal():
            lines = _integer_total(name, inputs[0])
        case FloatTotal():
            lines = _float_total(name, inputs[0])
        case Moments():
            lines = _moments(name, inputs[0])
        case Pick() if accumulator.is_of_numbers:
            return _pick(name, accumulator, inputs)
        case _:
            msg = f"{aggregate}, which has no compiled form"
            raise NotCompilable(msg)
    return _if_valid(inputs[0], lines)


def _if_valid(code: Code, lines: list[str]) -> list[str]:
    if code.valid is None:
        return lines
    return [f"if {code.valid}:", *(f"    {line}" for line in lines)]


def _count(name: str, inputs: Sequence[Code]) -> list[str]:
    valid = inputs[0].valid if inputs else None
    return [f"{name}count += {'1' if valid is None else f'np.int64({valid})'}"]


def _integer_total(name: str, code: Code) -> list[str]:
    """See `kernels.add_integers`."""
    return [
        f"value = np.int64({code.value})",
        "part = np.uint64(value)",
        f"total = {name}low + part",
        f"{name}high += (value >> 63) + np.int64(total < part)",
        f"{name}low = total",
        f"{name}count += 1",
    ]


def _float_total(name: str, code: Code) -> list[str]:
    """See `kernels.add_floats`."""
    return [
        f"addend = np.float64({code.value})",
        f"before = {name}total",
        "after = before + addend",
        "if abs(before) >= abs(addend):",
        f"    {name}lost += (before - after) + addend",
        "else:",
        f"    {name}lost += (addend - after) + before",
        f"{name}total = after",
        f"{name}count += 1",
    ]


def _moments(name: str, code: Code) -> list[str]:
    """See `kernels.add_moments`."""
    return [
        f"addend = np.float64({code.value})",
        f"{name}count += 1",
        f"deviation = addend - {name}mean",
        f"{name}mean += deviation / {name}count",
        f"{name}squares += deviation * (addend - {name}mean)",
    ]


def _pick(name: str, pick: Pick, inputs: Sequence[Code]) -> list[str]:
    """See `kernels.pick_rows`."""
    order = inputs[-1]
    value, kept = f"({order.value})", f"{name}order"
    if pa.types.is_boolean(order.kind):
        value = f"np.uint8({order.value})"
    less, more = f"{value} < {kept}", f"{value} > {kept}"
    if pa.types.is_floating(order.kind):  # NaN is greater than all numbers
        less = f"({less} or ({kept} != {kept} and {value} == {value}))"
        more = f"({more} or ({value} != {value} and {kept} == {kept}))"
    better = more if pick.greatest else less
    if pick.later:
        better = f"not {less if pick.greatest else more}"
    lines = [
        f"if {name}known == 0 or {better}:",
        f"    {kept} = {value}",
        f"    {name}known = 1",
    ]
    if pick.has_value:
        first = inputs[0]
        number = f"np.uint8({first.value})" if pa.types.is_boolean(first.kind) else first.value
        null = "0" if first.valid is None else f"np.uint8(not {first.valid})"
        lines += [f"    {name}value = {number}", f"    {name}null = {null}"]
    return _if_valid(order, lines)
