"""Query 19, auction top 10: the rows with the greatest values of each key."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs


def build(inputs: Inputs) -> Stream:
    """Return the ten highest bids on each auction, once all bids are read."""
    return (
        inputs.bids()
        .group_by("auction")
        .top_n(10, by="price", id="highest-bids", parallelism=inputs.parallelism)
    )
