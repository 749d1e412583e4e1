"""The bids on auctions that had begun and not expired, which queries 4 and 9 share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....operators.expressions.expression import col
from ....operators.joins.interval import interval

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs

__all__ = ["bids_in_time"]


def bids_in_time(inputs: Inputs, *, bid: Sequence[str], auction: Sequence[str]) -> Stream:
    """Return the bids that came from the beginning of their auction to its end.

    Auctions last up to 12 hours.

    Args:
        inputs: the three streams.
        bid: columns of the bid; `bid_time` and `bid_extra` are its `date_time` and `extra`.
        auction: columns of the auction, besides `id`, `date_time` and `expires`.
    """
    bids = inputs.bids.select(
        "auction",
        "bidder",
        "price",
        col("date_time").alias("bid_time"),
        col("extra").alias("bid_extra"),
    )
    lasting = inputs.auctions.select(*dict.fromkeys(("id", "date_time", "expires", *auction)))
    joined = bids.join(
        lasting,
        on={"auction": "id"},
        within=interval("-12 hours", "0 s"),
        id="bids-in-time",
        parallelism=inputs.parallelism,
    ).filter(col("bid_time") <= col("expires"))
    return joined.select(*dict.fromkeys(("id", *auction, *bid)))
