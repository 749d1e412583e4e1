"""Query 13, bounded side input join: each bid with a row of a small table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from ....operators.expressions.expression import col
from ....operators.sources.tables import arrow

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs

_KEYS = 10_000


def build(inputs: Inputs) -> Stream:
    """Return the bids, each with the text that the table has for its auction modulo 10,000."""
    keys = pa.array(range(_KEYS), pa.int64())
    table = pa.table({"key": keys, "value": keys.cast(pa.string())})
    bids = inputs.bids("auction", "bidder", "price").with_column("key", col("auction") % _KEYS)
    joined = bids.join_table(arrow(table), on="key", id="known", parallelism=inputs.parallelism)
    return joined.select("auction", "bidder", "price", "date_time", "value")
