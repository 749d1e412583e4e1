"""The command, its report, the topology's plan, and what users may get wrong."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from tests.whale_ray.applications.stock_exchange.exchanges import (
    BUY,
    SELL,
    OrderRow,
    add,
    orders_table,
    phase,
)
from whale_ray.applications.shared.report import Run
from whale_ray.applications.stock_exchange.generator import OrderGeneratorSettings, orders
from whale_ray.applications.stock_exchange.prepare import FillComparison, input_paths
from whale_ray.applications.stock_exchange.report import (
    Traded,
    count_traded,
    describe_result,
    render_result,
)
from whale_ray.applications.stock_exchange.schemas import FILLS, VOLUMES, Action
from whale_ray.applications.stock_exchange.settings import StockExchangeSettings
from whale_ray.applications.stock_exchange.topology import build
from whale_ray.cli.main import main
from whale_ray.configs.errors import InputError, SettingsError, WhaleError


def described(**changes: object) -> dict:
    run = {
        "command": "whale-ray run stock-exchange --data day",
        "rows_in": {"orders": 149_359, "trades": 109_616},
        "rows_rejected": {"orders: null qty": 2},
        "streamed": 207_999,
        "seconds": 0.5,
        "phases_s": {"preparation": 1.235},
        "restarts": 0,
        "latency_ms": (10.0, 20.04),
        "more_settings": {},
    }
    of_run = {name: changes.pop(name) for name in list(changes) if name in run}
    found = {
        "traded": Traded(109_616, 1_590, 0, 150_000_000, 2_123_456_789_012),
        "comparison": FillComparison(108_026, 108_026, 0, None),
        "volume_rows": 30_000,
        "output": "out",
    }
    return describe_result(
        Run(**{**run, **of_run}), StockExchangeSettings(), **{**found, **changes}
    )


def test_a_result_as_people_read_it():
    shown = render_result(described(), [{"symbol": "A", "qty": 5}], "load(it)")
    assert shown.splitlines() == [
        "stock-exchange: done in 0.5 s",
        "  read          149,359 orders, 109,616 trades",
        "  left out      2 orders: null qty",
        "  streamed      207,999 orders and cancels",
        "  fills         109,616",
        "  compared      108,026 continuous fills with the exchange's, 108,026 equal"
        " (resting order, price, quantity, turn)",
        "  auctions      1,590 fills computed, 0 applied",
        "  volume        150,000,000 shares, value 2,123,456,789.01; 30,000 updates,"
        " one a second and symbol",
        "  throughput    415,998 tuples/s",
        "  restarts      0",
        "  latency       p50 10.0 ms, p99 20.0 ms, source to sink",
        "  output        out (fills, volumes)",
        "",
        "  symbol  qty",
        "  A       5",
        "",
        "load the fills with: load(it)",
    ]


def test_a_result_says_what_differs():
    differs = described(comparison=FillComparison(108_026, 5, 3, 17))
    assert "  compared      108,026 continuous fills with the exchange's, 5 equal" in (
        text := render_result(differs, [], "")
    )
    assert "turn), 3 that it does not have; the first that differs has seq 17" in text
    assert text.endswith("(no row)")


def test_a_result_without_a_comparison():
    result = described(comparison=None, latency_ms=(None, None), rows_rejected={})
    assert result["compared"] is None
    assert "compared" not in render_result(result, [], "")
    assert json.loads(json.dumps(result)) == result


def test_fills_are_summed_up_from_the_output(tmp_path):
    rows = {"aggressor": ["BUY", "AUCTION", "APPLIED", "SELL"], "price_milli": [2, 3, 4, 5]}
    pq.write_table(pa.table(rows | {"qty": [10, 20, 30, 40]}), tmp_path / "part.parquet")
    assert count_traded(str(tmp_path)) == Traded(4, 1, 1, 100, 20 + 60 + 120 + 200)
    assert count_traded(None) == Traded(0, 0, 0, 0, 0)


# --- the command -----------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("on", ["inline", "processes"])
def test_generated_orders_run_from_the_command_line(on, tmp_path, capsys, no_leaks):
    words = ["run", "stock-exchange", "--generate", "20000", "--symbols", "100", "--seed", "3"]
    words += ["--on", on, "--out", str(tmp_path / "out"), "--json"]
    assert main([*words, "--workers", "2"] if on == "processes" else words) == 0
    told = capsys.readouterr()
    result = json.loads(told.out.splitlines()[-1])
    fills = pq.read_table(tmp_path / "out" / "fills")
    volumes = pq.read_table(tmp_path / "out" / "volumes")
    assert fills.schema.equals(FILLS.to_arrow()) and volumes.schema.equals(VOLUMES.to_arrow())
    assert result["rows_in"] == {"orders": 20_000}
    assert result["rows_out"] == {"fills": fills.num_rows, "volumes": volumes.num_rows}
    assert result["qty"] == sum(fills["qty"].to_pylist()) == sum(volumes["qty"].to_pylist()) > 0
    assert result["compared"] is None and result["auction_applied"] == 0
    assert result["tuples_per_s"] > 0
    assert all(line.startswith("stock-exchange: ") for line in told.err.splitlines() if ":" in line)


@pytest.mark.long
def test_a_run_without_any_fill_is_no_failure(tmp_path, capsys):
    words = ["--generate", "1", "--symbols", "1", "--on", "inline", "--out", str(tmp_path)]
    assert main(["run", "stock-exchange", *words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["rows_out"] == {"fills": 0, "volumes": 0}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--generate 0", "--generate is 0: give 1 to 1,000,000,000,000"),
        ("--generate 5 --symbols 0", "--symbols is 0: give 1 to 400,000"),
        ("--parallelism 0", "--parallelism is 0: give 1 to 4,096 instances"),
        ("--no-compare", "--no-compare means nothing without --data; leave it out"),
        (
            "--generate 5 --data .",
            "argument --data: not allowed with argument --generate; see whale-ray run"
            " stock-exchange --help",
        ),
        (
            "--data nowhere",
            "no folder 'nowhere': give one with orders.parquet and trades.parquet, or"
            " stock_orders_NAME.parquet and stock_trades_NAME.parquet,",
        ),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "stock-exchange", *words.split(), "--on", "inline"]) in (1, 2)
    told = capsys.readouterr().err.splitlines()
    assert told[-1] == f"whale-ray: {message}"


# --- input and settings ------------------------------------------------------------------------


def test_inputs_are_found_by_their_names(tmp_path):
    for names in (
        ("orders.parquet", "trades.parquet"),
        ("stock_orders_x.parquet", "stock_trades_x.parquet"),
    ):
        folder = tmp_path / names[0]
        folder.mkdir()
        for name in names:
            pq.write_table(pa.table({}), folder / name)
        found = input_paths(folder)
        assert (found.orders, found.trades) == tuple(str(folder / name) for name in names)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["stock_orders_x.parquet"], "has stock_orders_x.parquet but no stock_trades_x.parquet"),
        (["orders.parquet"], "has orders.parquet but no trades.parquet: put it there"),
        (["trades.parquet"], "has trades.parquet but no orders.parquet: put it there"),
        (["other.parquet"], "has no input: put orders.parquet and trades.parquet, or"),
        (
            [f"stock_{side}_{day}.parquet" for side in ("orders", "trades") for day in "ab"],
            "has several inputs (stock_orders_a.parquet, stock_orders_b.parquet): leave one",
        ),
    ],
)
def test_inputs_that_are_not_there_are_named(names, message, tmp_path):
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(InputError) as refused:
        input_paths(tmp_path)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"matching_instances": 4_097}, "matching_instances is 4097: give 1 to 4,096 instances"),
        ({"volume_instances": 1.5}, "volume_instances is 1.5: give a whole number"),
        ({"volume_instances": True}, "volume_instances is True: give a whole number"),
    ],
)
def test_settings_out_of_range_are_refused(values, message):
    with pytest.raises(SettingsError) as refused:
        StockExchangeSettings(**values)
    assert str(refused.value) == message


# --- the topology ------------------------------------------------------------------------------


def run_over(table: pa.Table) -> whale.Job:
    return whale.run(
        build(whale.sources.arrow(table), whale.sinks.collect(), whale.sinks.collect())
    )


def test_the_topology_sends_every_order_to_all_and_fills_by_symbol():
    topology = build(orders(OrderGeneratorSettings()), whale.sinks.collect(), whale.sinks.collect())
    nodes = topology.logical_plan().nodes
    by_id = {node.id: node for node in nodes}
    assert [node.id for node in nodes] == [
        *("orders", "valid", "split", "match", "fills", "volume", "total", "volumes")
    ]
    assert [feed.grouping.describe() for feed in by_id["match"].inputs] == ["all"]
    for name in ("volume", "total"):
        assert [feed.grouping.describe() for feed in by_id[name].inputs] == ["key by symbol"]
    assert by_id["match"].per_worker and by_id["volume"].per_worker
    assert [by_id[name].parallelism for name in ("match", "volume", "total")] == [16, 4, 4]


def test_rows_against_the_trading_rules_are_left_out():
    good = [add(SELL, 100, 5, 1), add(BUY, 100, 5, 2)]
    bad = [
        OrderRow("", Action.ADD, BUY, 100, 5, 3),
        OrderRow("A", 0, BUY, 100, 5, 3),
        OrderRow("A", 8, BUY, 100, 5, 3),
        OrderRow("A", Action.ADD, 0, 100, 5, 3),
        OrderRow("A", Action.ADD, 2, 100, 5, 3),
        OrderRow("A", Action.ADD, BUY, 0, 5, 3),
        OrderRow("A", Action.ADD, BUY, 10**10 + 1, 5, 3),
        OrderRow("A", Action.ADD, BUY, 100, 0, 3),
        OrderRow("A", Action.ADD, BUY, 100, 10**9 + 1, 3),
        OrderRow("A", Action.ADD, BUY, 100, 5, 0),
        OrderRow("A", Action.CANCEL, 0, 0, 0, 1),
        OrderRow("A", Action.CANCEL, 0, 0, -5, 1),
    ]
    job = run_over(orders_table([good[0], *bad, good[1], phase(Action.EXPIRE)]))
    assert job.results("fills").rows == 1
    valid = job.metrics().operator("valid")
    assert (valid.rows_in, valid.rows_out) == (len(bad) + 3, 3)


def test_rows_with_nulls_are_left_out():
    table = orders_table([add(SELL, 100, 5, 1), add(SELL, 99, 5, 2), add(BUY, 100, 5, 3)])
    for name in ("symbol", "side", "price_milli", "qty", "order_no", "action"):
        values = table[name].to_pylist()
        values[1] = None
        column = pa.array(values, table.schema.field(name).type)
        spoilt = table.set_column(table.schema.get_field_index(name), name, column)
        (fill,) = run_over(spoilt).results("fills").preview()
        assert (fill["price_milli"], fill["sell_order_no"]) == (100, 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda rows: rows.rename_columns(["quantity" if n == "qty" else n
                                              for n in rows.column_names]),
            "orders have no column 'qty': they have event_time, symbol, action, side, price_milli,"
            " quantity, order_no; rename one with select(col('…').alias(…))",
        ),
        (
            lambda rows: rows.set_column(2, "action", rows["action"].cast(pa.int32())),
            "orders: column 'action' is int32 where int8 is needed: cast it with"
            " with_column('action', col('action').cast('int8'))",
        ),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_are_named(change, message):
    with pytest.raises(WhaleError) as refused:
        run_over(change(orders_table([add(SELL, 100, 5, 1)])))
    assert message in str(refused.value)


@pytest.mark.parametrize("unit", ["us", "ns"])
def test_the_unit_of_time_does_not_matter(unit):
    table = orders_table([add(SELL, 100, 5, 1), add(BUY, 100, 5, 2)])
    fine = table.set_column(0, "event_time", table["event_time"].cast(pa.timestamp(unit, "UTC")))
    assert run_over(fine).results("fills").preview() == run_over(table).results("fills").preview()


def test_rows_that_go_back_in_time_are_refused():
    table = orders_table([add(SELL, 100, 5, 1), add(BUY, 100, 5, 2)])
    with pytest.raises(WhaleError, match="late|earlier|behind"):
        run_over(table.take([1, 0]))


def test_without_any_row_the_topology_ends():
    job = run_over(orders_table([]))
    assert job.results("fills").rows == job.results("volumes").rows == 0
