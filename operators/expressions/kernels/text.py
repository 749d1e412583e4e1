"""Kernels on text; `functions` documents what each returns.

Positions count characters, not bytes. Regular expressions are Python's `re` with ASCII classes,
which is closest to Java's: pyarrow's RE2 has neither look-around nor back-references.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from ....configs.errors import ExpressionError
from .arrays import Value, each
from .casts import to_text
from .coercion import unified
from .type_rules import is_bytes, is_text

_CHARACTERS_MAX = 2**31 - 1
_GROUP = re.compile(r"\\(.)|\$(\d)")


def upper(value: Value) -> Value:
    """Convert to upper case."""
    return _in_case("upper", value, pc.ascii_upper, str.upper)


def lower(value: Value) -> Value:
    """Convert to lower case."""
    return _in_case("lower", value, pc.ascii_lower, str.lower)


def initcap(value: Value) -> Value:
    """Capitalize each word."""

    def capital(text: str) -> str:
        words = text.lower().split(" ")
        return " ".join(_title(word[:1]) + word[1:] for word in words)

    return each(_text("initcap", value), capital, value.type)


def length(value: Value) -> Value:
    """Count characters, or bytes."""
    if is_bytes(value.type):
        return pc.cast(pc.binary_length(pc.cast(value, pa.binary())), pa.int32())
    return pc.cast(pc.utf8_length(_text("length", value)), pa.int32())


def substring(value: Value, start: int, count: int) -> Value:
    """Return a part of the text, or of the bytes."""
    kernel = pc.binary_slice if is_bytes(value.type) else pc.utf8_slice_codeunits
    if is_bytes(value.type):
        value = pc.cast(value, pa.binary())
    else:
        value = _text("substring", value)
    begin = start - 1 if start > 0 else start
    end: int | None = begin + max(count, 0)
    if begin < 0 and end is not None and end >= 0:
        end = None  # counted from the end, the part reaches the end of the text
    if count <= 0:
        begin, end = 0, 0
    return kernel(value, begin, end)


def concat(*values: Value) -> Value:
    """Join; null if any part is null."""
    if all(is_bytes(value.type) for value in values):
        return pc.binary_join_element_wise(*unified(values), b"")
    return pc.binary_join_element_wise(*map(to_text, values), "", null_handling="emit_null")


def concat_ws(*values: Value) -> Value:
    """Join the parts that are not null; the last argument is the separator."""
    *parts, separator = values
    # pyarrow's own null_handling="skip" loses the rows where every part is null.
    with_separator = [pc.binary_join_element_wise(separator, to_text(part), "") for part in parts]
    joined = pc.binary_join_element_wise(*(pc.fill_null(part, "") for part in with_separator), "")
    return pc.utf8_slice_codeunits(joined, len(separator))


def trim(value: Value) -> Value:
    """Remove blanks at both ends."""
    return pc.utf8_trim(_text("trim", value), " ")


def ltrim(value: Value) -> Value:
    """Remove blanks at the beginning."""
    return pc.utf8_ltrim(_text("ltrim", value), " ")


def rtrim(value: Value) -> Value:
    """Remove blanks at the end."""
    return pc.utf8_rtrim(_text("rtrim", value), " ")


def lpad(value: Value, size: int, pad: str) -> Value:
    """Pad on the left, or truncate."""
    _check_characters(max(len(value), 1) * size)

    def padded(text: str) -> str:
        missing = max(size - len(text), 0)
        return ((pad * missing)[:missing] + text)[: max(size, 0)] if pad else text[: max(size, 0)]

    return each(_text("lpad", value), padded, value.type)


def rpad(value: Value, size: int, pad: str) -> Value:
    """Pad on the right, or truncate."""
    _check_characters(max(len(value), 1) * size)

    def padded(text: str) -> str:
        return (text + pad * max(size - len(text), 0))[: max(size, 0)]

    return each(_text("rpad", value), padded, value.type)


def repeat(value: Value, times: int) -> Value:
    """Repeat."""
    value = _text("repeat", value)
    _check_characters((pc.sum(pc.binary_length(value)).as_py() or 1) * times)
    return pc.binary_repeat(value, max(times, 0))


def _check_characters(count: int) -> None:
    """Refuse a column that Arrow's `string` could not hold, before memory is taken for it."""
    if count > _CHARACTERS_MAX:
        msg = f"{count:,} characters in one batch are more than {_CHARACTERS_MAX:,}"
        raise ExpressionError(msg)


def reverse(value: Value) -> Value:
    """Reverse the characters."""
    return pc.utf8_reverse(_text("reverse", value))


def replace(value: Value, search: str, replacement: str) -> Value:
    """Replace all occurrences; an empty text does not occur."""
    value = _text("replace", value)
    return pc.replace_substring(value, search, replacement) if search else value


