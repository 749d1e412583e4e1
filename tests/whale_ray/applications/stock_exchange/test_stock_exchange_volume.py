"""Volume per symbol and second: by hand, and whatever the batches and watermarks are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.whale_ray.applications.emitted import Emitted, context
from whale_ray.applications.stock_exchange.schemas import FILLS
from whale_ray.applications.stock_exchange.volume import Volume
from whale_ray.transport.wire.batch import Batch

TIME = pa.timestamp("ms", tz="UTC")
NAMES = ("second", "symbol", "fills", "qty", "value_milli", "last_price_milli", "total_qty")
Trade = tuple[int, str, int, int]
"""Time in ms, symbol, price, quantity."""


def fills(trades: list[Trade]) -> Batch:
    columns = {
        "event_time": pa.array([trade[0] for trade in trades], pa.int64()).cast(TIME),
        "symbol": [trade[1] for trade in trades],
        "fill_no": list(range(len(trades))),
        "aggressor": ["BUY"] * len(trades),
        "price_milli": [trade[2] for trade in trades],
        "qty": [trade[3] for trade in trades],
        "buy_order_no": [1] * len(trades),
        "sell_order_no": [2] * len(trades),
    }
    batch = Batch.from_arrow(pa.table(columns, schema=FILLS.to_arrow()))
    return batch.with_times(np.array([trade[0] * 1_000_000 for trade in trades], np.int64))


def volumes(trades: list[Trade], cuts: list[int]) -> list[tuple]:
    """Return what is emitted, a watermark standing behind each cut; checks the times of rows."""
    volume, out = Volume(), Emitted()
    volume.open(context((0,), 1))
    for start, stop in zip([0, *cuts], [*cuts, len(trades)], strict=True):
        if stop > start:
            volume.on_batch(fills(trades[start:stop]), out)
            volume.on_watermark(trades[stop - 1][0] * 1_000_000 - 1, out)
    volume.close(out)
    for batch in out.batches:
        ends = batch["second"].astype(np.int64) * 1_000_000 + 999_999_999
        assert (batch.times == ends).all()
    found = [tuple(row[name] for name in NAMES) for row in out.rows()]
    return sorted((row[1], row[0].timestamp(), *row[2:]) for row in found)


def test_a_row_for_each_symbol_and_second_with_a_fill():
    trades = [(1_000, "A", 10, 2), (1_999, "A", 11, 3), (1_999, "B", 7, 1), (3_000, "A", 9, 4)]
    assert volumes(trades, []) == [
        ("A", 1.0, 2, 5, 53, 11, 5),
        ("A", 3.0, 1, 4, 36, 9, 9),
        ("B", 1.0, 1, 1, 7, 7, 1),
    ]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 900),
            st.sampled_from(["A", "BB", "ä"]),
            st.integers(1, 9),
            st.integers(1, 9),
        ),
        min_size=1,
        max_size=30,
    ),
    st.data(),
)
def test_neither_batches_nor_watermarks_matter(steps, data):
    time_ms, trades = 0, []
    for step, *rest in steps:
        time_ms += step
        trades.append((time_ms, *rest))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(trades)), max_size=5)))
    expected: dict[tuple, list] = {}
    totals: dict[str, int] = {}
    for at_ms, symbol, price, qty in trades:
        totals[symbol] = totals.get(symbol, 0) + qty
        row = expected.setdefault((symbol, at_ms // 1000), [0, 0, 0, 0, 0])
        row[:] = [row[0] + 1, row[1] + qty, row[2] + qty * price, price, totals[symbol]]
    assert volumes(trades, cuts) == sorted(
        (symbol, float(second), *row) for (symbol, second), row in expected.items()
    )


def test_more_symbols_than_there_was_room_for():
    trades = [(1_000 + number, f"SYMBOL-{number}", 5, 1) for number in range(1_000)]
    assert [row[0] for row in volumes(trades, [3, 500])] == sorted(trade[1] for trade in trades)
