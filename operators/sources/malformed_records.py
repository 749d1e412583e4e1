"""Finds malformed records of a block of text in few parses.

Arrow rejects a block as a whole, and bisection takes about ten parses per malformed record. Most of
these can be recognized by the text of CSV: the number of their fields is wrong, or a field does not
match the pattern of its type. So the fields of a block are read once, as bytes, and matched against
the patterns. A record that matches may still be malformed, such as one of the 30th of February: if
the others cannot be parsed at once, Python tells which are suspicious, and these are parsed alone.
JSON records are only examined in this second way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import TYPE_CHECKING, Any

import numpy as np

from .text_encoding import undecodable

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    FindValues = Callable[[pa.Table, pa.Schema], npt.NDArray[np.bool_]]

_DIGITS_MAX = {8: 3, 16: 5, 32: 10, 64: 19}
_DECIMAL = r"[+-]?[0-9.][0-9.eE+-]*"


def malformed_values(fields: pa.Table, schema: pa.Schema) -> npt.NDArray[np.bool_]:
    """Return which rows have a value that does not match its column's type, shape (rows,).

    Args:
        fields: the columns of `schema` as binary, as written in the file; nulls are valid.
        schema: the types to parse them as.
    """
    found = np.zeros(fields.num_rows, bool)
    for field in schema:
        found |= _unlike(fields.column(field.name), field.type)
    return found


def suspicious_values(fields: pa.Table, schema: pa.Schema) -> npt.NDArray[np.bool_]:
    """Return which rows have a value that Python does not read as its column's type, shape (rows,).

    Arrow reads some of them, and fails for some others.

    Args:
        fields: as for `malformed_values`, of which none is found.
        schema: the types to parse them as.
    """
    found = np.zeros(fields.num_rows, bool)
    for field in schema:
        read = _reader_of(field.type)
        if read is not None:
            values = fields.column(field.name).to_pylist()
            found |= [value is not None and not _reads(read, value) for value in values]
    return found


def suspicious_objects(
    records: Sequence[bytes], schema: pa.Schema, *, others: bool
) -> npt.NDArray[np.bool_]:
    """Return which JSON records Python does not read as an object of a schema, shape (records,).

    Arrow reads some of them, and fails for some others.

    Args:
        records: the records with their line ends.
        schema: the columns.
        others: whether objects may have other names, too.
    """
    fits = {field.name: _json_check_of(field.type) for field in schema}

    def is_suspicious(record: bytes) -> bool:
        try:
            value = json.loads(record)
        except ValueError:
            return bool(record.strip())
        except RecursionError:  # lists in lists in lists, …
            return True
        if not isinstance(value, dict) or not (others or value.keys() <= fits.keys()):
            return True
        return not all(
            value.get(name) is None or check(value[name]) for name, check in fits.items()
        )

    return np.fromiter(map(is_suspicious, records), bool, len(records))


def of_all_records(
    records: Sequence[bytes],
    wrong_lengths: Sequence[int],
    values: npt.NDArray[np.bool_],
    blank: bool,
) -> npt.NDArray[np.bool_] | None:
    """Combine both findings: return which records are malformed, shape (records,).

    None if the numbers of rows do not agree, so that rows cannot be assigned to records.

    Args:
        records: the records with their line ends.
        wrong_lengths: the numbers, counted from 1, of rows with a wrong number of fields.
        values: for each other row, whether it has a malformed value.
        blank: whether blank records count as rows.
    """
    rows = np.arange(len(records))
    if not blank:
        rows = np.flatnonzero([bool(record.strip(b"\r\n")) for record in records])
    if len(rows) != len(values) + len(wrong_lengths):
        return None
    is_wrong = np.zeros(len(rows), bool)
    is_wrong[np.array(wrong_lengths, np.int64) - 1] = True
    is_wrong[~is_wrong] = values
    malformed = np.zeros(len(records), bool)
    malformed[rows] = is_wrong
    return malformed


def _unlike(column: pa.ChunkedArray, kind: pa.DataType) -> npt.NDArray[np.bool_]:
    """Return which values of a binary column do not match a type; none if it has no pattern."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        try:
            column.cast(pa.string())
        except pa.ArrowInvalid:
            return np.array([one is not None and undecodable(one) for one in column.to_pylist()])
    pattern = _pattern_of(kind)
    if pattern is None:
        return np.zeros(len(column), bool)
    fits = pc.match_substring_regex(column, rf"^\s*(?:{pattern})\s*$")
    return ~np.asarray(pc.fill_null(fits, True).to_numpy(), bool)


