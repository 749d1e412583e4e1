"""`check_merge` passes every ready-made aggregate, and finds merges that depend on the order."""

from __future__ import annotations

import numpy as np
import pytest

import whale_ray as whale
from tests.operators.windows.driving import AGGREGATES
from whale_ray.testing import ContractError, check_merge

F = whale.functions
ROWS = whale.Batch.from_pydict(
    {
        "number": [3, -1, None, 7, 7, 2**40, 0, -5],
        "ratio": [0.5, float("nan"), None, -0.0, 0.0, 1e6, 3.25, 0.5],
        "text": ["b", "a", None, "", "ab", "a", "c", "b"],
    }
)
ORDERED = ("first", "last", "least_by", "most_by", "list")
"""Of rows with one event time or one order they take any, or have them as they came."""


@pytest.mark.parametrize(
    "aggregate",
    [one for one in AGGREGATES if one.output_name not in ORDERED]
    + [F.approx_count_distinct("text"), F.percentile_approx("number", 0.9), F.max("text")],
    ids=str,
)
def test_ready_made_aggregates_can_be_merged(aggregate) -> None:
    check_merge(aggregate, ROWS)


class Mean(whale.AggregateFunction):
    """A mean whose merge forgets how many values each side has."""

    state = {"mean": "float64", "count": "int64"}  # noqa: RUF012 - as users write it
    output = "float64"

    def update(self, state, groups, values):
        totals = state["mean"] * state["count"]
        np.add.at(totals, groups, values)
        np.add.at(state["count"], groups, 1)
        state["mean"][:] = totals / np.maximum(state["count"], 1)

    def merge(self, state, other):
        state["mean"][:] = (state["mean"] + other["mean"]) / 2
        state["count"] += other["count"]

    def finish(self, state):
        return state["mean"]


def test_a_merge_that_depends_on_the_order_is_found() -> None:
    with pytest.raises(ContractError, match="merge must not depend on the order"):
        check_merge(Mean()("ratio"), {"ratio": [1.0, 2.0, 4.0, 8.0]})


def test_a_later_part_that_wins_is_found() -> None:
    with pytest.raises(ContractError, match="merge must not depend on the order"):
        check_merge(F.last("text"), ROWS)
