"""Makes columns and batches of Python values and numpy arrays.

Values that the caller may still change are copied; read-only arrays are shared.
"""

from __future__ import annotations

import datetime
import decimal
import math
import operator
import zoneinfo
from collections.abc import Mapping, Sequence
from itertools import compress, repeat
from typing import Any

import numpy as np
import pyarrow as pa

from ...configs.errors import InputError, UsageError
from .arrow import column_from_arrow, column_to_arrow, type_from_arrow, type_to_arrow
from .batch import Batch
from .column import BytesView, Column, is_frozen
from .types import DataType, Field, Schema, as_type, shared_schema
from .value_kinds import classes_of, fitted, is_null

_NUMBERS = "?biuf"
_FRACTIONS = (float, np.floating, decimal.Decimal)
_TIMES = (datetime.datetime, datetime.time, datetime.timedelta)
_SAFE = (list, tuple, pa.Array, pa.ChunkedArray)
"""Classes of values whose Arrow form shares no memory that may still change."""
_TEXTS = (str, bytes, bytearray)
"""Sequences that are no rows of values."""
_NO_COLUMNS = (str, bytes, bytearray, Mapping, set, frozenset)
"""Classes whose elements are not the rows' values, or are in no order."""
_EXACT_CLASSES = {"int64": int, "float64": float, "bool": bool}
"""By type: the class of values of which numpy makes such a column in one call, or refuses."""


def column_of(values: Any, type: str | DataType | None = None, what: str = "a column") -> Column:
    """See `Column.of`; `what` names the column in messages."""
    kind = None if type is None else as_type(type)
    if isinstance(values, BytesView):
        values = values.column
    if isinstance(values, Column):
        if kind is None or kind == values.type:
            return values
        values = column_to_arrow(values)
    if isinstance(values, np.ndarray):
        column = _column_of_array(values, kind, what)
        if column is not None:
            return column
    elif isinstance(values, _NO_COLUMNS) or not hasattr(values, "__len__"):
        raise InputError(_no_column(values, what))
    elif kind is not None and kind.name == "binary" and isinstance(values, list):
        column = _column_of_bytes(values, kind)
        if column is not None:
            return column
    return _column_through_arrow(values, kind, what)


def _no_column(values: object, what: str) -> str:
    kind = type(values).__name__
    article = "an" if kind[0] in "aeiou" else "a"
    return (
        f"{what} is {article} {kind}, not one value per row; give a list or an array, even of one "
        "value; out.emit_row(column=value, …) emits a single row"
    )


def batch_of_columns(columns: Mapping[str, Any], schema: Schema | None) -> Batch:
    """See `Batch.from_pydict`."""
    if schema is None:
        made = [column_of(values, None, f"column {name!r}") for name, values in columns.items()]
        fields = [Field(name, one.type) for name, one in zip(columns, made, strict=True)]
        schema = shared_schema(tuple(fields))
    else:
        _check_names(columns, schema, "the columns")
        made = [column_of(columns[one.name], one.type, f"column {one.name!r}") for one in schema]
    return Batch(schema, made)


def batch_of_rows(
    rows: Sequence[Mapping[str, Any] | Sequence[Any]],
    schema: Schema | None,
    *,
    learnt: bool = False,
) -> Batch:
    """See `Batch.from_rows`; with a `learnt` schema all values must be of the kind that it says."""
    if not isinstance(rows, Sequence) or isinstance(rows, (str, bytes)):
        msg = f"Batch.from_rows(rows=…) got a {type(rows).__name__}: pass a list of rows"
        raise UsageError(msg)
    if not rows:
        if schema is None:
            msg = "there is no row to take the columns from; give a schema"
            raise InputError(msg)
        return Batch.empty(schema)
    first = rows[0]
    if isinstance(first, Mapping):
        names = tuple(first) if schema is None else schema.names
    elif schema is None:
        msg = "rows without names; give a schema, or mappings by column name"
        raise InputError(msg)
    else:
        names = schema.names
    by_name = learnt or isinstance(first, Mapping)
    keys: Sequence[Any] = names if by_name else range(len(names))
    values = _transposed(rows, keys, names, None if learnt else schema)
    kinds = [None] * len(names) if schema is None else [one.type for one in schema]
    columns = [
        _column_of_rows(one, kind, f"column {name!r}", learnt)
        for name, one, kind in zip(names, values, kinds, strict=True)
    ]
    if schema is None:
        fields = [Field(name, one.type) for name, one in zip(names, columns, strict=True)]
        schema = shared_schema(tuple(fields))
    return Batch(schema, columns, len(rows))