def _pattern_of(kind: pa.DataType) -> str | None:
    """Return a regular expression that matches every text Arrow parses as a type, or more."""
    import pyarrow as pa

    if pa.types.is_integer(kind):
        digits = _DIGITS_MAX[kind.bit_width] + pa.types.is_uint64(kind)
        return rf"[+-]?0*[0-9]{{1,{digits}}}|[+-]?0[xX][0-9a-fA-F]+"
    if pa.types.is_floating(kind):
        return rf"{_DECIMAL}|[+-]?(?i:nan|inf).*"
    if pa.types.is_decimal(kind):
        return _DECIMAL
    if pa.types.is_boolean(kind):
        return "(?i:true|false)|[01]"
    if pa.types.is_temporal(kind) and not pa.types.is_duration(kind):
        return r"[0-9TZ .:+-]+"
    return None


def _reads(read: Callable[[str], object], value: bytes) -> bool:
    try:
        read(value.decode().strip())
    except (ValueError, ArithmeticError):
        return False
    return True


def _reader_of(kind: pa.DataType) -> Callable[[str], object] | None:
    """Return a function that raises ValueError or ArithmeticError for a text of another type.

    None for types whose pattern leaves nothing open.
    """
    import pyarrow as pa

    if pa.types.is_integer(kind):
        values = _range_of(kind)
        return lambda text: values.index(int(text, 16 if "x" in text.lower() else 10))
    if pa.types.is_floating(kind):
        return float
    if pa.types.is_decimal(kind):
        least = Decimal(1).scaleb(-kind.scale)
        exact = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
        return lambda text: Decimal(text).quantize(least, context=exact)
    if pa.types.is_date(kind):
        return date.fromisoformat
    if pa.types.is_time(kind):
        return time.fromisoformat
    if pa.types.is_timestamp(kind):
        has_zone = kind.tz is not None
        return lambda text: _timestamp(text, has_zone)
    return None


def _json_check_of(kind: pa.DataType) -> Callable[[Any], bool]:
    """Return whether a value of JSON, which is not null, looks like one of a type."""
    import pyarrow as pa

    if pa.types.is_boolean(kind):
        return lambda value: isinstance(value, bool)
    if pa.types.is_integer(kind):
        values = _range_of(kind)
        return lambda value: type(value) is int and value in values
    if pa.types.is_floating(kind):
        return lambda value: type(value) in (int, float)
    if pa.types.is_decimal(kind):
        return lambda value: type(value) in (int, float, str)
    read = _reader_of(kind) or str
    # Half a pair of surrogates, which JSON can escape, is no UTF-8.
    return lambda value: (
        isinstance(value, str) and _reads(read, value.encode("utf-8", "surrogatepass"))
    )


def _range_of(kind: pa.DataType) -> range:
    """Return the values of an integer type."""
    import pyarrow as pa

    bits = kind.bit_width
    if pa.types.is_unsigned_integer(kind):
        return range(2**bits)
    return range(-(2 ** (bits - 1)), 2 ** (bits - 1))


def _timestamp(text: str, has_zone: bool) -> datetime:
    found = datetime.fromisoformat(text)
    if (found.tzinfo is not None) != has_zone:
        msg = "a zone that the column lacks, or none"
        raise ValueError(msg)
    return found
