"""The whole topology, however it is divided, against the exchange and against the reference.

The real day is rebuilt by DuckDB here (by Spark among the long tests); its fills must be the
exchange's own, one by one: in continuous trading and, as the auctions come out equal, in these.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import whale_ray as whale
from tests.whale_ray.applications.stock_exchange.exchanges import RealDay, as_fills
from tests.whale_ray.applications.stock_exchange.reference import OrderRow, ReferenceExchange
from whale_ray.api.job import Job
from whale_ray.api.submission import run, submit
from whale_ray.applications.stock_exchange.auctions import Fill
from whale_ray.applications.stock_exchange.generator import OrderGeneratorSettings, orders
from whale_ray.applications.stock_exchange.settings import StockExchangeSettings
from whale_ray.applications.stock_exchange.topology import build
from whale_ray.operators.sources.base import Source

CONTINUOUS, AUCTION = 108_026, 1_590
GENERATED = OrderGeneratorSettings(records=30_000, symbols=40, seed=7)


def inline(topology: whale.Topology) -> Job:
    return run(topology)


def processes(workers: int, **settings: object) -> Callable[[whale.Topology], Job]:
    def start(topology: whale.Topology) -> Job:
        job = submit(topology, on="processes", workers=workers, settings=settings)
        return job.wait(280)

    return start


def streamed(
    source: Source, instances: int, runner: Callable[[whale.Topology], Job], volumes: int = 4
) -> tuple[pa.Table, pa.Table]:
    """Return fills and volumes, each in the order of symbols, then of time."""
    sinks = whale.sinks.collect(), whale.sinks.collect()
    job = runner(build(source, *sinks, StockExchangeSettings(instances, volumes)))
    keys = (("fills", "fill_no"), ("volumes", "second"))
    return tuple(
        job.results(name).to_arrow().sort_by([("symbol", "ascending"), (key, "ascending")])
        for name, key in keys
    )


def assert_volumes_add_up(fills: pa.Table, volumes: pa.Table) -> None:
    """Assert that the volumes are what one query over the fills answers."""
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("fills", fills)
        expected = database.sql("""
            WITH sums AS (
              SELECT DATE_TRUNC('second', event_time) AS moment, symbol, COUNT(*) AS fills,
                     SUM(qty) AS qty, SUM(qty * price_milli) AS value_milli,
                     LAST(price_milli ORDER BY fill_no) AS last_price_milli
              FROM fills GROUP BY ALL)
            SELECT *, SUM(qty) OVER (PARTITION BY symbol ORDER BY moment) AS total_qty
            FROM sums ORDER BY symbol, moment""").fetchall()
    assert [tuple(row.values()) for row in volumes.to_pylist()] == [tuple(row) for row in expected]


# --- generated orders --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_instance() -> tuple[pa.Table, pa.Table]:
    return streamed(orders(GENERATED), 1, inline, 1)


def test_generated_orders_equal_the_reference(one_instance):
    """The reference looks at every order at every step: slow, so a part is enough."""
    records = OrderGeneratorSettings(records=6_000, symbols=5, seed=3)
    fills, volumes = streamed(orders(records), 4, inline)
    rows = streamed_rows(records)
    exchange = ReferenceExchange()
    by_symbol: dict[str, list[Fill]] = {}
    for row in rows:
        by_symbol.setdefault(row.symbol, []).extend(exchange.take(row))
    expected = [fill for symbol in sorted(by_symbol) for fill in by_symbol[symbol]]
    assert as_fills(fills.to_pylist()) == expected
    assert len(expected) > 1_000
    assert_volumes_add_up(fills, volumes)


def streamed_rows(settings: OrderGeneratorSettings) -> list[OrderRow]:
    topology = whale.Topology("rows")
    topology.source(orders(settings), id="orders").sink(whale.sinks.collect(), id="out")
    names = ("symbol", "action", "side", "price_milli", "qty", "order_no")
    rows = whale.run(topology).results("out").to_arrow().to_pylist()
    return [OrderRow(*(row[name] for name in names)) for row in rows]


@pytest.mark.parametrize("instances", [4, 16])
def test_the_number_of_instances_makes_no_difference(one_instance, instances):
    assert streamed(orders(GENERATED), instances, inline) == one_instance
    assert_volumes_add_up(*one_instance)


@pytest.mark.parametrize(
    "settings",
    [
        {"runtime.source_batch_rows": 77},
        {"transport.mms_bytes": 1024, "transport.wtl_ms": 0.0},
    ],
    ids=["small batches", "small slices"],
)
def test_the_size_of_batches_makes_no_difference(one_instance, settings):
    small = streamed(orders(GENERATED), 8, lambda topology: run(topology, settings=settings))
    assert small == one_instance


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_number_of_workers_makes_no_difference(one_instance, workers, no_leaks):
    assert streamed(orders(GENERATED), 16, processes(workers)) == one_instance


@pytest.mark.long
def test_the_number_of_hosts_makes_no_difference(one_instance, no_leaks):
    runner = processes(4, **{"runtime.hosts": 2})
    assert streamed(orders(GENERATED), 16, runner) == one_instance


# --- the real day ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real_day(data_dir: Path) -> RealDay:
    return RealDay(data_dir)


@pytest.mark.long
@pytest.mark.parametrize(
    ("instances", "runner"),
    [(1, inline), (16, inline), (4, processes(2))],
    ids=["1 instance", "16 instances", "2 workers"],
)
def test_the_real_days_fills_are_the_exchanges_own(real_day, instances, runner, no_leaks):
    fills, volumes = streamed(whale.sources.arrow(real_day.rows), instances, runner)
    assert real_day.compare(fills) == {
        "compared": CONTINUOUS,
        "equal": CONTINUOUS,
        "surplus": 0,
        "first_different": None,
    }
    assert real_day.auctions_equal(fills) == AUCTION
    assert fills.num_rows == CONTINUOUS + AUCTION
    assert_volumes_add_up(fills, volumes)


@pytest.mark.long
def test_the_comparison_notices_what_differs(real_day):
    """One fill less shifts all later ones of its symbol; another quantity spoils one alone."""
    fills, _ = streamed(whale.sources.arrow(real_day.rows), 1, inline)
    symbol = fills["symbol"].to_pylist()
    first = symbol.index("601825.SH") + 1_000
    answer = real_day.compare(pa.concat_tables([fills.slice(0, first), fills.slice(first + 1)]))
    assert (
        answer["compared"] == CONTINUOUS > answer["equal"] > CONTINUOUS - symbol.count("601825.SH")
    )
    assert answer["first_different"] is not None
    qty = pa.array([value + (row == first) for row, value in enumerate(fills["qty"].to_pylist())])
    spoilt = fills.set_column(fills.schema.get_field_index("qty"), "qty", qty)
    assert real_day.compare(spoilt)["equal"] == CONTINUOUS - 1
    doubled = pa.concat_tables([fills, fills.slice(first, 1)])
    assert real_day.compare(doubled)["surplus"] == 1
