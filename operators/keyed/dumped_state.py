"""What keyed processes dumped of their declared state, as a table that people read.

`KeyedState.dump` returns, key by key, the fields of records under names that begin with `#`, then
the entries of each list and map, in the same order of keys. Here they become one row per key: a
column for each declared value, with its type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ...configs.errors import InputError
from ...state.node_transfer import column_name, set_column
from ...state.timers import NO_TIME
from ...transport.wire.arrow import type_to_arrow
from ...transport.wire.types import DataType

__all__ = ["DeclaredValue", "declared_table", "declared_values"]

_DECLARATION = re.compile(
    r"(?P<name>\w+): (?P<kind>count|sum|min|max|value|list|map|timer)"
    r"(?: \(\w+ time\))?(?: of (?P<type>.+?))?(?: to (?P<to>.+?))?(?:, ttl .+)?"
)
_NULLABLE = ("min", "max", "value")


@dataclass(frozen=True)
class DeclaredValue:
    """A declared value, as a manifest describes it.

    Attributes:
        name: of the class's attribute.
        kind: which function declared it.
        type: of the value; None for a timer.
        key_type: of a map.
    """

    name: str
    kind: str
    type: pa.DataType | None
    key_type: pa.DataType | None = None


def declared_values(described: Sequence[str]) -> list[DeclaredValue] | None:
    """Return what `StateDeclaration.describe` said; None if that is not where it comes from."""
    found = [_DECLARATION.fullmatch(text) for text in described]
    if not found or not all(found):
        return None
    return [_value_of(one) for one in found if one is not None]


def _value_of(found: re.Match[str]) -> DeclaredValue:
    name, kind = found["name"], found["kind"]
    if kind == "timer":
        return DeclaredValue(name, kind, None)
    if kind == "count":
        return DeclaredValue(name, kind, pa.int64())
    first = _arrow_type(found["type"])
    if kind == "map":
        return DeclaredValue(name, kind, _arrow_type(found["to"]), first)
    return DeclaredValue(name, kind, first)


def _arrow_type(text: str) -> pa.DataType:
    return type_to_arrow(DataType.parse(text))


def declared_table(
    dumped: Sequence[pa.Table], values: Sequence[DeclaredValue], keys: Sequence[str]
) -> pa.Table:
    """Return one row per key: its key columns, then the declared values.

    Args:
        dumped: the chunks in the order in which they were dumped.
        values: the declared values, in the order of their declaration.
        keys: the names of the key columns, whose types nothing says where there are no keys.

    Raises:
        InputError: the chunks are not those of these values.
    """
    entries = {one.name: column_name(f"{one.name} at") for one in values if _has_entries(one)}
    mains = [one for one in dumped if not set(entries.values()) & set(one.column_names)]
    if not mains:
        none = {one.name: pa.array([], _shown_type(one)) for one in values}
        return _table({name: pa.array([], pa.null()) for name in keys}, none)
    main = pa.concat_tables(mains).combine_chunks()
    of_keys = {name: main.column(name) for name in main.column_names if not name.startswith("#")}
    columns: dict[str, Any] = {}
    for one in values:
        column = column_name(one.name)
        if column not in main.column_names:
            msg = f"the state has no {one.name!r}: it was not written by this declaration"
            raise InputError(msg)
        if one.name in entries:
            at = entries[one.name]
            rows = [table for table in dumped if at in table.column_names]
            columns[one.name] = _entries(one, main.column(column), rows, at)
        elif one.kind == "timer":
            columns[one.name] = _times(main.column(column))
        else:
            columns[one.name] = _plain(one, main, column)
    return _table(of_keys, columns)


def _table(keys: Mapping[str, Any], columns: Mapping[str, Any]) -> pa.Table:
    """Return a table; a value that is called as a key column is gets another name."""
    renamed = {f"{name} (state)" if name in keys else name: one for name, one in columns.items()}
    return pa.table({**keys, **renamed})


def _shown_type(value: DeclaredValue) -> pa.DataType:
    if value.type is None:
        return pa.timestamp("ns")
    if value.kind == "map":
        return pa.map_(value.key_type, value.type)
    return pa.list_(value.type) if value.kind == "list" else value.type


def _has_entries(value: DeclaredValue) -> bool:
    return value.kind in ("list", "map")


def _plain(value: DeclaredValue, main: pa.Table, column: str) -> pa.Array:
    found = _typed(_array(main.column(column)), value.type)
    if value.kind not in _NULLABLE:
        return found
    is_set = _array(main.column(set_column(value.name)))
    return pc.if_else(is_set, found, pa.scalar(None, found.type))


def _times(column: pa.ChunkedArray) -> pa.Array:
    times = np.asarray(column)
    return pa.array(times, pa.int64(), mask=times == NO_TIME).view(pa.timestamp("ns"))


def _entries(
    value: DeclaredValue, sizes: pa.ChunkedArray, dumped: Sequence[pa.Table], at: str
) -> pa.Array:
    """Return the lists, or maps, of all keys, whose entries follow one another."""
    offsets = np.concatenate([[0], np.cumsum(np.asarray(sizes))]).astype(np.int32)
    rows = sum(table.num_rows for table in dumped)
    if offsets[-1] != rows:
        msg = f"{value.name!r} has {rows:,} entries where its keys have {offsets[-1]:,}"
        raise InputError(msg)
    table = pa.concat_tables(dumped) if dumped else None
    of_values = _of_entries(table, column_name("value"), value.type)
    if value.kind == "list":
        return pa.ListArray.from_arrays(pa.array(offsets), of_values)
    of_keys = _of_entries(table, at, value.key_type)
    return pa.MapArray.from_arrays(pa.array(offsets), of_keys, of_values)


def _of_entries(table: pa.Table | None, column: str, kind: pa.DataType) -> pa.Array:
    return pa.array([], kind) if table is None else _typed(_array(table.column(column)), kind)


def _array(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found


def _typed(stored: pa.Array, kind: pa.DataType | None) -> pa.Array:
    """Return values with their type; stored are their bits, bytes, or the word of a map's key."""
    if stored.type == kind:
        return stored
    if pa.types.is_binary(stored.type) or pa.types.is_large_binary(stored.type):
        return stored.cast(kind)
    assert kind is not None
    if pa.types.is_integer(kind):
        return stored.cast(kind)
    words = {4: pa.int32(), 8: pa.int64()}[kind.bit_width // 8]
    return stored.cast(words).view(kind)
