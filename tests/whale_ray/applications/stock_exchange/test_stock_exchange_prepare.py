"""The command on the real day, prepared by a real Spark: all fills are the exchange's own.

There it runs in a process of its own, as users run it; small inputs share one Spark in this one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.whale_ray.applications.stock_exchange.test_stock_exchange_rebuilding import (
    BAD_ORDERS,
    BAD_TRADES,
    ORDER_FIELDS,
    ORDERS,
    TRADE_FIELDS,
    TRADES,
    table,
)
from whale_ray.cli.main import main
from whale_ray.configs.settings import SparkSettings
from whale_ray.spark import spark_locally

ROOT = Path(__file__).parents[4]

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(900)]


def run_command(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "whale_ray.cli.main", "run", "stock-exchange", *words]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | {"TZ": "UTC"}, capture_output=True, text=True,
        timeout=850, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def _one_spark() -> Iterator[None]:
    with spark_locally("tests", SparkSettings(shuffle_partitions=2)):
        yield


def run_here(*words: str) -> int:
    return main(["run", "stock-exchange", "--on", "inline", *words])


def write(folder: Path, orders: list[tuple], trades: list[tuple]) -> str:
    pq.write_table(table(orders, ORDER_FIELDS), folder / "orders.parquet")
    pq.write_table(table(trades, TRADE_FIELDS), folder / "trades.parquet")
    return str(folder)


def test_the_real_day_equals_the_exchange(data_dir, tmp_path):
    out = str(tmp_path / "out")
    done = run_command("--data", str(data_dir), "--on", "processes", "--workers", "2",
                       "--out", out, "--json")  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["rows_in"] == {"orders": 149_359, "trades": 109_616}
    assert result["rows_rejected"] == {}
    assert (result["compared"], result["equal"], result["surplus"]) == (108_026, 108_026, 0)
    assert (result["auction_computed"], result["auction_applied"]) == (1_590, 0)
    trades = pq.read_table(data_dir / "stock_trades_sse_20230711.parquet")
    assert result["qty"] == sum(trades["qty"].to_pylist())


@pytest.mark.usefixtures("_one_spark")
def test_unusable_rows_are_counted_and_differences_reported(tmp_path, capsys):
    """An auction that does not come out equal is applied; a fill that no order explains differs."""
    known_here = "cancel of an unknown order"
    bad = (
        [row for row, reason in BAD_ORDERS if reason not in (None, known_here)],
        [row for row, reason in BAD_TRADES if reason is not None],
    )
    folder = write(tmp_path, ORDERS + bad[0], TRADES + bad[1])
    assert run_here("--data", folder, "--out", str(tmp_path / "out"), "--json") == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert sum(result["rows_rejected"].values()) == len(bad[0]) + len(bad[1])
    assert result["rows_rejected"]["orders: unknown side"] == 1
    assert (result["compared"], result["equal"]) == (3, 3)
    assert (result["auction_computed"], result["auction_applied"]) == (1, 1)


@pytest.mark.usefixtures("_one_spark")
def test_rows_that_cannot_be_used_are_refused_if_asked(tmp_path, capsys):
    folder = write(tmp_path, [*ORDERS, BAD_ORDERS[10][0]], TRADES)
    out = str(tmp_path / "out")
    assert run_here("--data", folder, "--on-bad-rows", "fail", "--out", out) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "whale-ray: 1 rows cannot be used (orders: unknown side: 1). Correct the input, or leave"
        " such rows out and count them with on_bad_rows='drop'"
    )


@pytest.mark.usefixtures("_one_spark")
def test_fills_that_the_orders_do_not_explain_are_reported(tmp_path, capsys):
    """The exchange names order 2 where order 1 was first: a difference, and a failure."""
    orders = [*ORDERS[:2], (*ORDERS[1][:1], 3, *ORDERS[1][2:7], 9)]
    trades = [(*TRADES[1][:7], 9)]
    folder = write(tmp_path, orders, trades)
    assert run_here("--data", folder, "--out", str(tmp_path / "out")) == 1
    told = capsys.readouterr().out
    assert "1 continuous fills with the exchange's, 0 equal" in told
    assert "the first that differs has seq 5" in told
