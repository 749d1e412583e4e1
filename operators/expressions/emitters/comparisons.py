"""Emitters of `kernels.comparisons`: three-valued, NaN equal to itself and above all numbers."""

from __future__ import annotations

import math

import pyarrow as pa

from ..kernels.type_rules import is_text
from .code import Code, LoopWriter, NotCompilable, both, plain
from .conversions import unified

__all__ = [
    "equal",
    "equal_null_safe",
    "greater",
    "greater_equal",
    "is_not_null",
    "is_null",
    "isin",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "not_equal",
]

_WORDS_BYTES_MAX = 16
"""Texts up to so many bytes are compared without a branch."""
_WORD_BYTES = (8, 4, 2, 1)
"""So many bytes are compared at once, the most first: LLVM makes one load of them."""


def equal(loop: LoopWriter, left: Code, right: Code) -> Code:
    """Tell where both are equal; NaN equals NaN."""
    left, right = unified(loop, [left, right], to_compare=True)
    return loop.truth(_same(loop, left, right), both(left.valid, right.valid))


def not_equal(loop: LoopWriter, left: Code, right: Code) -> Code:
    """Tell where both differ."""
    return logical_not(loop, equal(loop, left, right))


def less(loop: LoopWriter, left: Code, right: Code) -> Code:
    """Tell where left is less."""
    return greater(loop, right, left)


def less_equal(loop: LoopWriter, left: Code, right: Code) -> Code:
    """Tell where left is less or equal."""
    return greater_equal(loop, right, left)


def greater(loop: LoopWriter, left: Code, right: Code) -> Code:
    """Tell where left is greater; NaN is greater than all numbers."""
    if is_text(left.kind) and is_text(right.kind):
        return _ordered_texts(loop, left, right, if_equal=False)
    left, right = _ordered(loop, left, right)
    a, b = left.value, right.value
    text = f"{a} > {b}"
    if pa.types.is_floating(left.kind):
        text = f"({a} > {b}) | (({a} != {a}) & ({b} == {b}))"
    return loop.truth(text, both(left.valid, right.valid))


def greater_equal(loop: LoopWriter, left: Code, right: Code) -> Code:
    """Tell where left is greater or equal."""
    if is_text(left.kind) and is_text(right.kind):
        return _ordered_texts(loop, left, right, if_equal=True)
    left, right = _ordered(loop, left, right)
    a, b = left.value, right.value
    text = f"{a} >= {b}"
    if pa.types.is_floating(left.kind):
        text = f"({a} >= {b}) | ({a} != {a})"
    return loop.truth(text, both(left.valid, right.valid))


def equal_null_safe(loop: LoopWriter, left: Code, right: Code) -> Code:
    """Tell where both are equal or both null; never null itself."""
    left, right = unified(loop, [left, right], to_compare=True)
    same = loop.let(_same(loop, left, right))
    if left.valid is None and right.valid is None:
        return loop.truth(same, None)
    here, there = left.valid or "True", right.valid or "True"
    return loop.truth(f"({same} & {here} & {there}) | ((not {here}) & (not {there}))", None)


def logical_and(loop: LoopWriter, left: Code, right: Code) -> Code:
    """Combine conditions with and: false if either is false, else null if either is null."""
    left, right = _condition(loop, left), _condition(loop, right)
    if left.valid is None and right.valid is None:
        return loop.truth(f"{left.value} & {right.value}", None)
    value = loop.let(f"{_true(left)} & {_true(right)}")
    return loop.truth(value, f"{value} | {_false(left)} | {_false(right)}")


def logical_or(loop: LoopWriter, left: Code, right: Code) -> Code:
    """Combine conditions with or: true if either is true, else null if either is null."""
    left, right = _condition(loop, left), _condition(loop, right)
    if left.valid is None and right.valid is None:
        return loop.truth(f"{left.value} | {right.value}", None)
    value = loop.let(f"{_true(left)} | {_true(right)}")
    return loop.truth(value, f"{value} | ({_false(left)} & {_false(right)})")


def logical_not(loop: LoopWriter, value: Code) -> Code:
    """Negate a condition; null stays null."""
    value = _condition(loop, value)
    return loop.truth(f"not {value.value}", value.valid)


def is_null(loop: LoopWriter, value: Code) -> Code:
    """Tell where there is no value."""
    return loop.truth("False" if value.valid is None else f"not {value.valid}", None)


def is_not_null(loop: LoopWriter, value: Code) -> Code:
    """Tell where there is a value."""
    return loop.truth("True" if value.valid is None else value.valid, None)


