"""Volume per symbol and second: by hand, and however the rows are divided."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_ray as whale
from whale_ray.applications.stock_exchange.schemas import FILLS, VOLUMES
from whale_ray.applications.stock_exchange.volume import add_volume

Trade = tuple[int, str, int, int]
"""Time in ms, symbol, price, quantity."""


def fills(trades: list[Trade]) -> pa.Table:
    columns = {
        "event_time": [trade[0] for trade in trades],
        "symbol": [trade[1] for trade in trades],
        "fill_no": list(range(len(trades))),
        "aggressor": ["BUY"] * len(trades),
        "price_milli": [trade[2] for trade in trades],
        "qty": [trade[3] for trade in trades],
        "buy_order_no": [1] * len(trades),
        "sell_order_no": [2] * len(trades),
    }
    return pa.table(columns, schema=FILLS.to_arrow())


def volumes(trades: list[Trade], parallelism: int = 1, batch_rows: int = 8_192) -> list[tuple]:
    """Return the rows that are emitted: symbol and second, then the figures."""
    topology = whale.Topology("volume")
    stream = topology.source(
        whale.sources.arrow(fills(trades)), id="fills", event_time="event_time"
    )
    add_volume(stream, parallelism).sink(whale.sinks.collect(), id="out")
    job = whale.run(topology, settings={"runtime.source_batch_rows": batch_rows})
    found = job.results("out").to_arrow()
    assert found.schema.equals(VOLUMES.to_arrow())
    rows = [tuple(row.values()) for row in found.to_pylist()]
    return sorted((row[1], row[0].timestamp(), *row[2:]) for row in rows)


def test_a_row_for_each_symbol_and_second_with_a_fill():
    trades = [(1_000, "A", 10, 2), (1_999, "A", 11, 3), (1_999, "B", 7, 1), (3_000, "A", 9, 4)]
    assert volumes(trades) == [
        ("A", 1.0, 2, 5, 53, 11, 5),
        ("A", 3.0, 1, 4, 36, 9, 9),
        ("B", 1.0, 1, 1, 7, 7, 1),
    ]


def test_a_row_is_dated_at_the_end_of_its_second():
    topology = whale.Topology("dated")
    stream = topology.source(
        whale.sources.arrow(fills([(1_500, "A", 10, 2), (7_000, "A", 9, 4)])),
        id="fills",
        event_time="event_time",
    )
    again = add_volume(stream, 1).key_by("symbol").process(Dates, id="dates")
    again.sink(whale.sinks.collect(), id="out")
    found = whale.run(topology).results("out").preview()
    assert [row["time_ns"] for row in found] == [1_999_999_999, 7_999_999_999]


class Dates(whale.Process):
    """Emits the event times of its rows."""

    def on_row(self, row, out):
        out.emit_row(time_ns=out.time_ns)


@settings(max_examples=15)
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
    st.integers(1, 4),
    st.integers(1, 10),
)
def test_neither_batches_nor_instances_matter(steps, parallelism, batch_rows):
    time_ms, trades = 0, []
    for step, *rest in steps:
        time_ms += step
        trades.append((time_ms, *rest))
    expected: dict[tuple, list] = {}
    totals: dict[str, int] = {}
    for at_ms, symbol, price, qty in trades:
        totals[symbol] = totals.get(symbol, 0) + qty
        row = expected.setdefault((symbol, at_ms // 1000), [0, 0, 0, 0, 0])
        row[:] = [row[0] + 1, row[1] + qty, row[2] + qty * price, price, totals[symbol]]
    assert volumes(trades, parallelism, batch_rows) == sorted(
        (symbol, float(second), *row) for (symbol, second), row in expected.items()
    )


def test_many_symbols():
    trades = [(1_000 + number, f"SYMBOL-{number}", 5, 1) for number in range(1_000)]
    assert [row[0] for row in volumes(trades, 3, 100)] == sorted(trade[1] for trade in trades)
