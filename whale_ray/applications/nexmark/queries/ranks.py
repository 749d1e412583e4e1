"""Counts by rank of price, which queries 15 to 17 share."""

from __future__ import annotations

from collections.abc import Callable

from ....operators.aggregates.aggregate import Aggregate
from ....operators.expressions.expression import Expression, col, when

__all__ = ["counts_by_rank"]

_RANK_2_FROM, _RANK_3_FROM = 10_000, 1_000_000


def counts_by_rank(
    name: str, count: Callable[[Expression], Aggregate], column: str
) -> list[Aggregate]:
    """Return counts of a column: `total_NAME`, then `rank1_NAME` to `rank3_NAME`, by price."""
    price, counted = col("price"), col(column)
    ranks = (
        price < _RANK_2_FROM,
        (price >= _RANK_2_FROM) & (price < _RANK_3_FROM),
        price >= _RANK_3_FROM,
    )
    return [
        count(counted).alias(f"total_{name}"),
        *(
            count(when(condition, counted)).alias(f"rank{rank}_{name}")
            for rank, condition in enumerate(ranks, 1)
        ),
    ]
