"""Query 1, currency conversion: a projection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....operators.expressions.expression import col

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs


def build(inputs: Inputs) -> Stream:
    """Return all bids with their price in euros."""
    return inputs.bids("auction", "bidder", "price", "extra").select(
        "auction", "bidder", (col("price") * 0.908).alias("price"), "date_time", "extra"
    )
