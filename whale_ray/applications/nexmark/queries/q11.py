"""Query 11, user sessions: the bids that a user makes before a pause."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .... import functions
from ....operators.windows.specifications import session_window

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs


def build(inputs: Inputs) -> Stream:
    """Return the number of bids in each session of a bidder; 10 s without a bid end it."""
    return (
        inputs.bids("bidder")
        .group_by(session_window("date_time", "10 seconds"), "bidder")
        .agg(functions.count().alias("bid_count"), id="sessions", parallelism=inputs.parallelism)
    )
