"""Batches, messages and their wire format.

Names load when they are first used: `types` needs numpy alone, batches numba, Arrow comes last.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batch import Batch
    from .codec import decode, encode_gather_into, encode_into, gather_size, message_size
    from .column import BytesView, Column
    from .header import Header
    from .messages import (
        ALL,
        AddressedTuple,
        BatchTuple,
        MarkerMessage,
        SchemaMessage,
        WatermarkMessage,
        WorkerMessage,
    )
    from .types import DataType, Field, Schema

_HOME = {
    "ALL": "messages",
    "AddressedTuple": "messages",
    "Batch": "batch",
    "BatchTuple": "messages",
    "BytesView": "column",
    "Column": "column",
    "DataType": "types",
    "Field": "types",
    "Header": "header",
    "MarkerMessage": "messages",
    "Schema": "types",
    "SchemaMessage": "messages",
    "WatermarkMessage": "messages",
    "WorkerMessage": "messages",
    "decode": "codec",
    "encode_gather_into": "codec",
    "encode_into": "codec",
    "gather_size": "codec",
    "message_size": "codec",
}

__all__ = [
    "ALL",
    "AddressedTuple",
    "Batch",
    "BatchTuple",
    "BytesView",
    "Column",
    "DataType",
    "Field",
    "Header",
    "MarkerMessage",
    "Schema",
    "SchemaMessage",
    "WatermarkMessage",
    "WorkerMessage",
    "decode",
    "encode_gather_into",
    "encode_into",
    "gather_size",
    "message_size",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
