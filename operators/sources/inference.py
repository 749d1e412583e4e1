"""Infers column types from the first block of text; the same rules for CSV and JSON lines.

Arrow's own inference is used except where it would lose information::

    integers beyond 64 bits      decimal128(38, 0), never float64; beyond 38 digits refused
    a leading zero, +, 0x        CSV: text, since 007, +4930… and 0x1f are codes, not amounts
    numbers, some with a         float64: each is read as the nearest double
    fraction or an exponent
    ISO 8601 times               alike in both formats, with a zone if all values have one

Later values must fit the inferred types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...configs.errors import InputError

if TYPE_CHECKING:
    import pyarrow as pa

_INTEGER = r"^[+-]?(0[xX][0-9a-fA-F]+|[0-9]+)$"
_CODE = r"^(\+[0-9]|[+-]?0[0-9xX])"
_FRACTION = r"^[+-]?[0-9]*(\.|[0-9][eE])"
_INFINITE = r"(?i)^\s*[+-]?inf(inity)?\s*$"
_TIME = r"^[0-9][0-9TZ .:+-]{0,39}$"
_HEXADECIMAL = r"^\s*0[xX]"
_DECIMAL_DIGITS = 38
_EXACT_DIGITS = len(str(2**53))
"""Every integer with fewer digits is exactly representable as a float64."""


def has_fractions(numbers: pa.ChunkedArray) -> bool:
    """Return whether any finite value has a fraction, so that the column is not of integers."""
    import pyarrow.compute as pc

    finite = numbers.filter(pc.fill_null(pc.is_finite(numbers), False))
    return bool(pc.any(pc.not_equal(pc.floor(finite), finite)).as_py())


def number_type(texts: pa.ChunkedArray, inferred: pa.DataType, column: str) -> pa.DataType:
    """Return the type of a column that Arrow inferred as int64 or float64.

    Args:
        texts: its values as written in the file; nulls are ignored.
        inferred: Arrow's choice.
        column: the file and the column, for the message.

    Raises:
        InputError: no type holds all values without loss.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_float = pa.types.is_floating(inferred)
    texts = pc.utf8_trim_whitespace(texts.drop_null())
    if is_float and pc.any(pc.match_substring_regex(texts, _FRACTION)).as_py():
        return inferred
    integers = texts.filter(pc.match_substring_regex(texts, _INTEGER)) if is_float else texts
    if pc.any(pc.match_substring_regex(integers, _CODE)).as_py():
        return pa.string()
    if not is_float:
        return inferred
    digits = pc.max(pc.utf8_length(pc.utf8_ltrim(integers, "-"))).as_py() or 0
    has_others = len(integers) < len(texts)
    if not has_others and digits <= _DECIMAL_DIGITS:
        return pa.decimal128(_DECIMAL_DIGITS, 0)
    if digits < _EXACT_DIGITS:
        return inferred  # all integers are exact as floats; the others are NaN or infinities
    sample = max(integers.to_pylist(), key=len)
    msg = (
        f"{column} holds integers that no type holds without loss, such as {sample}"
        f"{' beside values that are not integers' if has_others else ''}; "
        "pass schema= with the type to use"
    )
    raise InputError(msg)


def text_type(texts: pa.ChunkedArray) -> pa.DataType:
    """Return the type of a column of JSON texts: a date, a time, a timestamp, or text."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.csv

    texts = texts.drop_null()
    if not len(texts) or not pc.all(pc.match_substring_regex(texts, _TIME)).as_py():
        return pa.string()
    lines = "\n".join(["x", *texts.to_pylist()]).encode()
    read = pyarrow.csv.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    inferred = pyarrow.csv.read_csv(pa.BufferReader(lines), read).schema.field(0).type
    return inferred if pa.types.is_temporal(inferred) else pa.string()


def widen(schema: pa.Schema, where: str) -> pa.Schema:
    """Return an inferred schema, widened for later lines: timestamp[s] becomes timestamp[us].

    Raises:
        InputError: a column held only nulls, so its type is unknown.
    """
    import pyarrow as pa

    fields = []
    for field in schema:
        kind = field.type
        if pa.types.is_null(kind):
            msg = (
                f"{where}: the column {field.name!r} holds only nulls in the first block, so its "
                "type is unknown; pass schema= (or the columns= wanted)"
            )
            raise InputError(msg)
        if pa.types.is_timestamp(kind) and kind.unit == "s":
            kind = pa.timestamp("us", kind.tz)
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def may_be_changed(column: pa.ChunkedArray, data: bytes) -> bool:
    """Return whether Arrow may have changed numbers: infinite floats, negative hexadecimals.

    This is a quick test; `refuse_changed` compares with the texts.

    Args:
        column: the parsed values.
        data: the text that they were parsed from.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(column.type):
        return bool(pc.any(pc.is_inf(column)).as_py())
    if not pa.types.is_signed_integer(column.type) or not (b"x" in data or b"X" in data):
        return False
    least = pc.min(column).as_py()
    return least is not None and least < 0


def refuse_changed(column: pa.ChunkedArray, name: str, wider: pa.ChunkedArray) -> None:
    """Refuse finite numbers that became infinite, and hexadecimal ones that became negative.

    Args:
        column: the parsed values, floats or integers.
        name: the column's name.
        wider: the same values as text or as float64.

    Raises:
        pyarrow.ArrowInvalid: a number is out of the column's range.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from ...transport.wire.types import DataType

    if pa.types.is_integer(column.type):
        changed = pc.and_(pc.less(column, 0), pc.match_substring_regex(wider, _HEXADECIMAL))
    elif pa.types.is_string(wider.type):
        finite = pc.invert(pc.match_substring_regex(wider, _INFINITE))
        changed = pc.and_(pc.is_inf(column), finite)
    else:
        changed = pc.and_(pc.is_inf(column), pc.is_finite(wider))
    if pc.any(changed).as_py():
        first = wider.filter(pc.fill_null(changed, False))[0].as_py()
        kind = DataType.parse(str(column.type))
        msg = f"column {name!r}: {first} is beyond the range of {kind}"
        raise pa.ArrowInvalid(msg)


def refuse_long_decimals(table: pa.Table) -> None:
    """Refuse decimals with more digits than their types have.

    Arrow's readers count the digits of the text, before they add zeros for the type's scale.

    Raises:
        pyarrow.ArrowInvalid: a number is out of its column's range.
    """
    import pyarrow as pa

    for field in table.schema:
        if not pa.types.is_decimal(field.type):
            continue
        column = table.column(field.name)
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            limit = 10 ** (field.type.precision - field.type.scale)
            values = column.drop_null().to_pylist()
            first = next(value for value in values if abs(value) >= limit)
            msg = f"column {field.name!r}: {first} is beyond the range of {field.type}"
            raise pa.ArrowInvalid(msg) from None
