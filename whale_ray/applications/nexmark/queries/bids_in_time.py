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

_NAMED_OTHERWISE = {"bid_time": "date_time", "bid_extra": "extra"}


def bids_in_time(inputs: Inputs, *, bid: Sequence[str], auction: Sequence[str]) -> Stream:
    """Return the bids that came from the beginning of their auction to its end.

    Auctions last up to 12 hours.

    Args:
        inputs: the three streams.
        bid: columns of the bid; `bid_time` and `bid_extra` are its `date_time` and `extra`.
        auction: columns of the auction, besides `id`, `date_time` and `expires`.
    """
    read = {name: _NAMED_OTHERWISE.get(name, name) for name in ("auction", "bid_time", *bid)}
    bids = inputs.bids(*read.values()).select(
        *(col(original).alias(name) for name, original in read.items())
    )
    lasting = dict.fromkeys(("id", "date_time", "expires", *auction))
    auctions = inputs.auctions(*lasting).select(*lasting)
    joined = bids.join(
        auctions,
        on={"auction": "id"},
        within=interval("-12 hours", "0 s"),
        id="bids-in-time",
        parallelism=inputs.parallelism,
    ).filter(col("bid_time") <= col("expires"))
    return joined.select(*dict.fromkeys(("id", *auction, *bid)))
