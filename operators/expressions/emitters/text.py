"""Emitters of `kernels.text` that return numbers and conditions: no text is made in a loop."""

from __future__ import annotations

import pyarrow as pa

from ..kernels.type_rules import is_text
from .code import Code, LoopWriter, NotCompilable

__all__ = ["contains", "endswith", "length", "startswith"]


def length(loop: LoopWriter, value: Code) -> Code:
    """Count the characters."""
    column, begin, size = place_of(loop, value)
    counted = f"{loop.helper('characters')}(c{column}, {begin}, {size})"
    return loop.typed(pa.int32(), counted, value.valid)


def startswith(loop: LoopWriter, value: Code, part: Code) -> Code:
    """Tell where a text begins with a constant part."""
    return _at(loop, value, part, "{begin}")


def endswith(loop: LoopWriter, value: Code, part: Code) -> Code:
    """Tell where a text ends with a constant part."""
    return _at(loop, value, part, "{begin} + {size} - np.uint64({wanted})")


def contains(loop: LoopWriter, value: Code, part: Code) -> Code:
    """Tell where a constant part occurs."""
    column, begin, size = place_of(loop, value)
    wanted = _constant_part(part)
    if not wanted:
        return loop.truth("True", value.valid)
    literal = loop.bytes_constant(wanted)
    loop.helper("same_text")
    found = f"{loop.helper('has_part')}(c{column}, {begin}, {size}, {literal}, {len(wanted)})"
    return loop.truth(found, value.valid)


def place_of(loop: LoopWriter, value: Code) -> tuple[str, str, str]:
    """Return the column of a text, where its bytes begin, and how many they are.

    Raises:
        NotCompilable: it is no text of a column.
    """
    if not is_text(value.kind) or value.constant is not None:
        msg = f"a search in {value.kind}"
        raise NotCompilable(msg)
    column = value.value
    begin, end = loop.text_ends(column)
    begin = loop.let(begin)
    return column, begin, loop.let(f"{end} - {begin}")


def _constant_part(part: Code) -> bytes:
    if part.constant is None or part.valid is not None or not is_text(part.kind):
        msg = "a search for other than a constant text"
        raise NotCompilable(msg)
    raw: bytes = part.constant.as_py().encode()
    return raw


def _at(loop: LoopWriter, value: Code, part: Code, where: str) -> Code:
    """Compare the bytes at a place in the text with a constant, if the text is long enough."""
    column, begin, size = place_of(loop, value)
    wanted = _constant_part(part)
    if not wanted:
        return loop.truth("True", value.valid)
    literal, same = loop.bytes_constant(wanted), loop.helper("same_text")
    place = where.format(begin=begin, size=size, wanted=len(wanted))
    compared = f"{same}(c{column}, {place}, {literal}, np.uint64(0), {len(wanted)})"
    return loop.truth(f"({size} >= np.uint64({len(wanted)})) and {compared}", value.valid)
