"""Query 7, highest bid: the bids with the highest price of each window."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....operators.windows.specifications import window

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs


_COLUMNS = ("auction", "price", "bidder", "date_time", "extra")


def build(inputs: Inputs) -> Stream:
    """Return the bids with the highest price of each 10 s."""
    bids = inputs.bids("auction", "price", "bidder", "extra").select(*_COLUMNS)
    highest = bids.group_by(window("date_time", "10 seconds")).top_n(
        1, by="price", with_ties=True, id="highest"
    )
    return highest.select(*_COLUMNS)
