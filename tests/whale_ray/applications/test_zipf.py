"""Zipf's distribution against its definition, summed up key by key."""

from __future__ import annotations

import numpy as np
import pytest

from whale_ray.applications.shared.zipf import zipf_ranks


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.5, 2.0, 3.7])
@pytest.mark.parametrize("keys", [1, 2, 7, 200])
def test_ranks_have_the_shares_of_the_definition(keys: int, exponent: float) -> None:
    drawn = 200_000
    ranks = zipf_ranks(np.random.default_rng(3), drawn, keys, exponent)
    found = np.bincount(ranks, minlength=keys)
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
    expected = drawn * weights / weights.sum()
    assert len(found) == keys
    deviations = (found - expected) / np.sqrt(expected + 1)
    assert np.abs(deviations).max() < 5


def test_ranks_of_a_wide_range_need_no_table() -> None:
    ranks = zipf_ranks(np.random.default_rng(4), 50_000, 10**12, 1.0)
    # A rank below r has about the share ln r / ln keys, since the distribution is log-uniform.
    assert np.mean(ranks < 10**6) == pytest.approx(0.5, abs=0.03)
    assert 10**10 < ranks.max() < 10**12
