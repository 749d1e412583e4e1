"""Totals of 128 bits against Python's integers, up to both ends of their range."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from whale_ray.operators.aggregates.kernels import add_decimals, merge_totals

GREATEST = (1 << 127) - 1
PARTS = st.integers(-GREATEST - 1, GREATEST) | st.sampled_from([GREATEST, -GREATEST - 1, 1, -1, 0])
ONE_GROUP = np.zeros(1, np.int64)


def total_of(parts):
    low, high, left, count = (
        np.zeros(1, dtype) for dtype in (np.uint64, np.int64, np.uint8, np.int64)
    )
    raw = b"".join(part.to_bytes(16, "little", signed=True) for part in parts)
    halves = np.frombuffer(raw, np.int64).reshape(-1, 2)
    slots = np.zeros(len(parts), np.int64)
    add_decimals(low, high, left, count, slots, halves, np.empty(0, np.bool_))
    return low, high, left, count


def value_of(low, high):
    return (int(high[0]) << 64) | int(low[0])


def sums(parts):
    """Return all sums from the left."""
    return [sum(parts[: stop + 1]) for stop in range(len(parts))]


def fits(number):
    return -GREATEST - 1 <= number <= GREATEST


@given(parts=st.lists(PARTS, min_size=1, max_size=6))
@example(parts=[GREATEST, 1])
@example(parts=[-GREATEST - 1, -1])
def test_a_total_is_exact_or_known_to_have_left_its_type(parts):
    low, high, left, count = total_of(parts)
    assert count[0] == len(parts)
    assert bool(left[0]) == (not all(map(fits, sums(parts))))
    if not left[0]:
        assert value_of(low, high) == sum(parts)


@given(first=PARTS, second=PARTS)
@example(first=GREATEST, second=1)
@example(first=-GREATEST - 1, second=-GREATEST - 1)
def test_merged_totals_are_exact_or_known_to_have_left_their_type(first, second):
    mine, other = total_of([first]), total_of([second])
    merge_totals(*mine, ONE_GROUP, *other, ONE_GROUP)
    assert bool(mine[2][0]) == (not fits(first + second))
    if fits(first + second):
        assert value_of(*mine[:2]) == first + second
