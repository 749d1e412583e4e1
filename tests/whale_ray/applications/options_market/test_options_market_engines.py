"""Decision engines against one SQL query over the same trades."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.whale_ray.applications.options_market.markets import (
    FeedMessage,
    all_trades,
    batch_of,
    encoded,
    expected_decisions,
    small_book,
)
from whale_ray.applications.options_market.collector import Collector
from whale_ray.applications.options_market.contracts import ContractBook
from whale_ray.applications.options_market.engines import DecisionRule
from whale_ray.applications.options_market.handlers import FeedHandler
from whale_ray.applications.options_market.schemas import DECISIONS, decisions_of
from whale_ray.applications.options_market.settings import OptionsMarketSettings
from whale_ray.transport.clock import VirtualClock

NAMES = ("contract", "line", "sequence", "price_milli", "average_milli", "signal")


def decided(
    book: ContractBook, trades: list[FeedMessage], threshold_bp: int, cut: int
) -> list[tuple[int, ...]]:
    """Return decisions on trades that come in pieces, by contract and sequence number."""
    clock = VirtualClock(1_000)
    handler = FeedHandler(4, len(book), clock)
    engine = DecisionRule(
        book.listed["right"].copy(), book.listed["strike_milli"].copy(), threshold_bp, clock
    )
    collector = Collector(clock)
    rows: list[tuple[int, ...]] = []
    for start in range(0, len(trades), cut):
        made = handler(batch_of(encoded(one) for one in trades[start : start + cut]))
        clock.advance(10)
        decisions = None if made is None else engine(made)
        clock.advance(10)
        if decisions is None:
            continue
        table = decisions_of(collector(decisions))
        assert table.schema == DECISIONS
        handled = table["handler_in_ns"]
        assert (table["engine_in_ns"] - handled == 10).all()
        assert (table["collector_in_ns"] - handled == 20).all()
        rows += zip(*(table[name].tolist() for name in NAMES), strict=True)
    return sorted(rows, key=lambda row: (row[0], row[2]))


@pytest.mark.parametrize("threshold_bp", [100, 500])
@pytest.mark.parametrize("cut", [1, 100, 100_000])
def test_decisions_are_what_a_query_answers(threshold_bp, cut):
    market = OptionsMarketSettings(
        rate=20_000, seconds=0.1 if cut == 1 else 0.5, feeds=2, line_messages=1 << 16
    )
    book = small_book()
    trades = all_trades(book, market)
    expected = expected_decisions(book, trades, threshold_bp)
    assert len(expected) > 50
    assert decided(book, trades, threshold_bp, cut) == expected


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(1, 1_000), st.integers(1, 3_000)), max_size=60
    ),
    st.integers(1, 9_999),
)
def test_decisions_equal_the_query_for_any_trades(values, threshold_bp):
    book = small_book(3)
    trades = [
        FeedMessage("T", 0, place + 1, 0, contract, quantity, price, 96_000 + 40 * (place % 60))
        for place, (contract, quantity, price) in enumerate(values)
    ]
    assert decided(book, trades, threshold_bp, 7) == expected_decisions(book, trades, threshold_bp)


def test_no_sum_of_trades_overflows():
    """90 million of the largest trades are as many as a run may have."""
    book = small_book(1)
    engine = DecisionRule(book.listed["right"].copy(), np.array([1]), 500, VirtualClock())
    engine._contracts["value"] = 10**8 * 1_000 * (90_000_000 - 1)
    engine._contracts["quantity"] = 1_000 * (90_000_000 - 1)
    made = FeedHandler(1, 1)(batch_of([encoded(FeedMessage("T", 0, 1, 0, 0, 1_000, 10**8, 1))]))
    assert made is not None
    assert engine(made) is None  # the price is the average
    assert engine._contracts["value"][0] == 9 * 10**18
