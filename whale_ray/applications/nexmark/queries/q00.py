"""Query 0, pass-through: what reading and writing rows costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs


def build(inputs: Inputs) -> Stream:
    """Return all bids, unchanged."""
    return inputs.bids("auction", "bidder", "price", "extra").select(
        "auction", "bidder", "price", "date_time", "extra"
    )
