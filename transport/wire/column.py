"""One column of a batch: raw numpy arrays, a view of its values, and who owns the memory."""

from __future__ import annotations

import datetime
import functools
import itertools
import zoneinfo
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ...configs.errors import InputError
from .types import DataType

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]

_PYTHON_FAMILIES = frozenset(
    {
        *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "bool"),
    }
)
"""The families whose numpy values are Python's own values."""

_PYTHON_TIMES_MAX = {
    ("date32", None): 717_000,
    ("timestamp", "s"): 62_000_000_000,
    ("timestamp", "ms"): 62_000_000_000_000,
    ("timestamp", "us"): 62_000_000_000_000_000,
    ("duration", "s"): 62_000_000_000,
    ("duration", "ms"): 62_000_000_000_000,
    ("duration", "us"): 62_000_000_000_000_000,
}
"""Limits well within Python's date, datetime and timedelta: 1,964 years before and after 1970."""


class Column:
    """The values of one column, immutable.

    The column takes over the arrays: they become read-only, and other views of them must not be
    written to. `Column.of` takes values of any kind and copies those that may still change.

    Attributes:
        type: what the values are.
        data: for a fixed type ``type.storage`` (n,); else the pool, uint8 (pool bytes,).
        offsets: int32 (n + 1,) into the pool, not necessarily from 0; None for a fixed type.
        validity: bool (n,), True where there is a value; None where no row is null. Under a null
            `data` holds anything.

    Raises:
        InputError: the arrays do not fit the type or each other.
    """

    __slots__ = ("data", "offsets", "type", "validity")

    type: DataType
    data: Array
    offsets: npt.NDArray[np.int32] | None
    validity: npt.NDArray[np.bool_] | None

    def __init__(
        self,
        type: DataType,
        data: Array,
        offsets: npt.NDArray[np.int32] | None = None,
        validity: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        self.type = type
        self.data = _raw(data, type.storage, "data")
        if type.kind == "bytes":
            if offsets is None:
                msg = f"a column of {type} needs offsets"
                raise InputError(msg)
            self.offsets = _raw(offsets, np.dtype(np.int32), "offsets")
            _check_offsets(self.offsets, self.data.size)
        else:
            if offsets is not None:
                msg = f"a column of {type} has no offsets"
                raise InputError(msg)
            self.offsets = None
        self.validity = None if validity is None else _raw(validity, np.dtype(np.bool_), "validity")
        if self.validity is not None and self.validity.size != len(self):
            msg = f"validity has {self.validity.size} rows, its column {len(self)}"
            raise InputError(msg)

    @classmethod
    def of(cls, values: Any, type: str | DataType | None = None) -> Column:
        """Return a column of these values; numpy's and Arrow's null, None and NaT become nulls.

        Args:
            values: a numpy array, a sequence of Python values, an Arrow array or another column.
            type: their type; without it the values decide.

        Raises:
            InputError: the values have another type, or an unsupported one.
        """
        from .conversion import column_of

        return column_of(values, type)

    def __len__(self) -> int:
        return self.data.size if self.offsets is None else self.offsets.size - 1

    def __repr__(self) -> str:
        return f"Column({self.type}, {len(self)} rows, {self.null_count} null)"

    @property
    def null_count(self) -> int:
        """How many rows are null."""
        return 0 if self.validity is None else len(self) - int(np.count_nonzero(self.validity))

    @property
    def nbytes(self) -> int:
        """Bytes that the rows take, offsets and validity included."""
        size = 0 if self.validity is None else self.validity.size
        if self.offsets is None:
            return size + self.data.nbytes
        return size + self.offsets.nbytes + int(self.offsets[-1]) - int(self.offsets[0])

    @property
    def owned(self) -> bool:
        """Whether no array is a view of received memory (or of other memory unknown to numpy)."""
        return all(
            array is None or is_owned(array) for array in (self.data, self.offsets, self.validity)
        )

    def slice(self, start: int, stop: int) -> Column:
        """Return the rows from `start` to before `stop`, both in range, without a copy."""
        validity = None if self.validity is None else self.validity[start:stop]
        if self.offsets is None:
            return trusted_column(self.type, self.data[start:stop], None, validity)
        return trusted_column(self.type, self.data, self.offsets[start : stop + 1], validity)

    def to_numpy(self) -> Array | BytesView:
        """Return the values as functions on columns get them.

        A read-only array without a copy; timestamps, date64 and durations as datetime64 and
        timedelta64 of their unit (a zone's instants in UTC); date32 as datetime64[D] and decimals
        as Python objects, both copied; times as raw integers of their unit. A column with nulls
        gives a `numpy.ma.MaskedArray`, strings and binary a `BytesView`.
        """
        if self.offsets is not None:
            return BytesView(self)
        values = _typed(self)
        if self.validity is None or self.null_count == 0:
            return values
        return np.ma.MaskedArray(values, mask=~self.validity)

    def to_pylist(self) -> list[Any]:
        """Return Python values, None for null: the same as Arrow's `to_pylist` returns.

        Raises:
            InputError: a date is outside the years 1 to 9999, or a time of day has nanoseconds.
        """
        if self.offsets is not None:
            values = _python_bytes(self)
        elif self.type.family in _PYTHON_FAMILIES:
            values = self.data.tolist()
        elif _is_python_time(self):
            values = _typed(self).tolist()
        elif (zone := _zone_of(self)) is not None:
            values = _zoned(self, zone)
        else:
            return _values_of_arrow(self)
        if self.validity is not None:
            for row in np.flatnonzero(~self.validity).tolist():
                values[row] = None
        return values

    def equals(self, other: Column) -> bool:
        """Whether both hold the same values bit by bit, nulls apart (so a NaN equals itself)."""
        if self.type != other.type or len(self) != len(other):
            return False
        valid = np.ones(len(self), np.bool_) if self.validity is None else self.validity
        valid_there = np.ones(len(self), np.bool_) if other.validity is None else other.validity
        if not np.array_equal(valid, valid_there):
            return False
        if self.offsets is None:
            return self.data[valid].tobytes() == other.data[valid].tobytes()
        return _raw_values(self)[valid].tolist() == _raw_values(other)[valid].tolist()


class BytesView:
    """The values of a string or binary column: `len`, one value by its row, comparison, lists.

    ``view == "x"`` gives a bool array (n,), False where the value is null; so does ``view != "x"``.
    """

    __slots__ = ("column",)
    __hash__ = None  # type: ignore[assignment]  # comparison is by element, as numpy's

    def __init__(self, column: Column) -> None:
        self.column = column

    def __len__(self) -> int:
        return len(self.column)

    @overload
    def __getitem__(self, row: int) -> str | bytes | None: ...

    @overload
    def __getitem__(self, row: slice) -> BytesView: ...

    def __getitem__(self, row: int | slice) -> str | bytes | BytesView | None:
        column = self.column
        if isinstance(row, slice):
            start, stop, step = row.indices(len(column))
            if step != 1:
                msg = "a BytesView is sliced without a step; use Batch.take"
                raise InputError(msg)
            return BytesView(column.slice(start, max(start, stop)))
        size = len(column)
        if not -size <= row < size:
            msg = f"row {row} of {size}"
            raise IndexError(msg)
        row = row % size
        if column.validity is not None and not column.validity[row]:
            return None
        offsets = column.offsets
        assert offsets is not None
        raw = column.data[offsets[row] : offsets[row + 1]].tobytes()
        return _text(raw, row) if column.type.is_text else raw

    def __iter__(self) -> Iterator[str | bytes | None]:
        return iter(self.to_pylist())

    def __eq__(self, other: object) -> Array:  # type: ignore[override]  # by element, as numpy's
        equal, valid = self._compare(other)
        return equal & valid

    def __ne__(self, other: object) -> Array:  # type: ignore[override]  # by element, as numpy's
        equal, valid = self._compare(other)
        return ~equal & valid

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.to_numpy(), dtype)

    def __repr__(self) -> str:
        head = ", ".join(repr(value) for value in self[:5])
        return f"BytesView([{head}{', …' if len(self) > 5 else ''}], {len(self)} rows)"

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Bytes of each value: int32 (n,)."""
        assert self.column.offsets is not None
        return np.diff(self.column.offsets)

    @property
    def is_null(self) -> npt.NDArray[np.bool_]:
        """True where there is no value: bool (n,)."""
        validity = self.column.validity
        return np.zeros(len(self), np.bool_) if validity is None else ~validity

    def to_pylist(self) -> list[str | bytes | None]:
        """Return the values as str or bytes, None for null."""
        return self.column.to_pylist()

    def to_numpy(self) -> Array:
        """Return the values as an array of Python objects (n,)."""
        values = np.empty(len(self), object)
        values[:] = self.to_pylist()
        return values

    def _compare(self, other: object) -> tuple[Array, Array]:
        if isinstance(other, BytesView) or not isinstance(other, str | bytes):
            msg = (
                f"strings and binary compare with one str or bytes, not {type(other).__name__}; "
                f"use a column expression"
            )
            raise InputError(msg)
        column = self.column
        assert column.offsets is not None
        wanted = np.frombuffer(other.encode() if isinstance(other, str) else other, np.uint8)
        equal = np.asarray(self.lengths == wanted.size)
        rows = np.flatnonzero(equal)
        if wanted.size and rows.size:
            places = column.offsets[rows][:, None] + np.arange(wanted.size)
            equal[rows] = (column.data[places] == wanted).all(axis=1)
        return equal, ~self.is_null


def trusted_column(
    type: DataType,
    data: Array,
    offsets: npt.NDArray[np.int32] | None,
    validity: npt.NDArray[np.bool_] | None,
) -> Column:
    """Return a column of read-only arrays that are known to fit: no check, for the hot path."""
    column = object.__new__(Column)
    column.type = type
    column.data = data
    column.offsets = offsets
    column.validity = validity
    return column


def is_owned(array: Array) -> bool:
    """Whether the memory under an array is numpy's own or a bytes object's.

    Anything else may be a ring's, which cannot advance while a frame is in use: Arrow's memory,
    too, since Arrow shares that of received columns; but not a source's, see `SourceMemory`.
    """
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.flags.owndata or isinstance(array.base, bytes | SourceMemory)


class SourceMemory:
    """Memory in which a source's rows lie, decoded or mapped: no ring's, so views may be kept.

    An array of it is made by `numpy.asarray`: read-only, of `dtype` (count,).

    Args:
        address: of the first byte.
        count: of the values.
        dtype: of each.
        holder: what keeps the memory in place, such as a buffer of Arrow's.
    """

    __slots__ = ("__array_interface__", "_holder")

    def __init__(self, address: int, count: int, dtype: np.dtype[Any], holder: Any) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": (count,),
            "typestr": dtype.str,
            "data": (address, True),
        }
        self._holder = holder


def is_frozen(array: Array) -> bool:
    """Whether no array that shares the memory can be written to, as far as numpy knows."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        if array.base is None or not isinstance(array.base, np.ndarray):
            return True
        array = array.base
    return True


