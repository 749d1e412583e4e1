"""Query 20, expand bids: each bid with the row of its auction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....operators.expressions.expression import col
from ....operators.joins.interval import interval

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs


def build(inputs: Inputs) -> Stream:
    """Return the bids on auctions of category 10, with what is known of the auction.

    The original keeps both sides for ever; here a bid joins an auction that has begun in the
    12 hours before it, or does in the minute after it.
    """
    bids = inputs.bids().select(
        "auction", "bidder", "price", "channel", "url", "date_time", "extra"
    )
    auctions = (
        inputs.auctions()
        .filter(col("category") == 10)
        .select(
            "id",
            "item_name",
            "description",
            "initial_bid",
            "reserve",
            col("date_time").alias("auction_time"),
            "expires",
            "seller",
            "category",
            col("extra").alias("auction_extra"),
        )
    )
    return bids.join(
        auctions,
        on={"auction": "id"},
        within=interval("-12 hours", "1 minute"),
        id="expanded",
        parallelism=inputs.parallelism,
    )
