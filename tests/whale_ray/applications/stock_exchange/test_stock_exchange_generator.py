"""The generator: the same seed, the same rows; and the statistics of the real day."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.whale_ray.applications.emitted import Emitted, context
from tests.whale_ray.applications.stock_exchange.exchanges import (
    RealDay,
    as_fills,
    timed,
)
from whale_ray.applications.stock_exchange.generator import OrderGeneratorSettings, orders
from whale_ray.applications.stock_exchange.matcher import OrderMatcher
from whale_ray.applications.stock_exchange.schemas import ORDERS, Action
from whale_ray.applications.stock_exchange.splitting import is_valid
from whale_ray.configs.errors import InputError, SettingsError
from whale_ray.testing import check_source
from whale_ray.transport.wire.batch import Batch

SMALL = OrderGeneratorSettings(records=20_000, symbols=50, seed=4)
#: figure → (the real day's, absolute tolerance of what is generated)
REAL = {
    "share of cancels": (0.190, 0.01),
    "share of buys": (0.507, 0.01),
    "median quantity": (300, 100),
    "mean quantity": (1_337, 150),
    "quantity p99": (16_000, 2_000),
    "share of the opening call": (0.0235, 0.003),
    "share of the first hour": (0.454, 0.02),
    "orders that trade at once": (0.376, 0.03),
    "fills of such an order": (1.71, 0.15),
}
REAL_TOLERANCE = 0.02
"""Relative; the figures are rounded."""


def figures(rows: pa.Table) -> dict[str, float]:
    """Return the figures of `REAL` for a stream of orders."""
    messages = rows.filter(pc.less_equal(rows["action"], int(Action.CANCEL)))
    added = messages.filter(pc.equal(messages["action"], int(Action.ADD)))
    quantity = added["qty"].to_numpy()
    seconds = messages["event_time"].cast(pa.int64()).to_numpy() // 1000 % 86_400
    matcher, out = OrderMatcher(), Emitted()
    matcher.open(context((0,), 1))
    matcher.on_batch(timed(rows), out)
    fills = [fill for fill in as_fills(out.rows()) if fill.aggressor in ("BUY", "SELL")]
    incoming = {fill.buy if fill.aggressor == "BUY" else fill.sell for fill in fills}
    return {
        "share of cancels": 1 - added.num_rows / messages.num_rows,
        "share of buys": pc.mean(pc.equal(added["side"], 1)).as_py(),
        "median quantity": np.median(quantity),
        "mean quantity": quantity.mean(),
        "quantity p99": np.quantile(quantity, 0.99),
        "share of the opening call": (seconds < 5_400).mean(),
        "share of the first hour": ((seconds >= 5_400) & (seconds < 9_000)).mean(),
        "orders that trade at once": len(incoming) / added.num_rows,
        "fills of such an order": len(fills) / len(incoming),
    }


@pytest.mark.long
def test_the_generator_goes_on_where_it_was() -> None:
    check_source(lambda: orders(SMALL), parallelism=(), max_rows=(700, 8192), rescales=False)
    position = orders(SMALL).open(context((0,), 1)).position()
    other = OrderGeneratorSettings(records=20_000, symbols=50, seed=5)
    with pytest.raises(InputError, match="other orders were generated before"):
        orders(other).open_at(context((0,), 1), [position])


def generated(settings: OrderGeneratorSettings, rows: int = 8192) -> pa.Table:
    reader = orders(settings).open(context((0,), 1))
    batches = []
    while not reader.finished:
        batch = reader.read(rows)
        if batch is not None:
            assert 0 < batch.num_rows <= rows
            batches.append(batch.to_arrow())
    assert reader.read(rows) is None
    return pa.Table.from_batches(batches)


@pytest.mark.long
def test_the_same_seed_gives_the_same_rows_however_they_are_cut():
    whole = generated(SMALL)
    assert whole.schema.equals(ORDERS.to_arrow())
    for rows in (1, 7, 1_000_000):
        part = generated(SMALL, rows) if rows > 1 else generated(SMALL, 3)
        assert part.combine_chunks().equals(whole.combine_chunks())
    assert not generated(OrderGeneratorSettings(20_000, 50, 5)).equals(whole)


def test_as_many_orders_and_cancels_as_asked_for():
    actions = generated(SMALL)["action"].to_numpy()
    assert (actions <= Action.CANCEL).sum() == SMALL.records
    assert generated(OrderGeneratorSettings(1, 1)).num_rows >= 1


def test_all_rows_are_valid_and_in_the_order_of_time():
    rows = generated(SMALL)
    assert is_valid(Batch.from_arrow(rows)).all()
    times = rows["event_time"].cast(pa.int64()).to_numpy()
    assert (np.diff(times) >= 0).all()


def test_every_cancel_names_an_order_that_came_before_and_only_once():
    rows = generated(SMALL).to_pylist()
    added: dict[str, set[int]] = {}
    cancelled: set[int] = set()
    for row in rows:
        if row["action"] == Action.ADD:
            added.setdefault(row["symbol"], set()).add(row["order_no"])
        elif row["action"] == Action.CANCEL:
            assert row["order_no"] in added[row["symbol"]] and row["order_no"] not in cancelled
            cancelled.add(row["order_no"])
    assert len(cancelled) > 2_000


def test_each_symbol_collects_then_uncrosses_then_trades_and_expires():
    rows = generated(SMALL)
    for symbol in set(rows["symbol"].to_pylist()):
        actions = rows.filter(pc.equal(rows["symbol"], symbol))["action"].to_pylist()
        phases = [Action(one) for one in actions if one >= Action.COLLECT]
        call = [Action.COLLECT, Action.AUCTION]
        assert phases[-1] == Action.EXPIRE == actions[-1]
        assert phases[:-1] in ([], call, call + call)


def test_days_follow_one_another(monkeypatch):
    monkeypatch.setattr("whale_ray.applications.stock_exchange.generator._RECORDS_A_DAY", 8_000)
    rows = generated(SMALL)
    days = rows["event_time"].cast(pa.date32()).to_pylist()
    assert len(set(days)) == 3
    counts = np.unique(rows.filter(pc.less(rows["action"], 3))["event_time"].cast(pa.date32()),
                       return_counts=True)[1]  # fmt: skip
    assert counts.tolist() == [8_000, 8_000, 4_000]


@pytest.mark.long
def test_the_real_day_has_the_figures(data_dir):
    found = figures(RealDay(data_dir).rows)
    assert found == {
        name: pytest.approx(real, rel=REAL_TOLERANCE) for name, (real, _) in REAL.items()
    }


def test_what_is_generated_comes_close():
    """At the real day's rate per symbol: with less, books are emptier."""
    found = figures(generated(OrderGeneratorSettings(records=120_000, symbols=12, seed=11)))
    assert found == {name: pytest.approx(real, abs=within) for name, (real, within) in REAL.items()}


def test_symbols_differ_as_stocks_do():
    rows = generated(OrderGeneratorSettings(records=300_000, symbols=1_000, seed=11))
    counts = np.sort(np.unique(rows["symbol"].to_numpy(), return_counts=True)[1])[::-1]
    assert 0.1 < counts[:10].sum() / counts.sum() < 0.25  # the busiest hundredth
    assert np.log(counts).std() == pytest.approx(1.35, abs=0.15)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"records": 0}, "records is 0: give 1 to 1,000,000,000,000"),
        ({"symbols": 400_001}, "symbols is 400001: give 1 to 400,000"),
        ({"seed": -1}, "seed is -1: give 0 to 9,223,372,036,854,775,807"),
    ],
)
def test_sizes_out_of_range_are_refused(values, message):
    with pytest.raises(SettingsError) as refused:
        OrderGeneratorSettings(**values)
    assert str(refused.value) == message


def test_several_instances_are_refused():
    with pytest.raises(InputError) as refused:
        orders(SMALL).open(context((0,), 2))
    assert str(refused.value) == (
        "generated orders have one order of their own: read them by 1 instance, not by 2"
    )