def isin(loop: LoopWriter, value: Code, *choices: Code) -> Code:
    """Tell where the value is among the choices, which are literals."""
    if value.constant is not None or any(choice.constant is None for choice in choices):
        msg = "isin of other than a column and literals"
        raise NotCompilable(msg)
    value, *wanted = unified(loop, [value, *choices], to_compare=True)
    known = [choice for choice in wanted if choice.valid is None]
    literals = [choice.constant.as_py() for choice in known if choice.constant is not None]
    if pa.types.is_floating(value.kind) and any(math.isnan(one) for one in literals):
        msg = "isin with NaN"
        raise NotCompilable(msg)
    found = loop.let(" | ".join(f"({_exactly(loop, value, one)})" for one in known) or "False")
    valid = value.valid
    if len(known) < len(wanted):
        valid = both(valid, found)
    return loop.truth(found, valid)


def _exactly(loop: LoopWriter, value: Code, choice: Code) -> str:
    if is_text(value.kind):
        return _same_text(loop, value, choice)
    plain(value, choice)
    return f"{value.value} == {choice.value}"


def _same(loop: LoopWriter, left: Code, right: Code) -> str:
    if is_text(left.kind):
        return _same_text(loop, left, right)
    plain(left, right)
    a, b = left.value, right.value
    if pa.types.is_floating(left.kind):
        return f"({a} == {b}) | (({a} != {a}) & ({b} != {b}))"
    return f"{a} == {b}"


def _same_text(loop: LoopWriter, left: Code, right: Code) -> str:
    if left.constant is not None:
        left, right = right, left
    if right.constant is not None:
        if right.valid is not None:
            return "False"
        return _is_literal(loop, left.value, right.constant.as_py().encode())
    begin, size = _place(loop, left.value)
    other, other_size = _place(loop, right.value)
    helper = loop.helper("same_text")
    compared = f"{helper}(c{left.value}, {begin}, c{right.value}, {other}, {size})"
    return f"({size} == {other_size}) and {compared}"


def _is_literal(loop: LoopWriter, column: str, wanted: bytes) -> str:
    """Return the text for whether a text column holds some bytes.

    Texts of another length are compared, too, at the beginning of the pool, to have no branch.
    """
    begin, size = _place(loop, column)
    fits = loop.let(f"{size} == {len(wanted)}")
    if not wanted:
        return fits
    if len(wanted) > _WORDS_BYTES_MAX:
        literal, helper = loop.bytes_constant(wanted), loop.helper("same_text")
        return f"{fits} and {helper}(c{column}, {begin}, {literal}, 0, {len(wanted)})"
    loop.text_bytes = max(loop.text_bytes, len(wanted))
    at = loop.let(f"{begin} if {fits} else np.uint64(0)")
    compared, place = [], 0
    while place < len(wanted):
        width = next(one for one in _WORD_BYTES if one <= len(wanted) - place)
        word = int.from_bytes(wanted[place : place + width], "little")
        read = " | ".join(
            f"(np.uint64(c{column}[{at} + np.uint64({place + byte})]) << np.uint64({8 * byte}))"
            for byte in range(width)
        )
        compared.append(f"(({read}) == np.uint64({word}))")
        place += width
    return " & ".join([fits, *compared])


def _place(loop: LoopWriter, column: str) -> tuple[str, str]:
    """Return where the bytes of a text begin, and how many they are."""
    begin, end = loop.text_ends(column)
    begin = loop.let(begin)
    return begin, loop.let(f"{end} - {begin}")


def _ordered_texts(loop: LoopWriter, left: Code, right: Code, *, if_equal: bool) -> Code:
    """Compare texts by their bytes, which is the order of their characters."""
    valid = both(left.valid, right.valid)
    if valid == "False":
        return loop.constant(pa.scalar(None, pa.bool_()))
    helper = loop.helper("is_greater_text")
    places = ", ".join(", ".join(_bytes_of(loop, one)) for one in (left, right))
    return loop.truth(f"{helper}({places}, {if_equal})", valid)


def _bytes_of(loop: LoopWriter, text: Code) -> tuple[str, str, str]:
    """Return the pool of a text, where its bytes begin in there, and how many they are."""
    if text.constant is None:
        return (f"c{text.value}", *_place(loop, text.value))
    raw = b"" if text.valid is not None else text.constant.as_py().encode()
    pool = loop.bytes_constant(raw or b"\0")  # numba knows no type of an array of nothing
    return pool, "np.uint64(0)", f"np.uint64({len(raw)})"


def _ordered(loop: LoopWriter, left: Code, right: Code) -> tuple[Code, Code]:
    left, right = unified(loop, [left, right], to_compare=True)
    if pa.types.is_boolean(left.kind):
        msg = f"the order of {left.kind}"
        raise NotCompilable(msg)
    plain(left, right)
    return left, right


def _condition(loop: LoopWriter, value: Code) -> Code:
    if pa.types.is_null(value.kind):
        return loop.constant(pa.scalar(None, pa.bool_()))
    if not pa.types.is_boolean(value.kind):
        msg = f"a condition of {value.kind}"
        raise NotCompilable(msg)
    return value


def _true(value: Code) -> str:
    return value.value if value.valid is None else f"({value.value} & {value.valid})"


def _false(value: Code) -> str:
    no = f"(not {value.value})"
    return no if value.valid is None else f"({no} & {value.valid})"
