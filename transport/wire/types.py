"""Data types, fields and schemas: what a column may hold and how it is stored.

There are two kinds of storage:

* ``fixed``: one numpy array with one element per row (`DataType.storage`), with the same bytes as
  in Arrow, except that booleans take a byte instead of a bit;
* ``bytes``: a pool of bytes and int32 offsets into it (strings and binary, large ones included).

In messages a type is its name (``"timestamp[ms, tz=UTC]"``), so this module needs numpy alone.
"""

from __future__ import annotations

import difflib
import functools
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...configs.errors import CorruptedMessageError, InputError
from .type_names import name_of_type, nearest_name

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

_PLAIN: dict[str, str] = {
    "bool": "?",
    "int8": "i1",
    "int16": "<i2",
    "int32": "<i4",
    "int64": "<i8",
    "uint8": "u1",
    "uint16": "<u2",
    "uint32": "<u4",
    "uint64": "<u8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
    "date32": "<i4",
    "date64": "<i8",
}
_POOLED = ("string", "large_string", "binary", "large_binary")
_ALIASES = {
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
    "date32[day]": "date32",
    "date64[ms]": "date64",
}
_UNITS = {
    "time32": ("s", "ms"),
    "time64": ("us", "ns"),
    "timestamp": ("s", "ms", "us", "ns"),
    "duration": ("s", "ms", "us", "ns"),
}
_WITH_UNIT = re.compile(r"(time32|time64|timestamp|duration)\[(s|ms|us|ns)(?:, tz=(.+))?\]")
_DECIMAL = re.compile(r"decimal128\((\d+), ?(-?\d+)\)")
_FIXED_BINARY = re.compile(r"fixed_size_binary[(\[](\d+)[)\]]")

_DECIMAL_DIGITS_MAX = 38
_FIXED_BINARY_BYTES_MAX = 1 << 20
_COLUMNS_MAX = 65_535
_NAME_BYTES_MAX = 65_535
SCHEMAS_REMEMBERED = 256
"""Caches of functions from and to schemas hold at most so many."""

_DERIVED_SCHEMAS_MAX = 64
"""A schema caches at most so many of its own selections and extensions."""


@dataclass(frozen=True, slots=True)
class DataType:
    """The type of a column; make one with `DataType.parse`.

    Attributes:
        name: its whole text, such as ``"int64"`` or ``"decimal128(10, 2)"``; it decides equality.
        family: the name without its parameters, such as ``"timestamp"``.
        kind: ``"fixed"`` or ``"bytes"``.
        storage: numpy's type of the raw data (uint8 for ``"bytes"``).
        unit: ``"s"``, ``"ms"``, ``"us"`` or ``"ns"`` for times and durations.
        timezone: a timestamp's zone; its values are instants in UTC all the same.
        precision: a decimal's digits.
        scale: a decimal's digits after the point.
    """

    name: str
    family: str = field(compare=False)
    kind: Literal["fixed", "bytes"] = field(compare=False)
    storage: np.dtype[Any] = field(compare=False)
    unit: str | None = field(default=None, compare=False)
    timezone: str | None = field(default=None, compare=False)
    precision: int | None = field(default=None, compare=False)
    scale: int | None = field(default=None, compare=False)

    @staticmethod
    def parse(name: str) -> DataType:
        """Return the type of that name.

        Raises:
            InputError: whale-ray carries no such type.
        """
        return _parse(name)

    @property
    def width(self) -> int:
        """Bytes of one row, 0 for a type of kind ``"bytes"``."""
        return self.storage.itemsize if self.kind == "fixed" else 0

    @property
    def is_text(self) -> bool:
        """Whether values are Python strings rather than bytes."""
        return self.family in ("string", "large_string")

    def __str__(self) -> str:
        return self.name