def _raw(array: Array, dtype: np.dtype[Any], what: str) -> Array:
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype != dtype:
        shown = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(array)
        msg = f"{what} must be an array of {dtype} (n,), not {shown}"
        raise InputError(msg)
    if type(array) is not np.ndarray or not (array.flags.c_contiguous and array.flags.aligned):
        array = np.array(array, dtype, order="C", subok=False)
    array.flags.writeable = False
    return array


def _check_offsets(offsets: npt.NDArray[np.int32], pool_bytes: int) -> None:
    if offsets.size == 0:
        msg = "offsets are empty; n rows need n + 1 of them"
        raise InputError(msg)
    from .text_kernels import offsets_fit  # numba is not loaded to build a topology

    if not offsets_fit(offsets, pool_bytes):
        msg = f"offsets must rise from 0 or more to at most the pool's {pool_bytes} bytes"
        raise InputError(msg)


def _typed(column: Column) -> Array:
    family, unit = column.type.family, column.type.unit
    if family == "timestamp":
        return column.data.view(f"M8[{unit}]")
    if family == "duration":
        return column.data.view(f"m8[{unit}]")
    if family == "date64":
        return column.data.view("M8[ms]")
    if family == "date32":
        return column.data.astype(np.int64).view("M8[D]")
    if family == "decimal128":
        values = np.empty(len(column), object)
        values[:] = column.to_pylist()
        return values
    return column.data


