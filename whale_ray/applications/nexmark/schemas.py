"""The columns of the three streams."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pyarrow as pa

__all__ = ["SCHEMAS"]

_TIME = pa.timestamp("us")

SCHEMAS: Mapping[str, pa.Schema] = MappingProxyType(
    {
        "persons": pa.schema(
            {
                "id": pa.int64(),
                "name": pa.string(),
                "email_address": pa.string(),
                "credit_card": pa.string(),
                "city": pa.string(),
                "state": pa.string(),
                "date_time": _TIME,
                "extra": pa.string(),
            }
        ),
        "auctions": pa.schema(
            {
                "id": pa.int64(),
                "item_name": pa.string(),
                "description": pa.string(),
                "initial_bid": pa.int64(),
                "reserve": pa.int64(),
                "date_time": _TIME,
                "expires": _TIME,
                "seller": pa.int64(),
                "category": pa.int64(),
                "extra": pa.string(),
            }
        ),
        "bids": pa.schema(
            {
                "auction": pa.int64(),
                "bidder": pa.int64(),
                "price": pa.int64(),
                "channel": pa.string(),
                "url": pa.string(),
                "date_time": _TIME,
                "extra": pa.string(),
            }
        ),
    }
)
"""Stream → its columns. `date_time` is the event time; prices are in cents."""