def _transposed(
    rows: Sequence[Any], keys: Sequence[Any], names: Sequence[str], declared: Schema | None
) -> list[list[Any]]:
    """Return the values by column; rows are mappings by name or tuples by position."""
    try:
        values = [list(map(operator.itemgetter(key), rows)) for key in keys]
        widths = set(map(len, rows))
        if isinstance(keys, range) and not classes_of(rows).isdisjoint(_TEXTS):
            raise TypeError
    except (KeyError, IndexError, TypeError):
        raise InputError(_odd_row(rows, names, declared)) from None
    if widths != {len(names)}:
        raise InputError(_odd_row(rows, names, declared))
    return values


def _column_of_rows(values: list[Any], kind: DataType | None, what: str, learnt: bool) -> Column:
    if kind is None:
        return column_of(values, None, what)
    column = _column_at_once(values, kind)
    if column is not None:
        return column
    return _column_through_arrow(fitted(values, kind, what) if learnt else values, kind, what)


def _column_at_once(values: list[Any], kind: DataType) -> Column | None:
    """Return a column, made in one call, if all values are of the class that its type stands for.

    Otherwise, and where a value does not fit, return None: checks one by one find out which.
    """
    if kind.name == "string":
        return _column_of_ascii(values, kind) if classes_of(values) == {str} else None
    if kind.name == "binary":
        return _column_of_bytes(values, kind)
    is_instant = kind.family == "timestamp" and kind.unit == "us"
    wanted = datetime.datetime if is_instant else _EXACT_CLASSES.get(kind.name)
    if wanted is None or classes_of(values) != {wanted}:
        return None
    data: np.ndarray[Any, Any] | None
    try:
        if is_instant:
            data = _microseconds(values, kind)
        else:
            data = np.fromiter(values, kind.storage, len(values))
    except (TypeError, ValueError, OverflowError):
        return None
    if data is None:
        return None
    data.flags.writeable = False
    return Column(kind, data)


def _column_of_ascii(values: list[str], kind: DataType) -> Column | None:
    """Return a column of texts, None if they are not all ASCII: then bytes are not characters.

    Arrow is as fast, but loads pandas, if it is installed, for a list.
    """
    joined = "".join(values)
    if not joined.isascii() or len(joined) > np.iinfo(np.int32).max:
        return None
    return Column(kind, np.frombuffer(joined.encode(), np.uint8), _offsets(values))


def _column_of_bytes(values: list[Any], kind: DataType) -> Column | None:
    """Return a column of byte strings and None, None if there is anything else among them.

    As for text: checkpoints make such columns, and loading pandas would stop the job meanwhile.
    """
    classes = classes_of(values)
    if not classes <= {bytes, type(None)}:
        return None
    validity = None
    if type(None) in classes:
        validity = np.array([one is not None for one in values], np.bool_)
        values = [one or b"" for one in values]
    joined = b"".join(values)
    if len(joined) > np.iinfo(np.int32).max:
        return None
    return Column(kind, np.frombuffer(joined, np.uint8), _offsets(values), validity)


def _offsets(values: Sequence[str | bytes]) -> np.ndarray[Any, Any]:
    """Return where each of the values begins if they are joined, and the last one ends."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, values), np.int32, len(values)), out=offsets[1:])
    offsets.flags.writeable = False
    return offsets


def _microseconds(values: list[Any], kind: DataType) -> np.ndarray[Any, Any] | None:
    """Return the microseconds since 1970 of datetimes; None where Arrow computes them faster.

    Python subtracts datetimes of one fixed zone, or of none, without asking the zone of each.

    Raises:
        TypeError: some have a zone and some have none.
    """
    zone = values[0].tzinfo
    epoch = datetime.datetime(1970, 1, 1)  # noqa: DTZ001  # as the values have none
    if kind.timezone is None:
        if set(map(operator.attrgetter("tzinfo"), values)) != {None}:
            return None
    elif zone is None or not _is_fixed(zone):
        return None
    else:
        epoch = epoch.replace(tzinfo=datetime.UTC).astimezone(zone)
    since_epoch = pa.array(map(operator.sub, values, repeat(epoch)), pa.duration("us"))
    return since_epoch.to_numpy().astype(np.int64)


def _is_fixed(zone: datetime.tzinfo) -> bool:
    """Whether a zone is one of Python's own with the same offset from UTC at all times."""
    own = type(zone) in (datetime.timezone, zoneinfo.ZoneInfo)
    return own and zone.utcoffset(None) is not None


