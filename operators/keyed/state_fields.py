"""Which fields of a record keep a declared value."""

from __future__ import annotations

import numpy as np

from ...state.declarations import StateDeclaration
from ...state.records import RecordField
from ...state.timers import NO_TIME
from .entries import id_field
from .expiry import expiry_fields
from .handles import queued_field

__all__ = ["fields_of"]


def fields_of(declaration: StateDeclaration) -> list[RecordField]:
    """Return the fields of a record that keep a declared value."""
    name = declaration.name
    fields = _value_fields(declaration)
    if declaration.ttl is not None and declaration.kind != "map":  # a map's entries have their own
        fields += expiry_fields(name)
    return fields


def _value_fields(declaration: StateDeclaration) -> list[RecordField]:
    name, kind = declaration.name, declaration.type
    match declaration.kind:
        case "timer":
            time = np.dtype(np.int64)
            names = (name, queued_field(name))
            return [RecordField(one, time, initial=NO_TIME) for one in names]
        case "list" | "map":
            return [RecordField(one, np.dtype(np.int64)) for one in (name, id_field(name))]
        case "count" | "sum":
            return [RecordField(name, kind.storage)]
        case _ if kind.kind == "bytes":
            return [RecordField.of_bytes(name)]
        case _:
            return [RecordField(name, kind.storage, nullable=True)]
