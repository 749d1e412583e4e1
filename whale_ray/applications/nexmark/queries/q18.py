"""Query 18, find the last bid: the newest row of each key."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs


def build(inputs: Inputs) -> Stream:
    """Return the last bid of each bidder on each auction, once all bids are read."""
    return (
        inputs.bids()
        .group_by("bidder", "auction")
        .top_n(1, by="date_time", id="last-bids", parallelism=inputs.parallelism)
    )