def _column_of_array(
    array: np.ndarray[Any, Any], kind: DataType | None, what: str
) -> Column | None:
    """Return a column that keeps numpy's memory layout, None where Arrow has to convert."""
    if array.ndim != 1:
        msg = f"{what} must be one-dimensional, not of shape {array.shape}"
        raise InputError(msg)
    validity = None
    if isinstance(array, np.ma.MaskedArray):
        if np.ma.is_masked(array):
            validity = ~np.ma.getmaskarray(array)
        array = np.asarray(array.data)
    native = array.dtype.newbyteorder("<") == array.dtype
    if kind is None and array.dtype.kind in _NUMBERS and native:
        kind = DataType.parse(array.dtype.name)
    same = kind is not None and kind.kind == "fixed" and array.dtype == kind.storage
    if not same or kind is None:
        if validity is None:
            return None
        if array.dtype.kind in _NUMBERS:  # what is masked may be anything, and need not fit
            array = np.where(validity, array, np.zeros((), array.dtype))
        column = column_of(array, kind, what)
        if column.validity is not None:
            validity &= column.validity
        return Column(column.type, column.data, column.offsets, validity)
    if not (is_frozen(array) and array.flags.c_contiguous):
        array = array.copy()
    return Column(kind, array, None, validity)


def _column_through_arrow(values: Any, kind: DataType | None, what: str) -> Column:
    wanted = None if kind is None else type_to_arrow(kind)
    try:
        array = _arrow_array(values, wanted)
        if (infinite := _made_infinite(values, array)) is not None:
            msg = f"{infinite!r} does not fit"
            raise ValueError(msg)  # as Arrow does of an integer
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        what = f"{what}, {kind}" if kind is not None else what
        remedy = "declare the type that its values have"
        problem = str(error).splitlines()[0]
        if isinstance(error, OverflowError) and (beyond := _beyond(values, kind)) is not None:
            problem = f"{beyond} does not fit"
            remedy = "declare decimal128(38, 0), or string and pass text"
        elif (misfit := _decimal_misfit(values, wanted)) is not None:
            problem = f"{misfit} does not fit"
            remedy = "declare a decimal with as many digits before and behind the point, or string"
        msg = f"{what}: {problem}; {remedy}"
        raise InputError(msg) from error
    if kind is None and pa.types.is_null(array.type):
        msg = f"{what} holds nothing but nulls; declare its type"
        raise InputError(msg)
    column = column_from_arrow(array, type_from_arrow(array.type, what), what)
    if column.offsets is None and not isinstance(values, _SAFE):
        # Arrow shares the memory of what it converts where it can, and that may still change.
        return Column(column.type, column.data.copy(), None, column.validity)
    return column


def _made_infinite(values: Any, array: pa.Array | pa.ChunkedArray) -> Any | None:
    """Return the first finite number that became infinite, as Arrow lets it in float16 and 32."""
    if not (pa.types.is_float16(array.type) or pa.types.is_float32(array.type)):
        return None
    is_infinite = np.isinf(array.to_numpy(zero_copy_only=False))
    if not is_infinite.any():
        return None
    for one in compress(values, is_infinite):
        value = one.as_py() if isinstance(one, pa.Scalar) else one
        if not math.isinf(value):
            return value.item() if isinstance(value, np.generic) else value
    return None


