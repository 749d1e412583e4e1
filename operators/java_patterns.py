"""Spark's date patterns (`yyyy-MM-dd HH:mm:ss`) in the words of C's `strftime` and `strptime`."""

from __future__ import annotations

import re

from ..configs.errors import ExpressionError

__all__ = ["FRACTION", "strftime_of"]

#: Stands for digits of a second, which C cannot name: %f, as in Python.
FRACTION = "%f"

_LETTERS = {
    "yyyy": "%Y",
    "y": "%Y",
    "yy": "%y",
    "MM": "%m",
    "MMM": "%b",
    "MMMM": "%B",
    "dd": "%d",
    "D": "%j",
    "DDD": "%j",
    "E": "%a",
    "EEE": "%a",
    "EEEE": "%A",
    "HH": "%H",
    "hh": "%I",
    "mm": "%M",
    "ss": "%S",
    "SSSSSS": FRACTION,
    "a": "%p",
}
_TOKEN = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+")


def strftime_of(pattern: str) -> str:
    """Translate a pattern; raise ExpressionError for a letter that has no counterpart."""
    if not isinstance(pattern, str):
        msg = f"a date pattern is text such as 'yyyy-MM-dd', not {pattern!r}"
        raise ExpressionError(msg)
    words = []
    for token in _TOKEN.finditer(pattern):
        text = token.group()
        if token.group(1) is not None:
            words.append((token.group(1).replace("''", "'") or "'").replace("%", "%%"))
        elif token.group(2) is None:
            words.append(text.replace("%", "%%"))
        elif text in _LETTERS:
            words.append(_LETTERS[text])
        else:
            msg = (
                f"the date pattern {pattern!r} holds {text!r}, which is not supported: use"
                f" {', '.join(_LETTERS)}, and quote other letters"
            )
            raise ExpressionError(msg)
    return "".join(words)
