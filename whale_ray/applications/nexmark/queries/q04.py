"""Query 4, average price for a category: a join, then two aggregations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .... import functions
from .bids_in_time import bids_in_time

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs


def build(inputs: Inputs) -> Stream:
    """Return the average of the highest bids on the auctions of each category, at the end."""
    highest = (
        bids_in_time(inputs, bid=("price",), auction=("category",))
        .group_by("id", "category")
        .agg(
            functions.max("price").alias("final"),
            id="highest-bids",
            output_mode="append",
            parallelism=inputs.parallelism,
        )
    )
    return highest.group_by("category").agg(
        functions.avg("final").alias("avg_final"), id="averages", output_mode="append"
    )
