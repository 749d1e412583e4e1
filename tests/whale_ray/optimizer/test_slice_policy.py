"""Limits of slices follow the rate: within their bounds, to a standstill, and never to and fro."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.optimizer.decisions import Decides
from whale_ray.optimizer.slice_policy import (
    BUSY_ABOVE,
    IDLE_BELOW,
    SliceBounds,
    SliceLoad,
    SlicePolicy,
)

MS = 1_000_000
BOUNDS = SliceBounds(slice_bytes_max=1 << 18, wait_min_ns=MS, wait_max_ns=20 * MS)
LOOKS = 200
"""More than twice as many looks as there are steps from one end to the other."""

loads = st.builds(
    SliceLoad,
    st.floats(0, 1),
    st.floats(0, 1e9),
    st.floats(1, 1e6),
    st.floats(1, 1e6),
)


class Plant:
    """A stage whose rows come one by one, and cost what equation (3) of Aeolus says."""

    def __init__(self, rows_per_s: float, row_ns: float, message_ns: float) -> None:
        self.rows_per_s, self.row_ns, self.message_ns = rows_per_s, row_ns, message_ns
        self.row_bytes = 64.0

    def load(self, policy: SlicePolicy) -> SliceLoad:
        rows = policy.rows or policy.rows_max(self.row_bytes)
        slice_rows = min(rows, 1 + self.rows_per_s * policy.wait_ns / 1e9)
        busy = self.rows_per_s * (self.row_ns + self.message_ns / slice_rows) / 1e9
        return SliceLoad(min(1.0, busy), self.rows_per_s, slice_rows, self.row_bytes)

    def settle(self, policy: SlicePolicy) -> list[tuple[int | None, int]]:
        """Let the policy look until nothing changes any more; return its limits after each look."""
        found = []
        for _ in range(LOOKS):
            policy.observe(self.load(policy))
            found.append((policy.rows, policy.wait_ns))
        return found


plants = st.builds(Plant, st.floats(10, 1e6), st.floats(1, 1e5), st.floats(100, 1e5))


@given(st.lists(loads, max_size=60), st.none() | st.integers(1, 4096))
def test_limits_stay_within_their_bounds(seen: list[SliceLoad], begin: int | None) -> None:
    policy = SlicePolicy(BOUNDS, begin)
    for load in seen:
        before = policy.rows
        change = policy.observe(load)
        assert BOUNDS.wait_min_ns <= policy.wait_ns <= BOUNDS.wait_max_ns
        assert policy.rows is None or policy.rows >= 1
        if change is not None and change.decides is Decides.BATCH_ROWS:
            grown = policy.rows is not None and before is not None and policy.rows > before
            assert not grown or policy.rows <= policy.rows_max(load.row_bytes)


@given(plants, st.none() | st.sampled_from([1, 8, 64, 4096]))
def test_under_a_steady_load_they_move_one_way_only_and_come_to_rest(
    plant: Plant, begin: int | None
) -> None:
    policy = SlicePolicy(BOUNDS, begin)
    found = plant.settle(policy)
    rows = [policy.rows_max(64) if one is None else one for one, _ in found]
    waits = [wait for _, wait in found]
    grows = rows == sorted(rows) and waits == sorted(waits)
    shrinks = rows == sorted(rows, reverse=True) and waits == sorted(waits, reverse=True)
    assert grows or shrinks
    assert len(set(found[LOOKS // 2 :])) == 1


@given(plants, st.floats(10, 1e6))
def test_after_another_rate_they_come_to_rest_again_with_time_to_spare_if_that_is_possible(
    plant: Plant, rate: float
) -> None:
    policy = SlicePolicy(BOUNDS)
    plant.settle(policy)
    plant.rows_per_s = rate
    found = plant.settle(policy)
    assert len(set(found[LOOKS // 2 :])) == 1
    at_rest = plant.load(policy)
    largest = SlicePolicy(BOUNDS)
    largest.wait_ns = BOUNDS.wait_max_ns
    if plant.load(largest).busy <= BUSY_ABOVE / 2:
        assert at_rest.busy <= BUSY_ABOVE
    if at_rest.busy < IDLE_BELOW:
        assert (policy.rows, policy.wait_ns) == (1, BOUNDS.wait_min_ns)


def test_rows_are_sent_at_once_while_there_is_time_and_the_decision_says_why() -> None:
    policy = SlicePolicy(BOUNDS)
    load = SliceLoad(busy=0.05, rows_per_s=4000, slice_rows=4, row_bytes=64)
    assert policy.observe(load) is None, "one look alone decides nothing"
    change = policy.observe(load)
    assert change is not None
    assert (change.decides, change.value) == (Decides.BATCH_ROWS, 2)
    assert change.numbers["b"] == (1 << 18) // 64
    assert change.formula == "3 · busy < 0.8: b = max(1, min(b, rows of a slice) / 2)"
    assert "busy 5%" in change.reason


def test_the_limit_that_cuts_the_slices_is_the_one_that_is_raised() -> None:
    by_rows = SlicePolicy(BOUNDS, 8)
    by_time = SlicePolicy(BOUNDS, 1024)
    for policy, slice_rows in ((by_rows, 8.0), (by_time, 10.0)):
        load = SliceLoad(0.95, 10_000, slice_rows, 64)
        policy.observe(load)
        policy.observe(load)
    assert (by_rows.rows, by_rows.wait_ns) == (16, MS)
    assert (by_time.rows, by_time.wait_ns) == (1024, 2 * MS)


def test_a_largest_batch_that_varies_with_the_size_of_the_rows_is_not_followed() -> None:
    bounds = SliceBounds(slice_bytes_max=1 << 18, wait_min_ns=MS, wait_max_ns=MS)
    policy = SlicePolicy(bounds, 4000)
    for row_bytes in (64, 63, 62, 64, 60):
        assert policy.observe(SliceLoad(0.95, 1e6, 4000, row_bytes)) is None
    assert policy.observe(SliceLoad(0.95, 1e6, 4000, 32)) is not None


@pytest.mark.parametrize("busy", [IDLE_BELOW, 0.5, BUSY_ABOVE])
def test_between_the_thresholds_nothing_changes(busy: float) -> None:
    policy = SlicePolicy(BOUNDS, 8)
    assert all(policy.observe(SliceLoad(busy, 1e4, 8, 64)) is None for _ in range(10))


def test_a_stage_without_rows_keeps_its_limits() -> None:
    policy = SlicePolicy(BOUNDS, 8)
    assert all(policy.observe(SliceLoad(0.0, 0.0, 1, 64)) is None for _ in range(10))
