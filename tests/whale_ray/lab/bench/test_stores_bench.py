"""The comparison of stores: each keeps all that it is given, with state beyond its memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from whale_ray.lab.bench.checkpoints import stores


@pytest.mark.parametrize("name", stores.STORES)
def test_a_store_has_the_counts_and_sums_of_all_rows(name: str, tmp_path: Path) -> None:
    store = stores.STORES[name](tmp_path, 4 << 20)
    rates, expected = stores.rates_of(store, 100_000, 0.01)
    assert set(rates) == {"Zipf", "uniform"}
    assert store.totals() == expected