def _beyond(values: Any, kind: DataType | None) -> int | None:
    """Return the first integer that the type does not hold."""
    storage = np.dtype(np.int64) if kind is None else kind.storage
    if storage.kind not in "iu":
        return None
    limits = np.iinfo(storage)
    whole = (value for value in values if isinstance(value, int))
    return next((value for value in whole if not limits.min <= value <= limits.max), None)


def _decimal_misfit(values: Any, wanted: pa.DataType | None) -> decimal.Decimal | None:
    """Return the first decimal that a type of decimals does not hold."""
    if wanted is None or not pa.types.is_decimal(wanted):
        return None
    for value in values:
        if isinstance(value, decimal.Decimal):
            try:
                pa.array([value], wanted)
            except pa.ArrowException:
                return value
    return None


def _arrow_array(values: Any, wanted: pa.DataType | None) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values if wanted is None else values.cast(wanted)
    if isinstance(values, np.ndarray) and values.dtype.kind in _NUMBERS + "Mm":
        array = pa.array(values if values.dtype.isnative else values.astype(values.dtype.name))
        return array if wanted is None else array.cast(wanted)
    if wanted is not None and isinstance(values, list | tuple):
        if not values:
            return pa.nulls(0, wanted)  # pa.array loads pandas, if it is installed
        if (lost := _loses_time(values, wanted)) is not None:
            msg = f"{lost!r} would lose its {'time' if pa.types.is_date(wanted) else 'zone'}"
            raise ValueError(msg)
        if _may_round(values, wanted):
            return pa.array(values).cast(wanted)
    return pa.array(values, wanted)


def _loses_time(values: Sequence[Any], wanted: pa.DataType) -> datetime.datetime | None:
    """Return the first datetime whose time of day, or zone, Arrow would drop silently."""
    to_days = pa.types.is_date(wanted)
    if not (to_days or (pa.types.is_timestamp(wanted) and wanted.tz is None)):
        return None
    found = (v for v in values if isinstance(v, datetime.datetime) and not is_null(v))
    return next((value for value in found if to_days or value.tzinfo is not None), None)


def _may_round(values: Sequence[Any], wanted: pa.DataType) -> bool:
    """Whether Arrow would cut off a fraction silently; its cast of the same values refuses to."""
    rounded: tuple[type, ...]
    if pa.types.is_integer(wanted):
        rounded = _FRACTIONS
    elif pa.types.is_temporal(wanted):
        is_coarse = getattr(wanted, "unit", "us") in ("s", "ms")
        rounded = (*_FRACTIONS, *_TIMES) if is_coarse else _FRACTIONS
    else:
        return False
    return any(issubclass(kind, rounded) for kind in classes_of(values))


def _check_names(columns: Mapping[str, Any], schema: Schema, what: str) -> None:
    missing = [name for name in schema.names if name not in columns]
    unknown = [name for name in columns if name not in schema]
    if missing or unknown:
        lacks = f" lack {', '.join(map(repr, missing))}" if missing else ""
        adds = f" have {', '.join(map(repr, unknown))}, not in the schema" if unknown else ""
        msg = f"{what}{lacks}{' and' if lacks and adds else ''}{adds}; the schema is [{schema}]"
        raise InputError(msg)


def _odd_row(rows: Sequence[Any], names: Sequence[str], declared: Schema | None) -> str:
    for index, row in enumerate(rows):
        if isinstance(row, Mapping):
            if other := [name for name in row if not isinstance(name, str)]:
                return f"row {index} has the key {other[0]!r}; the names of columns are text"
            missing = [name for name in names if name not in row]
            unknown = [name for name in row if name not in names]
            if missing:
                return f"row {index} lacks column {missing[0]!r}; give None where there is no value"
            if unknown and declared is not None:
                return f"row {index} has column {unknown[0]!r}, not in the schema [{declared}]"
            if unknown:
                return f"row {index} has column {unknown[0]!r}, the others do not; declare a schema"
        elif isinstance(row, _TEXTS) or not hasattr(row, "__len__"):
            kind = type(row).__name__
            return f"row {index} is {row!r:.40}, {kind}: a row is a mapping, or a tuple of values"
        elif len(row) != len(names):
            return f"row {index} has {len(row)} values for {len(names)} columns: {', '.join(names)}"
    return "rows are of different kinds; make all of them mappings, or all of them tuples"