@functools.lru_cache(maxsize=1024)
def _parse(name: str) -> DataType:
    name = _ALIASES.get(name, name)
    if name in _PLAIN:
        return DataType(name, name, "fixed", np.dtype(_PLAIN[name]))
    if name in _POOLED:
        return DataType(name, name, "bytes", np.dtype(np.uint8))
    if match := _WITH_UNIT.fullmatch(name):
        family, unit, timezone = match.groups()
        if unit in _UNITS[family] and (timezone is None or family == "timestamp"):
            storage = np.dtype("<i4" if family == "time32" else "<i8")
            return DataType(name, family, "fixed", storage, unit=unit, timezone=timezone)
    if match := _DECIMAL.fullmatch(name):
        precision, scale = int(match[1]), int(match[2])
        if 1 <= precision <= _DECIMAL_DIGITS_MAX:
            text = f"decimal128({precision}, {scale})"
            return DataType(
                text, "decimal128", "fixed", np.dtype("V16"), precision=precision, scale=scale
            )
    if match := _FIXED_BINARY.fullmatch(name):
        width = int(match[1])
        if 1 <= width <= _FIXED_BINARY_BYTES_MAX:
            text = f"fixed_size_binary({width})"
            return DataType(text, "fixed_size_binary", "fixed", np.dtype(f"V{width}"))
    msg = f"whale-ray has no type {name!r}; it supports {', '.join(accepted_types())}"
    raise InputError(msg)


def accepted_types() -> tuple[str, ...]:
    """Return the names of all supported types, parameters as placeholders."""
    with_units = [f"{family}[{'|'.join(units)}]" for family, units in _UNITS.items()]
    return (*_PLAIN, *with_units, "decimal128(p, s)", *_POOLED, "fixed_size_binary(n)")


@dataclass(frozen=True, slots=True)
class Field:
    """A named, typed column of a schema; `nullable` says whether nulls may be expected."""

    name: str
    type: DataType
    nullable: bool = True

    def __str__(self) -> str:
        return f"{self.name}: {self.type.name}{'' if self.nullable else ' not null'}"


