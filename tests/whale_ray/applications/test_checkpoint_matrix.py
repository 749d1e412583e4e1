"""Every application and NEXMark query: fails behind a checkpoint, goes on, and answers the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from tests.whale_ray.api.stateful_topology import build as stateful_topology
from tests.whale_ray.api.stateful_topology import check, late_rows
from tests.whale_ray.api.test_checkpoints import checkpoints_of, until
from tests.whale_ray.applications.options_market.markets import (
    all_trades,
    expected_decisions,
    small_book,
)
from tests.whale_ray.applications.paced_table import FailingSink, PacedTable, PlannedFailureError
from tests.whale_ray.applications.ride_hailing.worlds import plain
from whale_ray import applications
from whale_ray.applications.cluster_monitoring.topology import build as build_cluster
from whale_ray.applications.linear_road.generator import tables as road_tables
from whale_ray.applications.linear_road.settings import LinearRoadSettings
from whale_ray.applications.linear_road.topology import build as build_linear_road
from whale_ray.applications.nexmark.generator import tables
from whale_ray.applications.nexmark.inputs import Inputs
from whale_ray.applications.nexmark.queries import QUERIES
from whale_ray.applications.nexmark.schemas import SCHEMAS
from whale_ray.applications.nexmark.settings import NexmarkSettings
from whale_ray.applications.options_market.settings import OptionsMarketSettings
from whale_ray.applications.options_market.topology import build as build_options_market
from whale_ray.applications.read_only_count.generator import tables as read_only_tables
from whale_ray.applications.read_only_count.settings import ReadOnlySettings
from whale_ray.applications.read_only_count.topology import build as build_read_only_count
from whale_ray.applications.ride_hailing.generator import CabGeneratorSettings, generate
from whale_ray.applications.ride_hailing.settings import RideHailingSettings
from whale_ray.applications.ride_hailing.topology import build as build_ride_hailing
from whale_ray.applications.slash_nexmark.generator import tables as slash_tables
from whale_ray.applications.slash_nexmark.queries import QUERIES as SLASH_QUERIES
from whale_ray.applications.slash_nexmark.queries import build as build_slash_nexmark
from whale_ray.applications.slash_nexmark.settings import SlashNexmarkSettings
from whale_ray.applications.stock_exchange.generator import OrderGeneratorSettings, orders
from whale_ray.applications.stock_exchange.settings import StockExchangeSettings
from whale_ray.applications.stock_exchange.topology import build as build_stock_exchange
from whale_ray.applications.taxi_regions.generator import tables as taxi_tables
from whale_ray.applications.taxi_regions.settings import TaxiSettings
from whale_ray.applications.taxi_regions.topology import build as build_taxi_regions
from whale_ray.applications.yahoo.generator import ads_table, event_tables
from whale_ray.applications.yahoo.settings import YahooSettings
from whale_ray.applications.yahoo.topology import build as build_yahoo
from whale_ray.cli.running import APPLICATIONS
from whale_ray.plan.logical import OperatorKind
from whale_ray.testing import VirtualClock, read_all

pytestmark = pytest.mark.usefixtures("no_leaks")

Paced: TypeAlias = Callable[[pa.Table], whale.sources.Source]
CHECKPOINTS = 3
AFTER_ALL_EVENTS_NS = 1_760_000_000_000_000_000
NEXMARK = NexmarkSettings(events=10_000, events_per_s=200)
STATEFUL = ("3", "5", "7-one-to-many", "8", "11", "13", "18")
"""Queries of every kind of state, which a test runs on several hosts, too."""
STATEFUL_AGAIN = ("4", "9", "17", "19")
"""Queries of those kinds of state again."""
YAHOO = YahooSettings(events=10_000, campaigns=20)
SLASH = {
    "nb7": SlashNexmarkSettings(events=9_000, events_per_s=30),
    "nb8": SlashNexmarkSettings(events=50_000, events_per_s=1),
    "nb11": SlashNexmarkSettings(events=9_000, events_per_s=60),
}


@cache
def nexmark_streams() -> dict[str, pa.Table]:
    return {name: pa.concat_tables(tables(name, NEXMARK)) for name in SCHEMAS}


def nexmark(query: str, parallelism: int, paced: Paced) -> whale.Topology:
    topology = whale.Topology("nexmark")

    def source_of(name: str, columns: Sequence[str] | None) -> whale.sources.Source:
        rows = nexmark_streams()[name]
        return paced(rows.select(columns or rows.column_names))

    QUERIES[query](Inputs(topology, source_of, parallelism)).sink(whale.sinks.collect(), id="out")
    return topology


@cache
def yahoo_events() -> pa.Table:
    return pa.concat_tables(event_tables(YAHOO))


def yahoo(parallelism: int, paced: Paced) -> whale.Topology:
    return build_yahoo(
        paced(yahoo_events()), ads_table(YAHOO), whale.sinks.collect(), parallelism=parallelism
    )


def cluster_monitoring(parallelism: int, paced: Paced) -> whale.Topology:
    rows = 20_000
    samples = pa.table(
        {
            "event_time": pa.array(range(0, rows * 20_000, 20_000), pa.timestamp("us")),
            "job_id": pa.array([row * 7 % 50 for row in range(rows)], pa.int64()),
            "cpu_pct": pa.array([row * 13 % 101 / 7 for row in range(rows)], pa.float64()),
        }
    )
    return build_cluster(paced(samples), whale.sinks.collect(), parallelism=parallelism)


def slash_nexmark(query: str, parallelism: int, paced: Paced) -> whale.Topology:
    def source_of(name: str, columns: Sequence[str] | None) -> whale.sources.Source:
        rows = pa.concat_tables(slash_tables(name, SLASH[query]))
        return paced(rows.select(columns or rows.column_names))

    return build_slash_nexmark(query, source_of, whale.sinks.collect(), parallelism)


def read_only_count(parallelism: int, paced: Paced) -> whale.Topology:
    records = pa.concat_tables(
        read_only_tables(ReadOnlySettings(records=20_000, keys=5_000, zipf=1.0))
    )
    return build_read_only_count(paced(records), whale.sinks.collect(), parallelism=parallelism)


def linear_road(parallelism: int, paced: Paced) -> whale.Topology:
    settings = LinearRoadSettings(vehicles=600, minutes=8, accidents=20)
    reports = pa.concat_tables(road_tables(settings))
    return build_linear_road(paced(reports), whale.sinks.collect(), parallelism=parallelism)


def taxi_regions(parallelism: int, paced: Paced) -> whale.Topology:
    trips = pa.concat_tables(taxi_tables(TaxiSettings(trips=20_000, trips_per_s=1_000)))
    return build_taxi_regions(paced(trips), whale.sinks.collect(), parallelism=parallelism)


@pytest.fixture(scope="module")
def rides(tmp_path_factory: pytest.TempPathFactory) -> tuple[pa.Table, pa.Table]:
    made = generate(
        tmp_path_factory.mktemp("rides"), CabGeneratorSettings(vehicles=25, hours=0.5, seed=4)
    )
    return plain(pq.read_table(made.positions_path)), plain(pq.read_table(made.requests_path))


@cache
def exchange_orders() -> pa.Table:
    source = orders(OrderGeneratorSettings(records=3_000, symbols=12, seed=3))
    return pa.Table.from_batches([batch.to_arrow() for batch in read_all(source)])


def stock_exchange(parallelism: int, paced: Paced) -> whale.Topology:
    settings = StockExchangeSettings(matching_instances=parallelism)
    return build_stock_exchange(
        paced(exchange_orders()), whale.sinks.collect(), whale.sinks.collect(), settings
    )


def in_order(table: pa.Table) -> list[tuple[object, ...]]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


class Inline:
    """One worker in this process, whose clock moves where it waits; `settings`: others."""

    def __init__(self, interval_ms: int = 500, **settings: object) -> None:
        self._clock, self._interval_ms = VirtualClock(AFTER_ALL_EVENTS_NS), interval_ms
        self._settings = settings

    def paced(self, table: pa.Table, fails_after: int | None = None) -> PacedTable:
        return PacedTable(table, fails_after=fails_after)

    def run(self, topology: whale.Topology, folder: Path, restore: str | None = None) -> whale.Job:
        settings = {
            "checkpoints.url": str(folder),
            "checkpoints.interval_ms": self._interval_ms,
            "runtime.poll_interval_ms": self._interval_ms // 10,
            "runtime.max_restarts": 0,
            "runtime.aggregation": "partitioned",
            **self._settings,
        }
        return whale.run(topology, clock=self._clock, settings=settings, restore=restore)


class Hosts:
    """Processes on three logical hosts in a chain; then on two, with more workers on one."""

    def __init__(self, **settings: object) -> None:
        self._settings = settings

    def paced(self, table: pa.Table, fails_after: int | None = None) -> PacedTable:
        return PacedTable(table, fails_after=fails_after, pause_ms=10_000, snapshots=2)

    def run(self, topology: whale.Topology, folder: Path, restore: str | None = None) -> whale.Job:
        settings = {
            "checkpoints.url": str(folder),
            "checkpoints.interval_ms": 20,
            "runtime.max_restarts": 0,
            "runtime.hosts": 3 if restore is None else 2,
            "runtime.route": "chain" if restore is None else "star",
            "transport.wtl_ms": 1,
            **self._settings,
        }
        job = whale.submit(topology, on="processes", workers=3, settings=settings, restore=restore)
        return job.wait(60)


Place: TypeAlias = Inline | Hosts
everywhere = pytest.mark.parametrize("place", [Inline, pytest.param(Hosts, marks=pytest.mark.long)])


def answers_after_a_failure(
    build: Callable[[int, Paced], whale.Topology], place: Place, folder: Path
) -> whale.Job:
    """Run at parallelism 1; fail at 2 behind three checkpoints; go on at 3, and return that job."""
    plan = build(1, whale.sources.arrow).logical_plan()
    sinks = [node.id for node in plan.of_kind(OperatorKind.SINK)]
    expected = {
        sink: whale.run(build(1, whale.sources.arrow)).results(sink).to_arrow() for sink in sinks
    }
    assert any(table.num_rows for table in expected.values())
    with pytest.raises(PlannedFailureError):
        place.run(build(2, partial(place.paced, fails_after=CHECKPOINTS)), folder)
    found = place.run(build(3, place.paced), folder, "latest")
    checkpoints = found.metrics().checkpoints
    assert checkpoints is not None and checkpoints.restored >= CHECKPOINTS
    for sink in sinks:
        table = found.results(sink).to_arrow()
        assert table.column_names == expected[sink].column_names
        assert in_order(table) == in_order(expected[sink])
    return found


@pytest.mark.parametrize("query", [query for query in QUERIES if query != "12"])
def test_nexmark(query: str, tmp_path: Path) -> None:
    answers_after_a_failure(partial(nexmark, query), Inline(), tmp_path / "kept")


@pytest.mark.long
@pytest.mark.parametrize(
    "query",
    [*STATEFUL, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in STATEFUL_AGAIN)],
)
def test_nexmark_on_hosts(query: str, tmp_path: Path) -> None:
    answers_after_a_failure(partial(nexmark, query), Hosts(), tmp_path / "kept")


def test_nexmark_12_by_a_clock_that_stands_still_in_each_part(tmp_path: Path) -> None:
    """The parts come in windows of the clock one after the other, also the one that is repeated."""
    begin_ns = AFTER_ALL_EVENTS_NS

    def paced(table: pa.Table, fails_after: int | None = None) -> PacedTable:
        return PacedTable(table, fails_after=fails_after, pause_ms=10_000, begins_ns=begin_ns)

    place = Inline(interval_ms=5_000)
    with pytest.raises(PlannedFailureError):
        place.run(nexmark("12", 2, partial(paced, fails_after=CHECKPOINTS)), tmp_path)
    found = place.run(nexmark("12", 3, paced), tmp_path, "latest")
    checkpoints = found.metrics().checkpoints
    assert checkpoints is not None and checkpoints.restored >= CHECKPOINTS
    bidders = nexmark_streams()["bids"]["bidder"].to_pylist()
    part_rows = -(-len(bidders) // PacedTable.parts)
    expected = Counter(
        (begin_ns // 1_000 + row // part_rows * 10_000_000, bidder)
        for row, bidder in enumerate(bidders)
    )
    table = found.results("out").to_arrow()
    starts = table["window_start"].cast("int64").to_pylist()
    rows = zip(starts, table["bidder"].to_pylist(), table["bid_count"].to_pylist(), strict=True)
    assert sorted(rows) == sorted((*key, count) for key, count in expected.items())


def test_every_stateful_operator(tmp_path: Path) -> None:
    """Also those that no application has, in one topology that fails, and goes on at 3."""
    place = Inline()

    def build(parallelism: int, paced: Paced) -> whale.Topology:
        return stateful_topology(parallelism, paced, paced(pa.Table.from_pylist(late_rows())))

    with pytest.raises(PlannedFailureError):
        place.run(build(2, partial(place.paced, fails_after=CHECKPOINTS)), tmp_path)
    found = place.run(build(3, place.paced), tmp_path, "latest")
    checkpoints = found.metrics().checkpoints
    assert checkpoints is not None and checkpoints.restored >= CHECKPOINTS
    check(found)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_every_stateful_operator_stopped_with_a_savepoint(tmp_path: Path) -> None:
    """Every kind of state goes through a savepoint that ends a job in processes, mid-stream.

    The asks come without pauses, so that joins have all rows of one side by then.
    """
    settings = {"checkpoints.url": str(tmp_path), "checkpoints.interval_ms": 50}

    def submit(parallelism: int, snapshots: int | None, restore: str | None = None) -> whale.Job:
        paced = partial(PacedTable, pause_ms=600_000, snapshots=snapshots)

        def stream(rows: pa.Table) -> whale.sources.Source:
            return whale.sources.arrow(rows) if "ask" in rows.column_names else paced(rows)

        late = paced(pa.Table.from_pylist(late_rows()))
        topology = stateful_topology(parallelism, stream, late)
        return whale.submit(
            topology, on="processes", workers=parallelism, settings=settings, restore=restore
        )

    first = submit(2, None)
    until(lambda: checkpoints_of(first) >= CHECKPOINTS, "there are no checkpoints", 150)
    assert first.stop(savepoint=True, timeout_s=120).state == "stopped"
    found = submit(3, 1, "latest").wait(240)
    checkpoints = found.metrics().checkpoints
    assert checkpoints is not None and checkpoints.restored > CHECKPOINTS
    check(found)


@pytest.mark.parametrize("query", SLASH_QUERIES)
def test_slash_nexmark(query: str, tmp_path: Path) -> None:
    answers_after_a_failure(partial(slash_nexmark, query), Inline(), tmp_path / "kept")


BUILDS = {
    "yahoo": yahoo,
    "cluster-monitoring": cluster_monitoring,
    "read-only-count": read_only_count,
    "linear-road": linear_road,
    "taxi-regions": taxi_regions,
    "stock-exchange": stock_exchange,
}
"""Applications of one topology, by their names on the command line; others have tests alone."""


@everywhere
@pytest.mark.parametrize("name", BUILDS)
def test_applications(name: str, place: type[Place], tmp_path: Path) -> None:
    answers_after_a_failure(BUILDS[name], place(), tmp_path / "kept")


@everywhere
@pytest.mark.parametrize("pipelines", ["interpreted", "compiled"])
@pytest.mark.parametrize(
    "build",
    [yahoo, read_only_count, *(partial(nexmark, query) for query in ("5", "15"))],
    ids=["yahoo", "read-only", "q5", "q15"],
)
def test_late_merge(
    build: Callable[[int, Paced], whale.Topology],
    pipelines: str,
    place: type[Place],
    tmp_path: Path,
) -> None:
    """Also with partial aggregates in a compiled loop, which a marker empties, too."""
    settings = {"runtime.aggregation": "late_merge", "runtime.pipelines": pipelines}
    found = answers_after_a_failure(build, place(**settings), tmp_path / "kept")
    assert any(one.deltas_out for one in found.metrics().operators)


@pytest.mark.long
@everywhere
def test_ride_hailing(rides: tuple[pa.Table, pa.Table], place: type[Place], tmp_path: Path) -> None:
    def build(parallelism: int, paced: Paced) -> whale.Topology:
        settings = RideHailingSettings(matching_instances=parallelism, best_instances=parallelism)
        return build_ride_hailing(*map(paced, rides), whale.sinks.collect(), settings)

    answers_after_a_failure(build, place(), tmp_path / "kept")


@pytest.mark.long
def test_options_market(tmp_path: Path) -> None:
    """Its feed lines make messages by the clock; each line goes on where it was."""
    book = small_book()
    market = OptionsMarketSettings(
        rate=10_000, seconds=2, feeds=2, engines=2, seed=3, threshold_bp=300, line_messages=1 << 16
    )
    expected = expected_decisions(book, all_trades(book, market), market.threshold_bp)
    settings = {
        "checkpoints.url": str(tmp_path / "kept"),
        "checkpoints.interval_ms": 200,
        "runtime.poll_interval_ms": 50,
        "runtime.max_restarts": 0,
    }
    clock = VirtualClock(AFTER_ALL_EVENTS_NS)
    failing = FailingSink(whale.sinks.collect(), len(expected) // 2)
    with pytest.raises(PlannedFailureError):
        whale.run(
            build_options_market(book, failing, whale.sinks.collect(), market, unpacked=True),
            clock=clock,
            settings=settings,
        )
    more = replace(market, engines=3)
    topology = build_options_market(
        book, whale.sinks.collect(), whale.sinks.collect(), more, unpacked=True
    )
    job = whale.run(topology, clock=clock, settings=settings, restore="latest")
    checkpoints = job.metrics().checkpoints
    assert checkpoints is not None and checkpoints.restored >= CHECKPOINTS
    found = job.results("decisions").to_arrow()
    names = ("contract", "line", "sequence", "price_milli", "average_milli", "signal")
    rows = zip(*(found[name].to_pylist() for name in names), strict=True)
    assert sorted(rows) == sorted(expected)


TESTS_ALONE = {
    "nexmark": test_nexmark,
    "slash-nexmark": test_slash_nexmark,
    "ride-hailing": test_ride_hailing,
    "options-market": test_options_market,
}


def test_no_application_is_left_out() -> None:
    """A new one fails here until it has a place in this matrix."""
    folder = Path(applications.__path__[0])
    packages = {path.parent.name for path in folder.glob("*/__init__.py")} - {"shared"}
    assert {name.replace("-", "_") for name in APPLICATIONS} == packages
    assert set(APPLICATIONS) == BUILDS.keys() | TESTS_ALONE.keys()
