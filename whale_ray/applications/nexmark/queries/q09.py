"""Query 9, winning bids: a join, and the first row of each key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .... import functions
from .bids_in_time import bids_in_time

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs


_AUCTION = (
    "item_name",
    "description",
    "initial_bid",
    "reserve",
    "date_time",
    "expires",
    "seller",
    "category",
    "extra",
)
_BID = ("bidder", "price", "bid_time", "bid_extra")


def build(inputs: Inputs) -> Stream:
    """Return each auction with its highest bid in time, and of equal ones the earliest."""
    bids = bids_in_time(inputs, bid=_BID, auction=_AUCTION)
    highest = bids.group_by("id").top_n(
        1, by="price", with_ties=True, id="highest", parallelism=inputs.parallelism
    )
    age = -functions.unix_micros("bid_time")
    return (
        highest.with_column("age", age)
        .group_by("id")
        .top_n(1, by="age", id="earliest", parallelism=inputs.parallelism)
        .select("id", *_AUCTION, *_BID)
    )