@dataclass(frozen=True)
class Schema:
    """The columns of a batch, in order; names are unique.

    Raises:
        InputError: two columns have the same name, or there are more than 65,535.
    """

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", tuple(self.fields))
        if len(self.fields) > _COLUMNS_MAX:
            msg = f"a schema of {len(self.fields)} columns; the limit is {_COLUMNS_MAX}"
            raise InputError(msg)
        for one in self.fields:
            if not isinstance(one.name, str):
                kind = type(one.name).__name__
                msg = f"a column is called {one.name!r}, {kind}: names are text, {str(one.name)!r}"
                raise InputError(msg)
        if len(self._positions) < len(self.fields):
            names = [one.name for one in self.fields]
            twice = next(name for name in names if names.count(name) > 1)
            msg = f"two columns are called {twice!r}; rename one of them"
            raise InputError(msg)

    def __hash__(self) -> int:
        return self.schema_id

    @classmethod
    def of(cls, **types: str | type | DataType) -> Schema:
        """Return a schema of nullable columns: ``Schema.of(vehicle_id="string", lat="int32")``.

        Types are named as whale-ray or Spark does ("int64" or "bigint"; "int" has 32 bits), in any
        case, or are Python's (`int` has 64 bits), numpy's, pyarrow's or pyspark's.

        Raises:
            InputError: whale-ray carries no such type; which one is near, or all that there are.
        """
        return cls(tuple(Field(name, _type_of_column(name, kind)) for name, kind in types.items()))

    @classmethod
    def from_arrow(cls, schema: pa.Schema) -> Schema:
        """Return the schema of Arrow data, without metadata.

        Raises:
            InputError: a column has a type that whale-ray does not support; the message names both.
        """
        from .arrow import schema_from_arrow

        return schema_from_arrow(schema)

    def to_arrow(self) -> pa.Schema:
        """Return the same schema in Arrow."""
        from .arrow import schema_to_arrow

        return schema_to_arrow(self)

    def __len__(self) -> int:
        return len(self.fields)

    def __iter__(self) -> Iterator[Field]:
        return iter(self.fields)

    def __contains__(self, name: object) -> bool:
        return name in self._positions

    def __str__(self) -> str:
        return ", ".join(str(one) for one in self.fields)

    def __reduce__(self) -> tuple[type[Schema], tuple[tuple[Field, ...]]]:
        return Schema, (self.fields,)

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The columns' names in order."""
        return tuple(one.name for one in self.fields)

    def index(self, name: str) -> int:
        """Return a column's position.

        Raises:
            InputError: there is no such column; the message names the nearest one.
        """
        position = self._positions.get(name)
        if position is None:
            near = difflib.get_close_matches(str(name), self.names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(self.names)}"
            msg = f"no column {name!r}; {hint}"
            raise InputError(msg)
        return position

    def field(self, name: str) -> Field:
        """Return a column's field; raise InputError as `index` does."""
        return self.fields[self.index(name)]

    def select(self, names: Sequence[str]) -> Schema:
        """Return the schema of these columns, in this order."""
        names = tuple(names)
        return self._derive(
            ("select", names), lambda: Schema(tuple(self.field(name) for name in names))
        )

    def drop(self, names: Iterable[str]) -> Schema:
        """Return the schema without these columns."""
        dropped = {name: self.index(name) for name in names}
        return self.select([name for name in self.names if name not in dropped])

    def rename(self, names: Mapping[str, str]) -> Schema:
        """Return the schema with columns renamed, old name to new name."""

        def build() -> Schema:
            new = {self.index(old): name for old, name in names.items()}
            return Schema(
                tuple(
                    Field(new.get(position, one.name), one.type, one.nullable)
                    for position, one in enumerate(self.fields)
                )
            )

        return self._derive(("rename", tuple(names.items())), build)

    def with_field(self, added: Field) -> Schema:
        """Return the schema with one more column, or with the one of that name replaced."""

        def build() -> Schema:
            if added.name not in self:
                return Schema((*self.fields, added))
            position = self.index(added.name)
            return Schema((*self.fields[:position], added, *self.fields[position + 1 :]))

        return self._derive(("with", added), build)

    def unify(self, other: Schema) -> Schema:
        """Return the schema that both convert to without loss: same names in the same order.

        Numbers widen (int32 with int64, int32 with float64), strings become large strings.

        Raises:
            InputError: the columns differ; the message names them.
        """
        if self is other or self == other:
            return self
        if self.names != other.names:
            msg = f"columns differ: [{self}] and [{other}]; select the same ones, in the same order"
            raise InputError(msg)
        return Schema(tuple(_unify_fields(*pair) for pair in zip(self, other, strict=True)))

    def to_bytes(self) -> bytes:
        """Return the schema as bytes, the payload of a schema message.

        ::

            columns u16 │ per column:  nullable u16 │ name bytes u16 │ type bytes u16 │ name │ type
        """
        parts = [struct.pack("<H", len(self.fields))]
        for one in self.fields:
            name, kind = one.name.encode(), one.type.name.encode()
            if len(name) > _NAME_BYTES_MAX:
                msg = f"column {one.name[:40]!r}… has a name of {len(name)} bytes; shorten it"
                raise InputError(msg)
            parts += [struct.pack("<HHH", one.nullable, len(name), len(kind)), name, kind]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> Schema:
        """Read what `to_bytes` wrote.

        Raises:
            CorruptedMessageError: the bytes are not a schema.
        """
        try:
            return cls(tuple(_read_fields(data)))
        except (struct.error, ValueError, InputError) as error:
            msg = f"the {len(data)} bytes of a schema message are not a schema ({error})"
            raise CorruptedMessageError(msg) from error

    @functools.cached_property
    def schema_id(self) -> int:
        """A stable non-zero 32-bit name of this schema: the CRC-32 of `to_bytes`."""
        return zlib.crc32(self.to_bytes()) or 1

    @functools.cached_property
    def layout(self) -> npt.NDArray[np.int64]:
        """Bytes per row of each column and of the hidden event times: int64 (columns + 1,).

        0 stands for a pool of bytes, -1 for booleans (a byte that may only be 0 or 1).
        """
        widths = [-1 if one.type.family == "bool" else one.type.width for one in self.fields]
        return np.array([*widths, 8], np.int64)

    @functools.cached_property
    def _positions(self) -> dict[str, int]:
        return {one.name: position for position, one in enumerate(self.fields)}

    @functools.cached_property
    def _derived(self) -> dict[object, Schema]:
        return {}

    def _derive(self, key: object, build: Callable[[], Schema]) -> Schema:
        """Return a derived schema from the cache: operators ask for the same one for every batch.

        The cache is emptied when it is full.
        """
        known = self._derived.get(key)
        if known is None:
            known = build()
            if len(self._derived) >= _DERIVED_SCHEMAS_MAX:
                self._derived.clear()
            self._derived[key] = known
        return known