def instr(value: Value, part: str) -> Value:
    """Return the position of a part, from 1; 0 if there is none."""
    value = _text("instr", value)
    if _is_ascii(value):
        return pc.cast(pc.add(pc.find_substring(value, part), 1), pa.int32())
    return each(value, lambda text: text.find(part) + 1, pa.int32())


def split_part(value: Value, delimiter: str, part: int) -> Value:
    """Split and return one part."""

    def chosen(text: str) -> str:
        pieces = text.split(delimiter) if delimiter else [text]
        place = part - 1 if part > 0 else len(pieces) + part
        return pieces[place] if 0 <= place < len(pieces) else ""

    return each(_text("split_part", value), chosen, value.type)


def contains(value: Value, part: Value) -> Value:
    """Tell where a part occurs."""
    return _search(value, part, pc.match_substring, lambda text, wanted: wanted in text)


def startswith(value: Value, part: Value) -> Value:
    """Tell where a text begins with a part."""
    return _search(value, part, pc.starts_with, str.startswith)


def endswith(value: Value, part: Value) -> Value:
    """Tell where a text ends with a part."""
    return _search(value, part, pc.ends_with, str.endswith)


def like(value: Value, pattern: str) -> Value:
    """Match SQL's LIKE."""
    return pc.match_like(_text("like", value), pattern)


def ilike(value: Value, pattern: str) -> Value:
    """Match SQL's LIKE, upper and lower case alike."""
    return pc.match_like(_text("ilike", value), pattern, ignore_case=True)


def rlike(value: Value, pattern: str) -> Value:
    """Tell where a regular expression is found."""
    search = _regex(pattern).search
    return each(_text("rlike", value), lambda text: search(text) is not None, pa.bool_())


def regexp_extract(value: Value, pattern: str, group: int) -> Value:
    """Return a group of the first match."""
    regex = _regex(pattern)
    if not 0 <= group <= regex.groups:
        msg = f"the pattern {pattern!r} has groups 0 to {regex.groups}, not {group}"
        raise ExpressionError(msg)

    def found(text: str) -> str:
        match = regex.search(text)
        return (match[group] or "") if match else ""

    return each(_text("regexp_extract", value), found, value.type)


def regexp_replace(value: Value, pattern: str, replacement: str) -> Value:
    """Replace all matches."""
    regex = _regex(pattern)
    # In Java's replacements, $1 is a group and a backslash escapes the next character.
    pieces = _GROUP.sub(lambda found: _python_piece(found[1], found[2]), replacement)

    return each(_text("regexp_replace", value), lambda text: regex.sub(pieces, text), value.type)


def _python_piece(protected: str | None, group: str | None) -> str:
    if group is not None:
        return f"\\g<{group}>"
    return "\\\\" if protected == "\\" else str(protected)


@functools.lru_cache(maxsize=256)
def _regex(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.ASCII)
    except re.error as error:
        msg = f"{pattern!r} is no regular expression: {error}"
        raise ExpressionError(msg) from None


def _text(name: str, value: Value) -> Value:
    if not is_text(value.type):
        msg = f"{name} takes text, not {value.type}: cast it to 'string'"
        raise ExpressionError(msg)
    return value


def _title(letter: str) -> str:
    """Return a letter's capital if it is a single character, as in Java: ß stays."""
    capital = letter.title()
    return capital if len(capital) == 1 and letter <= "\uffff" else letter


def _is_ascii(value: Value) -> bool:
    return pc.all(pc.string_is_ascii(value)).as_py() is not False  # None: all are null


def _in_case(
    name: str, value: Value, fast: Callable[[Value], Value], exact: Callable[[str], str]
) -> Value:
    """Change case; text beyond ASCII by Python, which like Java writes STRASSE for Straße."""
    value = _text(name, value)
    return fast(value) if _is_ascii(value) else each(value, exact, value.type)


def _search(
    value: Value,
    part: Value,
    kernel: Callable[[Value, str], Value],
    search: Callable[[str, str], bool],
) -> Value:
    """Search a constant part with pyarrow, parts that differ by row one by one."""
    if isinstance(part, pa.Scalar):
        _text("a search", pa.repeat(value, 1) if isinstance(value, pa.Scalar) else value)
        if not part.is_valid:
            return pa.nulls(len(value), pa.bool_())
        return kernel(value, _text("a search", part).as_py())
    rows = len(part)
    texts = pa.repeat(value, rows) if isinstance(value, pa.Scalar) else value
    pairs = zip(
        _text("a search", texts).to_pylist(), _text("a search", part).to_pylist(), strict=True
    )
    return pa.array(
        [
            None if text is None or wanted is None else search(text, wanted)
            for text, wanted in pairs
        ],
        pa.bool_(),
    )
