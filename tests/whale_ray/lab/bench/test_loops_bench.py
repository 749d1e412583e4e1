"""Loops by hand, generated loops and the kernels return the same; the figures are not tested."""

from __future__ import annotations

import numpy as np
import pytest

from whale_ray.lab.bench.streaming.aggregating_loops import WAYS, events_of
from whale_ray.lab.bench.streaming.loops import (
    BATCH_ROWS,
    CHAINS,
    Chain,
    batches_of,
    one_by_one,
)
from whale_ray.operators.compiled.compiled_chain import CompiledChain

pytestmark = [pytest.mark.lab, pytest.mark.smoke]


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: chain.name)
def test_all_three_ways_return_the_same(chain: Chain) -> None:
    (batch,) = batches_of(10_000)
    interpreted = one_by_one(chain.operators, batch)
    passed = CompiledChain(chain.operators, "compiled").pass_through(batch)
    assert interpreted is not None and passed is not None and passed.rows is not None
    assert passed.rows.equals(interpreted)
    *columns, times = chain.by_hand(batch)
    assert interpreted.times is not None and np.array_equal(times, interpreted.times)
    for mine, column in zip(columns, interpreted.columns, strict=True):
        assert np.array_equal(mine, column.data)
    assert 0 < interpreted.num_rows < batch.num_rows


def test_all_loops_count_the_same_views() -> None:
    batches = events_of(3 * BATCH_ROWS)
    found = []
    for made in WAYS.values():
        way = made()
        for batch in batches:
            way.take(batch)
        found.append(way.counted())
    assert all(one == found[0] for one in found)
    assert 0 < sum(found[0].values()) < 3 * BATCH_ROWS and len(found[0]) == 100