def _values_of_arrow(column: Column) -> list[Any]:
    from .arrow import column_to_arrow

    array = column_to_arrow(column)
    if column.type.name == "time64[ns]":
        _refuse_nanoseconds(array)
    try:
        return array.to_pylist()
    except (OverflowError, ValueError) as error:
        msg = (
            f"a {column.type} is no value of Python's ({error}), whose years are 1 to 9999:"
            " cast it to 'string', or pass it on in columns"
        )
        raise InputError(msg) from error


def _refuse_nanoseconds(times: Any) -> None:
    """Raise InputError if Python's times, which Arrow would round them to, do not hold all."""
    values = times.drop_null().view("int64").to_numpy()
    odd = np.flatnonzero(values % 1000)
    if odd.size:
        shown = times.drop_null()[int(odd[0])].cast("string")
        msg = (
            f"the time64[ns] {shown} is no value of Python's, whose times have microseconds:"
            " cast it to 'string', or pass it on in columns, which have integers"
        )
        raise InputError(msg)


def _is_python_time(column: Column) -> bool:
    """Whether numpy makes the same Python objects of the values as Arrow does (it is faster)."""
    return column.type.timezone is None and _fits_python(column)


def _fits_python(column: Column) -> bool:
    limit = _PYTHON_TIMES_MAX.get((column.type.family, column.type.unit))
    if limit is None:
        return False
    return not len(column) or bool(column.data.min() > -limit and column.data.max() < limit)


