"""Query 17, auction statistics: counts and prices of each auction and day."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .... import functions
from ....operators.windows.specifications import window
from .ranks import counts_by_rank

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs


def build(inputs: Inputs) -> Stream:
    """Return for each auction and day its bids, in all and by rank, and their prices."""
    return (
        inputs.bids("auction", "price")
        .group_by(window("date_time", "1 day"), "auction")
        .agg(
            *counts_by_rank("bids", functions.count, "price"),
            functions.min("price").alias("min_price"),
            functions.max("price").alias("max_price"),
            functions.avg("price").alias("avg_price"),
            functions.sum("price").alias("sum_price"),
            id="statistics",
            parallelism=inputs.parallelism,
        )
    )
