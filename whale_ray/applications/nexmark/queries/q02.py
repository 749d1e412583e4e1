"""Query 2, selection: a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....operators.expressions.expression import col

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs


def build(inputs: Inputs) -> Stream:
    """Return auction and price of the bids on each 123rd auction."""
    return (
        inputs.bids("auction", "price").filter(col("auction") % 123 == 0).select("auction", "price")
    )
