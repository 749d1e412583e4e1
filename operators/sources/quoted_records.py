"""Finds the ends of CSV records whose quoted fields may hold line ends.

As in RFC 4180, a quote opens a quoted field only at the start of a field, two quotes within it
stand for one, and the field must end after the closing quote. Anywhere else a quote is a plain
character. A record whose quotes break these rules is bad; it consists of its first line only, since
the next line may begin a good record. Line ends are LF, CR LF and CR.

The loops are compiled and take linear time for any text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from ...transport.atomics import kernel
from .text_blocks import Quoting

_QUOTE, _LF, _CR = ord('"'), ord("\n"), ord("\r")
_OUTSIDE, _INSIDE, _BROKEN = 0, 1, 2
"""The state at the end of a line: outside or inside of a quoted field, or rules were broken."""
_NEVER = -1

_BYTES = numba.types.Array(numba.uint8, 1, "C", readonly=True)


@dataclass(frozen=True)
class Records:
    """The records at the start of a text.

    Attributes:
        ends: the index after each record, int64; the text after the last is not complete yet.
        bad: whether the quotes of each record break the rules, bool.
    """

    ends: npt.NDArray[np.int64]
    bad: npt.NDArray[np.bool_]


def last_record_end(data: bytes, quoting: Quoting, stop: int) -> int | None:
    """Return the index after the last whole record of `data[:stop]`; None if one may be bad.

    `stop` is the index after a line end, or the end of the file. Much faster than `find_records`,
    since it looks at quotes only; it cannot decide if quoted fields must not hold line ends.
    """
    if not quoting.over_lines:
        return None
    text = np.frombuffer(data, np.uint8, stop)
    quotes = np.flatnonzero(text == _QUOTE)
    end = int(_last_record_end(text, quotes, stop, ord(quoting.delimiter)))
    return None if end == _NEVER else end


def find_records(data: bytes, quoting: Quoting, stop: int, complete: bool) -> Records:
    """Return the records of `data[:stop]`; `stop` is as in `last_record_end`.

    If `complete`, no more text follows and a quote that is open at `stop` is never closed.
    Otherwise the open record is left out, for a later call with more text.
    """
    text = np.frombuffer(data, np.uint8)
    lines = np.empty(data.count(b"\n", 0, stop) + data.count(b"\r", 0, stop) + 1, np.int64)
    lines = lines[: _lines(text, stop, lines)]
    ends, bad = np.empty(len(lines), np.int64), np.empty(len(lines), np.bool_)
    delimiter = ord(quoting.delimiter)
    count = _all_records(text, lines, delimiter, quoting.over_lines, complete, ends, bad)
    return Records(ends[:count], bad[:count])


@kernel(numba.int64(_BYTES, numba.int64[::1], numba.int64, numba.int64), releases_gil=True)
def _last_record_end(data: Any, quotes: Any, stop: Any, delimiter: Any) -> Any:
    """Return the end of the last record, `_NEVER` if any quote breaks the rules.

    First visits all quoted fields in order. Then searches back from `stop`, or from a field that is
    open there, for the last line end outside of quoted fields.
    """
    opened = np.empty(len(quotes), np.int64)
    closed = np.empty(len(quotes), np.int64)
    fields = 0
    next_quote = 0
    stop_at = stop
    while next_quote < len(quotes):
        at = quotes[next_quote]
        next_quote += 1
        if at > 0 and data[at - 1] not in (delimiter, _LF, _CR):
            continue  # inside an unquoted field, so a plain character
        while next_quote + 1 < len(quotes) and quotes[next_quote + 1] == quotes[next_quote] + 1:
            next_quote += 2  # two quotes within a quoted field
        if next_quote == len(quotes):
            stop_at = at  # not closed before `stop`
            break
        end = quotes[next_quote]
        next_quote += 1
        if end + 1 < stop and data[end + 1] not in (delimiter, _LF, _CR):
            return _NEVER
        opened[fields] = at
        closed[fields] = end
        fields += 1
    if stop_at == stop:
        return stop
    # The record of the open field began after the last line end that is in no quoted field.
    at = stop_at
    while True:
        after = closed[fields - 1] + 1 if fields else 0
        while at > after:
            if data[at - 1] in (_LF, _CR):
                return at
            at -= 1
        if not fields:
            return 0
        fields -= 1
        at = opened[fields]


@kernel(numba.int64(_BYTES, numba.int64, numba.int64[::1]), releases_gil=True)
def _lines(data: Any, stop: Any, ends: Any) -> Any:
    """Write the ends of all lines to `ends`; return their number."""
    count = 0
    for at in range(stop):
        byte = data[at]
        if byte == _LF or (byte == _CR and not (at + 1 < stop and data[at + 1] == _LF)):
            ends[count] = at + 1
            count += 1
    if stop > (ends[count - 1] if count else 0):
        ends[count] = stop
        count += 1
    return count


@kernel(
    numba.int64(_BYTES, numba.int64, numba.int64, numba.boolean, numba.int64), releases_gil=True
)
def _after_line(data: Any, start: Any, stop: Any, inside: Any, delimiter: Any) -> Any:
    """Return the state at the end of a line that begins outside or inside of a quoted field."""
    at = start
    while at < stop:
        byte = data[at]
        at += 1
        if byte != _QUOTE:
            continue
        if not inside:
            inside = at - 1 == start or data[at - 2] == delimiter
        elif at < stop and data[at] == _QUOTE:
            at += 1
        elif at < stop and data[at] not in (delimiter, _LF, _CR):
            return _BROKEN
        else:
            inside = False
    return _INSIDE if inside else _OUTSIDE


@kernel(
    numba.int64(
        _BYTES,
        numba.int64[::1],
        numba.int64,
        numba.boolean,
        numba.boolean,
        numba.int64[::1],
        numba.boolean[::1],
    ),
    releases_gil=True,
)
def _all_records(
    data: Any, lines: Any, delimiter: Any, over_lines: Any, complete: Any, ends: Any, bad: Any
) -> Any:
    """Write the ends of all records to `ends`, and which are bad to `bad`; return their number."""
    # last[i] is the line in which a record ends if a quoted field is open at the start of line i.
    # It does not depend on where the field began, so one backward pass computes it for all lines,
    # and an unclosed quote does not make the forward pass quadratic.
    last = np.empty(len(lines) + 1, np.int64)
    last[len(lines)] = _NEVER if complete or not over_lines else len(lines)
    for line in range(len(lines) - 1, -1, -1):
        last[line] = _NEVER
        if over_lines:
            start = lines[line - 1] if line else 0
            state = _after_line(data, start, lines[line], True, delimiter)
            if state == _OUTSIDE:
                last[line] = line
            elif state == _INSIDE:
                last[line] = last[line + 1]
    count = 0
    line = 0
    while line < len(lines):
        start = lines[line - 1] if line else 0
        state = _after_line(data, start, lines[line], False, delimiter)
        end = line
        if state == _INSIDE:
            end = last[line + 1]
            if end == len(lines):
                break
        bad[count] = state == _BROKEN or end == _NEVER
        line = line + 1 if bad[count] else end + 1
        ends[count] = lines[line - 1]
        count += 1
    return count
