"""Query 15, bidding statistics: several counts per day, some of distinct values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .... import functions
from ....operators.windows.specifications import window
from .ranks import counts_by_rank

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs


def build(inputs: Inputs) -> Stream:
    """Return the number of bids, bidders and auctions of each day, in all and by rank of price."""
    return (
        inputs.bids("auction", "bidder", "price")
        .group_by(window("date_time", "1 day"))
        .agg(
            *counts_by_rank("bids", functions.count, "price"),
            *counts_by_rank("bidders", functions.count_distinct, "bidder"),
            *counts_by_rank("auctions", functions.count_distinct, "auction"),
            id="statistics",
        )
    )
