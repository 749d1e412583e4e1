"""The applications' operators dump and load their state, in the middle of generated input."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pyarrow.parquet as pq

from tests.whale_ray.applications.emitted import context
from tests.whale_ray.applications.options_market.markets import (
    all_trades,
    batch_of,
    encoded,
    small_book,
)
from tests.whale_ray.applications.ride_hailing.worlds import plain, timed
from tests.whale_ray.applications.stock_exchange import exchanges
from whale_ray.applications.nexmark.queries.q07_one_to_many import HighestBids
from whale_ray.applications.options_market.collector import MetricsCollector
from whale_ray.applications.options_market.engines import DecisionEngine, DecisionRule
from whale_ray.applications.options_market.handlers import FeedHandler
from whale_ray.applications.options_market.settings import OptionsMarketSettings
from whale_ray.applications.ride_hailing.best import BestVehicle
from whale_ray.applications.ride_hailing.generator import CabGeneratorSettings, generate
from whale_ray.applications.ride_hailing.matcher import VehicleMatcher
from whale_ray.applications.ride_hailing.schemas import VEHICLES
from whale_ray.applications.stock_exchange.generator import OrderGeneratorSettings, orders
from whale_ray.applications.stock_exchange.matcher import OrderMatcher
from whale_ray.applications.stock_exchange.schemas import BOOKS, RESTING
from whale_ray.applications.stock_exchange.splitting import split
from whale_ray.testing import check_dump
from whale_ray.transport.clock import VirtualClock
from whale_ray.transport.wire.batch import Batch

NODES = np.arange(1024)


def pieces(batch: Batch, count: int) -> list[Batch]:
    bounds = np.linspace(0, batch.num_rows, count + 1).astype(int)
    return [batch.slice(start, stop) for start, stop in itertools.pairwise(bounds)]


def test_grids_of_vehicles_move(tmp_path):
    made = generate(tmp_path, CabGeneratorSettings(vehicles=25, hours=0.5, seed=4))
    positions = timed(plain(pq.read_table(made.positions_path)), "event_time")
    requests = timed(plain(pq.read_table(made.requests_path)), "request_time")
    cuts = np.linspace(positions.times.min(), positions.times.max() + 1, 9).astype(np.int64)
    steps = []
    for first, last in itertools.pairwise(cuts):
        parts = [(one.times >= first) & (one.times < last) for one in (positions, requests)]
        steps.append((positions.filter(parts[0]), requests.filter(parts[1])))
        steps.append(int(last) - 1)
    check_dump(VehicleMatcher, steps, keys=("vehicle_id",))


def test_books_of_orders_move_with_their_priorities():
    reader = orders(OrderGeneratorSettings(records=2_500, symbols=15, seed=3)).open(
        context((0,), 1)
    )
    steps = []
    while not reader.finished:
        if (batch := reader.read(900)) is not None:
            times = batch["event_time"].astype(np.int64) * 1_000_000
            steps.append(split(batch.with_times(times)))
    check_dump(OrderMatcher, steps, keys=("symbol",), broadcast=True)


def test_orders_of_one_level_and_books_that_collect_come_back_as_they_were():
    sell = partial(exchanges.add, exchanges.SELL)
    rows = [sell(100, 5, 2), sell(100, 5, 1), exchanges.add(exchanges.BUY, 99, 3, 3)]
    rows += [exchanges.phase(exchanges.Action.COLLECT, "B"), sell(7, 1, 4, "B")]
    _, matcher = exchanges.matched([*rows, exchanges.add(exchanges.BUY, 8, 1, 5, "B")])
    dumped = list(matcher.dump(NODES))
    assert [batch.schema for batch in dumped] == [BOOKS, RESTING]
    other = OrderMatcher()
    other.open(context((0,), 1))
    for batch in dumped:
        other.load(batch)
    again = list(other.dump(NODES))
    assert all(one.equals(two) for one, two in zip(dumped, again, strict=True))
    assert [tuple(row.values()) for row in dumped[1].rows()] == [
        ("A", 1, 99, 3, 3),
        ("A", -1, 100, 5, 2),
        ("A", -1, 100, 5, 1),
        ("B", 1, 8, 1, 5),
        ("B", -1, 7, 1, 4),
    ]


def test_averages_of_contracts_move():
    book = small_book()
    market = OptionsMarketSettings(rate=20_000, seconds=0.04, feeds=2, line_messages=1 << 16)
    handler = FeedHandler(4, len(book), VirtualClock(1_000))
    trades = all_trades(book, market)
    made = [handler(batch_of([encoded(one)])) for one in trades]
    rule = partial(
        DecisionRule, book.listed["right"].copy(), book.listed["strike_milli"].copy(), 100
    )
    steps = pieces(Batch.concat([one for one in made if one is not None]), 12)
    check_dump(partial(DecisionEngine, rule), steps, keys=("contract",))


def test_bids_that_wait_for_the_highest_price_move():
    chance = np.random.default_rng(5)
    steps = []
    for window in range(6):
        bids = Batch.from_pydict(
            {
                "auction": chance.integers(0, 30, 40),
                "price": chance.integers(1, 12, 40),
                "bidder": np.arange(40),
            }
        ).with_times(np.arange(40) + 100 * window)
        steps += [(half, None) for half in pieces(bids, 2)]
        highest = Batch.from_pydict({"price": [int(bids["price"].max())]})
        steps.append((None, highest.with_times(np.array([100 * window + 99]))))
    check_dump(HighestBids, steps, keys=("auction",), event_times=False)


def test_operators_without_state_dump_nothing():
    assert list(BestVehicle().dump(NODES)) == list(MetricsCollector().dump(NODES)) == []


def test_the_schema_of_vehicles_is_that_of_their_records():
    matcher = VehicleMatcher()
    matcher.open(context((0,), 1))
    (dumped,) = matcher.dump(NODES)
    assert dumped.schema == VEHICLES and dumped.num_rows == 0
