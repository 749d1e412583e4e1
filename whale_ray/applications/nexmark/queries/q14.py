"""Query 14, calculation: prices, times of day and a count of letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .... import functions
from ....operators.expressions.expression import col, when

if TYPE_CHECKING:
    from ....api.topology import Stream
    from ..inputs import Inputs


_NIGHT_ENDS_H, _DAY_BEGINS_H, _DAY_ENDS_H, _NIGHT_BEGINS_H = 6, 8, 18, 20


def build(inputs: Inputs) -> Stream:
    """Return the bids of 1 to 50 million, in euros, with their time of day and a letter count."""
    priced = inputs.bids("auction", "bidder", "price", "extra").with_column(
        "price", col("price") * 0.908
    )
    hour = functions.hour("date_time")
    time_of_day = (
        when(hour.between(_DAY_BEGINS_H, _DAY_ENDS_H), "dayTime")
        .when((hour <= _NIGHT_ENDS_H) | (hour >= _NIGHT_BEGINS_H), "nightTime")
        .otherwise("otherTime")
    )
    without_c = functions.replace("extra", "c", "")
    return priced.filter((col("price") > 1_000_000) & (col("price") < 50_000_000)).select(
        "auction",
        "bidder",
        "price",
        time_of_day.alias("bid_time_type"),
        "date_time",
        "extra",
        (functions.length("extra") - functions.length(without_c)).alias("c_counts"),
    )
