"""The columns of the three streams; with their texts, records have the sizes of the thesis."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pyarrow as pa

__all__ = ["RECORD_BYTES", "SCHEMAS"]

_TIME = pa.timestamp("us")

SCHEMAS: Mapping[str, pa.Schema] = MappingProxyType(
    {
        "sellers": pa.schema({"id": pa.int64(), "date_time": _TIME, "extra": pa.string()}),
        "auctions": pa.schema(
            {"id": pa.int64(), "date_time": _TIME, "seller": pa.int64(), "extra": pa.string()}
        ),
        "bids": pa.schema(
            {"auction": pa.int64(), "date_time": _TIME, "seller": pa.int64(), "price": pa.int64()}
        ),
    }
)
"""Stream → its columns. `date_time` is the event time; prices are in cents."""

RECORD_BYTES: Mapping[str, int] = MappingProxyType({"sellers": 206, "auctions": 269, "bids": 32})
"""Stream → bytes of a row."""