def _zone_of(column: Column) -> datetime.tzinfo | None:
    """Return the zone that Arrow's values would have; None if only Arrow can make the values."""
    name = column.type.timezone
    if name is None or not _fits_python(column):
        return None
    return datetime.UTC if name == "UTC" else _zone(name)


@functools.lru_cache(maxsize=64)
def _zone(name: str) -> datetime.tzinfo | None:
    from pyarrow.lib import string_to_tzinfo

    try:
        zone = string_to_tzinfo(name)
    except Exception:  # noqa: BLE001  # a zone unknown here: Arrow raises when it makes the values
        return None
    return zone if isinstance(zone, datetime.timezone | zoneinfo.ZoneInfo) else None


def _zoned(column: Column, zone: datetime.tzinfo) -> list[Any]:
    since_epoch = column.data.view(f"m8[{column.type.unit}]").tolist()
    instants = map(datetime.datetime(1970, 1, 1, tzinfo=zone).__add__, since_epoch)
    return list(instants if zone is datetime.UTC else map(zone.fromutc, instants))


def _raw_values(column: Column) -> Array:
    assert column.offsets is not None
    pool = column.data.tobytes()
    ends = column.offsets.tolist()
    values = np.empty(len(column), object)
    values[:] = [pool[a:b] for a, b in itertools.pairwise(ends)]
    return values


def _python_bytes(column: Column) -> list[Any]:
    assert column.offsets is not None
    first = int(column.offsets[0])
    pool = column.data[first : int(column.offsets[-1])].tobytes()
    ends = (column.offsets - np.int32(first)).tolist()
    pairs = itertools.pairwise(ends)
    if not column.type.is_text:
        return [pool[a:b] for a, b in pairs]
    if pool.isascii():
        text = pool.decode("ascii")
        return [text[a:b] for a, b in pairs]
    return _python_text(pool, column.offsets - np.int32(first)) or [
        _text(pool[a:b], row) for row, (a, b) in enumerate(pairs)
    ]


def _python_text(pool: bytes, offsets: npt.NDArray[np.int32]) -> list[Any] | None:
    """Return the values of a UTF-8 pool, decoded at once; None if one of them is not UTF-8."""
    begins_character = (np.frombuffer(pool, np.uint8) & 0xC0) != 0x80
    if not begins_character[offsets[offsets < len(pool)]].all():
        return None
    try:
        text = pool.decode()
    except UnicodeDecodeError:
        return None
    # A value's byte offsets become offsets in characters: how many of them begin before each byte.
    characters = np.concatenate([[0], np.cumsum(begins_character)])
    return [text[a:b] for a, b in itertools.pairwise(characters[offsets].tolist())]


def _text(raw: bytes, row: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        msg = f"row {row} of a string column is not UTF-8: {raw[:40]!r}; declare it as binary"
        raise InputError(msg) from error