@functools.lru_cache(maxsize=SCHEMAS_REMEMBERED)
def shared_schema(fields: tuple[Field, ...]) -> Schema:
    """Return the schema of these fields, the same object each time: it caches its layout."""
    return Schema(fields)


def as_type(kind: str | type | DataType) -> DataType:
    """Return a type as users give it: itself, a name, or a type of Python's or numpy's.

    Raises:
        InputError: there is no such type; which one is near, or all that there are.
    """
    if isinstance(kind, DataType):
        return kind
    try:
        return DataType.parse(name_of_type(kind))
    except InputError:
        known = (*_PLAIN, *_POOLED, *_ALIASES)
        near = nearest_name(kind, known) if isinstance(kind, str) else None
        if near is None:
            raise
        msg = f"whale-ray has no type {kind!r}; did you mean {near!r}?"
        raise InputError(msg) from None


def _type_of_column(name: str, kind: str | type | DataType) -> DataType:
    try:
        return as_type(kind)
    except InputError as error:
        msg = f"column {name!r}: {error}"
        raise InputError(msg) from None


def _read_fields(data: bytes) -> Iterator[Field]:
    (count,) = struct.unpack_from("<H", data, 0)
    position = 2
    for _ in range(count):
        nullable, name_bytes, type_bytes = struct.unpack_from("<HHH", data, position)
        position += 6
        name = data[position : position + name_bytes].decode()
        position += name_bytes
        kind = DataType.parse(data[position : position + type_bytes].decode())
        position += type_bytes
        if position > len(data) or nullable > 1:
            msg = "a field overruns the message"
            raise ValueError(msg)
        yield Field(name, kind, bool(nullable))


def _unify_fields(left: Field, right: Field) -> Field:
    nullable = left.nullable or right.nullable
    if left.type == right.type:
        return Field(left.name, left.type, nullable)
    wider = _wider(left.type, right.type)
    if wider is None:
        msg = (
            f"column {left.name!r} is {left.type} in one batch and {right.type} in another; "
            f"cast one of them"
        )
        raise InputError(msg)
    return Field(left.name, wider, nullable)


def _wider(left: DataType, right: DataType) -> DataType | None:
    families = {left.family, right.family}
    for small in ("string", "binary"):
        if families == {small, f"large_{small}"}:
            return DataType.parse(f"large_{small}")
    numbers = "iuf"
    if left.storage.kind not in numbers or right.storage.kind not in numbers:
        return None
    if left.family not in _PLAIN or right.family not in _PLAIN or "date" in left.name + right.name:
        return None
    name = np.promote_types(left.storage, right.storage).name
    # numpy promotes int64 with floats to float64, which loses integers beyond 2**53
    if name == "float64" and any(t.storage.kind in "iu" and t.width == 8 for t in (left, right)):
        return None
    return DataType.parse(name)
