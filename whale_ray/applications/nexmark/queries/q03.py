"""Query 3, local item suggestion: a join of two filtered streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....operators.expressions.expression import col
from ....operators.joins.interval import interval

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs


def build(inputs: Inputs) -> Stream:
    """Return who sells in Oregon, Idaho or California in category 10, and which auctions.

    The original keeps both sides for ever; here an auction joins a person who has registered in the
    12 hours before it, or does in the hour after it.
    """
    sellers = (
        inputs.persons("id", "name", "city", "state")
        .filter(col("state").isin("OR", "ID", "CA"))
        .select(col("id").alias("person"), "name", "city", "state")
    )
    items = (
        inputs.auctions("id", "seller", "category")
        .filter(col("category") == 10)
        .select("id", "seller")
    )
    return sellers.join(
        items,
        on={"person": "seller"},
        within=interval("-1 hour", "12 hours"),
        id="sellers-items",
        parallelism=inputs.parallelism,
    ).select("name", "city", "state", "id")
