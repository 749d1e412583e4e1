"""Which records of a block of CSV are malformed beyond doubt, found for all of them at once.

Arrow rejects a block as a whole, and finding the culprits by parsing ever smaller parts of it costs
about ten parses for each. But most show by themselves: they have another number of fields, or a
field that no value of its type looks like. The fields of a block are read as bytes, once, and
matched against what their types look like. What passes may be malformed all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .text_encoding import undecodable

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

_DIGITS_MAX = {8: 3, 16: 5, 32: 10, 64: 19}
_DECIMAL = r"[+-]?[0-9.][0-9.eE+-]*"


def malformed_values(fields: pa.Table, schema: pa.Schema) -> npt.NDArray[np.bool_]:
    """Return which rows have a value that their column's type cannot have.

    Args:
        fields: the columns of `schema` as binary, as they stand in the file; nulls are values.
        schema: the types as which they shall be read.
    """
    found = np.zeros(fields.num_rows, bool)
    for field in schema:
        found |= _unlike(fields.column(field.name), field.type)
    return found


def of_all_records(
    records: Sequence[bytes],
    wrong_lengths: Sequence[int],
    values: npt.NDArray[np.bool_],
    blank: bool,
) -> npt.NDArray[np.bool_] | None:
    """Return which records are malformed, shape (records,); None if they cannot be told apart.

    Args:
        records: with their line ends.
        wrong_lengths: the numbers of those with more or fewer fields than there are columns,
            counted from 1.
        values: of the others, which have a malformed value.
        blank: whether blank records are rows, and not passed over, as which they are not counted.
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
    """Return which values of a column of bytes are none of a type; none if that is not known."""
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
    """Return a regular expression that matches all texts of a type that Arrow reads, and others."""
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
