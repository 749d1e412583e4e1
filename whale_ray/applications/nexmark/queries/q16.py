"""Query 16, channel statistics: query 15 for each channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .... import functions
from ....operators.windows.specifications import window
from .ranks import counts_by_rank

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs


def build(inputs: Inputs) -> Stream:
    """Return the statistics of each channel and day, and the time of the last bid."""
    return (
        inputs.bids("auction", "bidder", "price", "channel")
        .group_by(window("date_time", "1 day"), "channel")
        .agg(
            functions.max("date_time").alias("last_bid"),
            *counts_by_rank("bids", functions.count, "price"),
            *counts_by_rank("bidders", functions.count_distinct, "bidder"),
            *counts_by_rank("auctions", functions.count_distinct, "auction"),
            id="statistics",
            parallelism=inputs.parallelism,
        )
    )
