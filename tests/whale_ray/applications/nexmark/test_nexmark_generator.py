"""Proportions, distributions, references and order of NEXMark's generated events."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from whale_ray.applications.nexmark import generator
from whale_ray.applications.nexmark.generator import FIRST_ID, NUMBER_LEAD, generate, tables
from whale_ray.applications.nexmark.schemas import SCHEMAS
from whale_ray.applications.nexmark.settings import MAX_OUT_OF_ORDER_MS, NexmarkSettings
from whale_ray.configs.errors import SettingsError

SETTINGS = NexmarkSettings(events=100_000, seed=7)


@cache
def stream(name: str) -> pa.Table:
    return pa.concat_tables(tables(name, SETTINGS))


def column(stream_name: str, name: str) -> np.ndarray:
    found = stream(stream_name)[name]
    return (
        found.cast(pa.int64()).to_numpy()
        if pa.types.is_timestamp(found.type)
        else (found.to_numpy())
    )


def newest_at(times: np.ndarray, name: str) -> np.ndarray:
    """Return the newest id of a stream's rows at each time."""
    known = np.sort(column(name, "date_time"))
    return FIRST_ID + np.searchsorted(known, times, side="right") - 1


def test_of_fifty_events_one_is_a_person_three_are_auctions_and_the_rest_bids() -> None:
    assert {name: stream(name).num_rows for name in SCHEMAS} == {
        "persons": 2_000,
        "auctions": 6_000,
        "bids": 92_000,
    }
    assert sum(1 for _ in set(column("bids", "date_time").tolist())) == 92_000
    for name in ("persons", "auctions"):
        ids = np.sort(column(name, "id"))
        assert ids.tolist() == list(range(FIRST_ID, FIRST_ID + len(ids)))
        by_time = column(name, "id")[np.argsort(column(name, "date_time"))]
        assert (np.diff(by_time) == 1).all()


@pytest.mark.parametrize(
    ("name", "reference", "to", "reach"),
    [
        ("bids", "auction", "auctions", 200),
        ("bids", "bidder", "persons", 1_000),
        ("auctions", "seller", "persons", 1_000),
    ],
)
def test_references_are_to_rows_that_exist_or_soon_will(
    name: str, reference: str, to: str, reach: int
) -> None:
    ids = column(name, reference)
    newest = newest_at(column(name, "date_time"), to)
    assert (ids >= FIRST_ID).all()
    assert (ids <= newest + NUMBER_LEAD).all()
    assert (ids >= newest - reach).all()


@pytest.mark.parametrize(
    ("name", "reference", "remainder", "share"),
    [("bids", "auction", 0, 1 / 2), ("bids", "bidder", 1, 3 / 4), ("auctions", "seller", 0, 3 / 4)],
)
def test_hot_ids_have_their_share(name: str, reference: str, remainder: int, share: float) -> None:
    newest = newest_at(
        column(name, "date_time"), "auctions" if reference == "auction" else "persons"
    )
    hot = FIRST_ID + (newest - FIRST_ID) // 100 * 100 + remainder
    assert (column(name, reference) == hot).mean() == pytest.approx(share, abs=0.02)


def test_prices_are_uniform_in_their_logarithm() -> None:
    prices = column("bids", "price")
    assert prices.min() >= 100
    assert prices.max() <= 100_000_000
    shares, _ = np.histogram(np.log10(prices), bins=6, range=(2, 8))
    assert shares / len(prices) == pytest.approx([1 / 6] * 6, abs=0.01)


def test_rows_have_their_average_size_and_auctions_their_length() -> None:
    sizes = stream("bids")["extra"].combine_chunks().nbytes / 92_000
    assert 32 + sizes == pytest.approx(100 + 4, abs=2)  # 4 of them for an offset
    lasting = column("auctions", "expires") - column("auctions", "date_time")
    assert lasting.min() >= 1
    assert lasting.mean() / 1e6 == pytest.approx(1_666 / 10_000, rel=0.05)


def test_events_come_out_of_order_within_the_bound() -> None:
    for name in SCHEMAS:
        times = column(name, "date_time")
        behind = np.maximum.accumulate(times) - times
        assert 2_500_000 < behind.max() < MAX_OUT_OF_ORDER_MS * 1_000
        assert (behind > 0).mean() == pytest.approx(0.1, abs=0.03)
    in_order = NexmarkSettings(events=5_000, delayed_percent=0)
    (bids,) = tables("bids", in_order)
    assert (np.diff(bids["date_time"].cast(pa.int64()).to_numpy()) > 0).all()


def test_chunks_hold_all_events_once_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = column("auctions", "id")
    monkeypatch.setattr(generator, "_CHUNK_EVENTS", 7_001)
    parts = [part["id"].to_numpy() for part in tables("auctions", SETTINGS)]
    assert len(parts) > 10
    assert np.concatenate(parts).tolist() == whole.tolist()


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    few = NexmarkSettings(events=2_000)
    one, other = (generate(tmp_path / name, "bids", few).read_bytes() for name in "ab")
    assert one == other
    assert generate(tmp_path, "bids", NexmarkSettings(events=2_000, seed=2)).read_bytes() != one


def test_a_delay_beyond_the_watermark_is_refused() -> None:
    with pytest.raises(SettingsError, match="delay_max_ms is 4000: give 0 to 3,999 ms"):
        NexmarkSettings(delay_max_ms=4_000)
