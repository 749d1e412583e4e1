"""Query 12, processing-time windows: the bids that a user makes in 10 s of the clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .... import functions
from ....operators.windows.specifications import processing_time, window

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs


def build(inputs: Inputs) -> Stream:
    """Return the number of bids of each bidder in every 10 s in which they come."""
    return (
        inputs.bids("bidder")
        .group_by(window(processing_time(), "10 seconds"), "bidder")
        .agg(functions.count().alias("bid_count"), id="counts", parallelism=inputs.parallelism)
    )
