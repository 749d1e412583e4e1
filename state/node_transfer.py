"""Keys of whole virtual nodes as batches: out of one store, into another."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..transport.wire.batch import Batch
from ..transport.wire.column import Column
from ..transport.wire.types import DataType, Field, Schema
from .keys import hash_keys
from .records import RecordField, RecordLayout, copy_of_records

if TYPE_CHECKING:
    from .store import KeyedStore

__all__ = [
    "column_name",
    "export_records",
    "export_slots",
    "field_columns",
    "holds_all",
    "import_nodes",
    "kept_columns",
    "set_column",
    "takes_exported",
    "with_columns",
    "write_columns",
    "write_fields",
]

_BINARY = DataType.parse("binary")


def export_slots(store: KeyedStore, slots: npt.NDArray[np.int64]) -> Batch:
    """Return the keys of some records of a store as `export_records` does."""
    return export_records(store.layout, copy_of_records(store.records, slots), store.memory)


def export_records(
    layout: RecordLayout, records: npt.NDArray[Any], memory: npt.NDArray[np.uint8]
) -> Batch:
    """Return records for `import_nodes`: the key columns, then each field as "#" and its name.

    Args:
        layout: of the records.
        records: each with a key, (n,).
        memory: the log in which their references are positions.
    """
    columns = kept_columns(layout, records, layout.fields, memory)
    for name, bit in layout.bits.items():
        is_set = (records["#set"] >> np.uint64(bit)) & np.uint64(1) == 1
        columns[set_column(name)] = Column.of(is_set)
    keys = Batch(layout.keys, layout.key_columns(records, slice(None), memory), len(records))
    return with_columns(keys, columns)


def import_nodes(store: KeyedStore, batch: Batch) -> npt.NDArray[np.int64]:
    """Take exported keys, see `KeyedStore.import_nodes`."""
    layout = store.layout
    hashes, _ = hash_keys(batch, layout.keys.names)
    store.reserve(batch.num_rows)
    slots = store.slots(hashes, batch)
    fields = [field for field in layout.fields if column_name(field.name) in batch.schema]
    write_columns(store, slots, fields, batch)
    for field in fields:
        if field.nullable:
            mask = np.uint64(1 << layout.bits[field.name])
            is_set = batch.column(set_column(field.name)).data
            marks = store.records["#set"]
            marks[slots] = np.where(is_set, marks[slots] | mask, marks[slots] & ~mask)
    return slots


def column_name(field: str) -> str:
    """Return the column of an exported field, which no key column is called."""
    return f"#{field}"


def set_column(field: str) -> str:
    """Return the column that tells which keys have a value of a nullable field."""
    return f"##{field}"


def field_columns(records: npt.NDArray[Any], fields: Iterable[RecordField]) -> dict[str, Column]:
    """Return the fields of fixed width of some records as columns, exact to the last bit."""
    found = {}
    for field in fields:
        if not field.heap:
            kind = _type_of(field.dtype)
            found[column_name(field.name)] = Column(kind, _stored(records[field.name], kind))
    return found


def kept_columns(
    layout: RecordLayout,
    records: npt.NDArray[Any],
    fields: Sequence[RecordField],
    memory: npt.NDArray[np.uint8],
) -> dict[str, Column]:
    """Return fields of some records as columns, exact to the last bit; those in the heap as bytes.

    Args:
        layout: of the records.
        records: (n,).
        fields: which.
        memory: the log in which their references are positions.
    """
    found = field_columns(records, fields)
    for field in fields:
        if field.heap:
            column = layout.value_column(field.name, _BINARY, records, memory)
            found[column_name(field.name)] = column
    return found


def write_columns(
    store: KeyedStore,
    slots: npt.NDArray[np.int64],
    fields: Sequence[RecordField],
    batch: Batch,
) -> None:
    """Write what `kept_columns` returned into the records of `slots`; raise StateFullError."""
    write_fields(store.records, slots, fields, batch)
    for field in fields:
        if field.heap:
            store.write_values(field.name, slots, batch.column(column_name(field.name)))


def write_fields(
    records: npt.NDArray[Any],
    slots: npt.NDArray[np.int64],
    fields: Iterable[RecordField],
    batch: Batch,
) -> None:
    """Write what `field_columns` returned into the records of `slots`.

    Numbers may have been of a narrower type then.
    """
    for field in fields:
        if not field.heap:
            column = batch.column(column_name(field.name))
            if column.type != _type_of(field.dtype):
                records[field.name][slots] = column.data.astype(field.dtype, casting="safe")
                continue
            data = np.ascontiguousarray(column.data)
            shape = (batch.num_rows, *field.dtype.shape)
            records[field.name][slots] = data.view(field.dtype.base).reshape(shape)


def takes_exported(dtype: np.dtype[Any], kind: DataType) -> bool:
    """Return whether `write_fields` takes exported values of a type into fields of `dtype`."""
    own = _type_of(dtype)
    numbers = not dtype.shape and dtype.kind in "iuf" and kind.family != "fixed_size_binary"
    return kind == own or (numbers and kind.kind == "fixed" and holds_all(dtype, kind.storage))


def holds_all(wide: np.dtype[Any], narrow: np.dtype[Any]) -> bool:
    """Return whether a type has each number of another one, with the same value."""
    is_exact = wide.kind != "f" or narrow.kind == "f" or narrow.itemsize < wide.itemsize
    return is_exact and np.can_cast(narrow, wide, "safe")


def with_columns(batch: Batch, columns: Mapping[str, Column]) -> Batch:
    """Return a batch with more columns behind its own."""
    fields = (*batch.schema, *(Field(name, column.type) for name, column in columns.items()))
    return Batch(Schema(fields), [*batch.columns, *columns.values()], batch.num_rows)


@functools.lru_cache(maxsize=256)
def _type_of(dtype: np.dtype[Any]) -> DataType:
    """Return the type of a field's exported column: its own, or bytes of a fixed size."""
    if dtype.kind in "biuf" and not dtype.shape:
        return DataType.parse("bool" if dtype.kind == "b" else dtype.name)
    return DataType.parse(f"fixed_size_binary({dtype.itemsize})")


def _stored(values: npt.NDArray[Any], kind: DataType) -> npt.NDArray[Any]:
    values = np.ascontiguousarray(values)
    return values if values.dtype == kind.storage else values.reshape(-1).view(kind.storage)
