"""Keys of whole virtual nodes as batches: out of one store, into another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..transport.wire.batch import Batch
from ..transport.wire.column import Column
from ..transport.wire.types import DataType, Field, Schema
from .keys import hash_keys, virtual_node_of
from .records import RecordField

if TYPE_CHECKING:
    from .store import KeyedStore

_BINARY = DataType.parse("binary")


def export_nodes(store: KeyedStore, nodes: npt.NDArray[np.int64], virtual_nodes: int) -> Batch:
    """Return the keys of virtual nodes, see `KeyedStore.export_nodes`."""
    slots, hashes = store.scan()
    wanted = np.zeros(virtual_nodes, np.bool_)
    wanted[nodes] = True
    slots = slots[wanted[virtual_node_of(hashes, virtual_nodes)]]
    records = store.records[slots]
    keys = store.keys_of(slots)
    columns = dict(zip(keys.schema.names, keys.columns, strict=True))
    if store.layout.bits:
        columns["##set"] = Column.of(np.ascontiguousarray(records["#set"]))
    for field in store.layout.fields:
        if field.heap:
            column = store.values(field.name, slots, _BINARY)
        else:
            kind = _type_of(field)
            column = Column(kind, _stored(records[field.name], kind))
        columns[f"#{field.name}"] = column
    schema = Schema(tuple(Field(name, column.type) for name, column in columns.items()))
    return Batch(schema, list(columns.values()), len(slots))


def import_nodes(store: KeyedStore, batch: Batch) -> None:
    """Take exported keys, see `KeyedStore.import_nodes`."""
    layout = store.layout
    hashes, _ = hash_keys(batch, layout.keys.names)
    slots = store.slots(hashes, batch)
    for field in layout.fields:
        column = batch.column(f"#{field.name}")
        if field.heap:
            store.write_values(field.name, slots, column)
        else:
            shape = (batch.num_rows, *field.dtype.shape)
            data = np.ascontiguousarray(column.data).view(field.dtype.base).reshape(shape)
            store.records[field.name][slots] = data
    if layout.bits:
        store.records["#set"][slots] = batch.column("##set").data


def _type_of(field: RecordField) -> DataType:
    """Return the type of an exported column: the field's own, or bytes of a fixed size."""
    if field.dtype.kind in "biuf" and not field.dtype.shape:
        return DataType.parse("bool" if field.dtype.kind == "b" else field.dtype.name)
    return DataType.parse(f"fixed_size_binary({field.dtype.itemsize})")


def _stored(values: npt.NDArray[Any], kind: DataType) -> npt.NDArray[Any]:
    values = np.ascontiguousarray(values)
    return values if values.dtype == kind.storage else values.reshape(-1).view(kind.storage)
