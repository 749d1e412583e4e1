"""Query 5, hot items: the auctions with the most bids."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .... import functions
from ....operators.windows.specifications import window

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs


def build(inputs: Inputs) -> Stream:
    """Return the auctions with the most bids in 10 s, every 2 s, and how many these are."""
    hops = window("date_time", "10 seconds", "2 seconds")
    counts = (
        inputs.bids("auction")
        .group_by(hops, "auction")
        .agg(functions.count().alias("num"), id="counts", parallelism=inputs.parallelism)
    )
    return counts.group_by("window_start", "window_end").top_n(
        1, by="num", with_ties=True, id="most-bids", parallelism=inputs.parallelism
    )
