"""Functions on text."""

from __future__ import annotations

from ....configs.errors import ExpressionError
from ..expression import Expression, FunctionCall, escape, function
from .arguments import ColumnOrName, as_column, as_integer, as_text, some_columns

__all__ = [
    "concat",
    "concat_ws",
    "contains",
    "endswith",
    "initcap",
    "instr",
    "length",
    "lower",
    "lpad",
    "ltrim",
    "regexp_extract",
    "regexp_replace",
    "repeat",
    "replace",
    "reverse",
    "rpad",
    "rtrim",
    "split_part",
    "startswith",
    "substring",
    "trim",
    "upper",
]


def upper(column: ColumnOrName) -> Expression:
    """Convert to upper case."""
    return function("text.upper", as_column(column))


def lower(column: ColumnOrName) -> Expression:
    """Convert to lower case."""
    return function("text.lower", as_column(column))


def initcap(column: ColumnOrName) -> Expression:
    """Capitalize each word, as separated by blanks; convert the rest to lower case."""
    return function("text.initcap", as_column(column))


def length(column: ColumnOrName) -> Expression:
    """Return the number of characters, or of bytes for binary."""
    return function("text.length", as_column(column))


def substring(column: ColumnOrName, pos: int, length: int) -> Expression:
    """Return `length` characters from `pos` on, counted from 1, or from the end if negative."""
    return as_column(column).substr(as_integer(pos), as_integer(length))


def concat(*columns: ColumnOrName) -> Expression:
    """Join text; null if any part is null."""
    return function("text.concat", *some_columns("concat", columns))


def concat_ws(separator: str, *columns: ColumnOrName) -> Expression:
    """Join the parts that are not null, with a separator between them."""
    separator = as_text(separator)
    parts = some_columns("concat_ws", columns)
    places = ", ".join(f"{{{place}}}" for place in range(len(parts)))
    template = f"concat_ws({escape(repr(separator))}, {places})"
    return FunctionCall("text.concat_ws", parts, (separator,), template)


def trim(column: ColumnOrName) -> Expression:
    """Remove blanks at both ends."""
    return function("text.trim", as_column(column))


def ltrim(column: ColumnOrName) -> Expression:
    """Remove blanks at the beginning."""
    return function("text.ltrim", as_column(column))


def rtrim(column: ColumnOrName) -> Expression:
    """Remove blanks at the end."""
    return function("text.rtrim", as_column(column))


def lpad(column: ColumnOrName, length: int, pad: str) -> Expression:
    """Pad on the left to exactly `length` characters, or truncate."""
    return function("text.lpad", as_column(column), options=(as_integer(length), as_text(pad)))


def rpad(column: ColumnOrName, length: int, pad: str) -> Expression:
    """Pad on the right to exactly `length` characters, or truncate."""
    return function("text.rpad", as_column(column), options=(as_integer(length), as_text(pad)))


def repeat(column: ColumnOrName, times: int) -> Expression:
    """Repeat the text `times` times."""
    return function("text.repeat", as_column(column), options=(as_integer(times),))


def reverse(column: ColumnOrName) -> Expression:
    """Return the characters in reverse order."""
    return function("text.reverse", as_column(column))


def replace(column: ColumnOrName, search: str, replacement: str = "") -> Expression:
    """Replace every occurrence of one text by another."""
    return function(
        "text.replace", as_column(column), options=(as_text(search), as_text(replacement))
    )


def instr(column: ColumnOrName, part: str) -> Expression:
    """Return the position of the first occurrence of a part, counted from 1; 0 if there is none."""
    return function("text.instr", as_column(column), options=(as_text(part),))


def split_part(column: ColumnOrName, delimiter: str, part: int) -> Expression:
    """Split by a delimiter and return a part, counted from 1, or from the end if negative."""
    place = as_integer(part)
    if place == 0:
        msg = "split_part counts parts from 1, or from the end with -1: there is no part 0"
        raise ExpressionError(msg)
    return function("text.split_part", as_column(column), options=(as_text(delimiter), place))


def contains(column: ColumnOrName, part: ColumnOrName) -> Expression:
    """Tell whether a text contains another."""
    return as_column(column).contains(as_column(part))


def startswith(column: ColumnOrName, part: ColumnOrName) -> Expression:
    """Tell whether a text starts with another."""
    return as_column(column).startswith(as_column(part))


def endswith(column: ColumnOrName, part: ColumnOrName) -> Expression:
    """Tell whether a text ends with another."""
    return as_column(column).endswith(as_column(part))


def regexp_extract(column: ColumnOrName, pattern: str, group: int) -> Expression:
    """Return a group of the first match of a regular expression; empty if there is none.

    The expression is Python's, with ASCII classes; group 0 is the whole match.
    """
    return function(
        "text.regexp_extract", as_column(column), options=(as_text(pattern), as_integer(group))
    )


def regexp_replace(column: ColumnOrName, pattern: str, replacement: str) -> Expression:
    """Replace every match of a regular expression; `$1` in the replacement is its first group."""
    return function(
        "text.regexp_replace", as_column(column), options=(as_text(pattern), as_text(replacement))
    )
