"""The command on the real day, prepared by a real Spark: all fills are the exchange's own.

Spark runs in a process of its own, which ends with its Java.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
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

ROOT = Path(__file__).parents[4]

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.timeout(900)]


def run_command(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "whale_ray.cli.main", "run", "stock-exchange", *words]
    return subprocess.run(
        command, cwd=ROOT, env=os.environ | {"TZ": "UTC"}, capture_output=True, text=True,
        timeout=850, check=False,
    )  # fmt: skip


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


def test_unusable_rows_are_counted_and_differences_reported(tmp_path):
    """An auction that does not come out equal is applied; a fill that no order explains differs."""
    known_here = "cancel of an unknown order"
    bad = (
        [row for row, reason in BAD_ORDERS if reason not in (None, known_here)],
        [row for row, reason in BAD_TRADES if reason is not None],
    )
    folder = write(tmp_path, ORDERS + bad[0], TRADES + bad[1])
    done = run_command("--data", folder, "--on", "inline", "--out", str(tmp_path / "out"), "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert sum(result["rows_rejected"].values()) == len(bad[0]) + len(bad[1])
    assert result["rows_rejected"]["orders: unknown side"] == 1
    assert (result["compared"], result["equal"]) == (3, 3)
    assert (result["auction_computed"], result["auction_applied"]) == (1, 1)


def test_rows_that_cannot_be_used_are_refused_if_asked(tmp_path):
    folder = write(tmp_path, [*ORDERS, BAD_ORDERS[10][0]], TRADES)
    done = run_command("--data", folder, "--on", "inline", "--on-bad-rows", "fail",
                       "--out", str(tmp_path / "out"))  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "whale-ray: 1 rows cannot be used (orders: unknown side: 1). Correct the input, or leave"
        " such rows out and count them with on_bad_rows='drop'"
    )


def test_fills_that_the_orders_do_not_explain_are_reported(tmp_path):
    """The exchange names order 2 where order 1 was first: a difference, and a failure."""
    orders = [*ORDERS[:2], (*ORDERS[1][:1], 3, *ORDERS[1][2:7], 9)]
    trades = [(*TRADES[1][:7], 9)]
    folder = write(tmp_path, orders, trades)
    done = run_command("--data", folder, "--on", "inline", "--out", str(tmp_path / "out"))
    assert done.returncode == 1, done.stderr
    assert "1 continuous fills with the exchange's, 0 equal" in done.stdout
    assert "the first that differs has seq 5" in done.stdout
