"""The whole topology, however it is placed: all decisions are those of one query."""

from __future__ import annotations

import io
import json
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from tests.whale_ray.applications.options_market.markets import (
    all_trades,
    expected_decisions,
    small_book,
)
from whale_ray.api.job import Job
from whale_ray.api.submission import run
from whale_ray.applications.options_market.generated import generated_contracts
from whale_ray.applications.options_market.schemas import MOMENTS
from whale_ray.applications.options_market.settings import OptionsMarketSettings
from whale_ray.applications.options_market.topology import build
from whale_ray.cli.main import main
from whale_ray.configs.errors import EXIT_USAGE
from whale_ray.lab.bench.options_market.measuring import STAGES, measure
from whale_ray.metrics.job_metrics import JobMetrics

MARKET = OptionsMarketSettings(
    rate=20_000, seconds=0.25, feeds=2, engines=1, seed=3, threshold_bp=300, line_messages=1 << 16
)
DEVICES = Path("/sys/class/infiniband")
NAMES = ("contract", "line", "sequence", "price_milli", "average_milli", "signal")


def expected(market: OptionsMarketSettings) -> list[tuple[int, ...]]:
    book = small_book()
    return expected_decisions(book, all_trades(book, market), market.threshold_bp)


def in_order(decisions: pa.Table) -> list[tuple[int, ...]]:
    """Return decisions by contract and sequence number, without the moments."""
    with duckdb.connect() as database:
        database.register("decisions", decisions)
        return database.sql(
            f"SELECT {', '.join(NAMES)} FROM decisions ORDER BY contract, sequence"
        ).fetchall()


@pytest.mark.parametrize(
    ("placement", "changes", "workers"),
    [
        ("fused", {}, 1),
        ("fused", {"feeds": 3}, 2),
        ("shared-memory", {}, 2),
        ("shared-memory", {"engines": 4, "feeds": 3}, 3),
        ("tcp", {}, 2),
    ],
)
def test_a_placement_makes_no_difference(placement, changes, workers, no_leaks):
    check(placement, OptionsMarketSettings(**{**MARKET.__dict__, **changes}), workers)


@pytest.mark.rdma
@pytest.mark.long
@pytest.mark.timeout(1000)
def test_queue_pairs_make_no_difference(no_leaks):
    """Where they are emulated, a start takes long, and a line long to be looked at again."""
    if not any(DEVICES.glob("*")):
        pytest.skip("no RDMA device to test with")
    market = OptionsMarketSettings(**{**MARKET.__dict__, "rate": 8_000})
    check("verbs", market, 2, {"runtime.start_timeout_ms": 500_000})


def check(
    placement: str,
    market: OptionsMarketSettings,
    workers: int | None,
    more_settings: dict[str, object] | None = None,
) -> None:
    """Run a placement once: nothing is missed, and all decisions are those of the query."""
    book, sink = small_book(), whale.sinks.collect()
    found = measure(
        book, market, placement, workers=workers, decisions=sink, more_settings=more_settings
    )
    assert found.state == "finished"
    offered = len(all_trades(book, market))
    assert (found.ingest.offered, found.ingest.taken, found.trades) == (offered,) * 3
    assert (found.ingest.missed, found.ingest.gaps, found.ingest.damaged) == (0, 0, 0)
    decisions = found.job.results("decisions").to_arrow()
    assert in_order(decisions) == expected(market)
    assert found.decisions == decisions.num_rows > 30
    assert found.hosts == (workers if placement in ("tcp", "verbs") else 1)
    assert list(found.stages) == list(STAGES)
    share = found.transport_share
    assert share is not None and 0.0 < share < 1.0


def test_inline_too_with_several_engines():
    market = OptionsMarketSettings(**{**MARKET.__dict__, "engines": 5})
    sinks = whale.sinks.collect(), whale.sinks.collect()
    job = run(build(small_book(), *sinks, market, unpacked=True))
    assert in_order(job.results("decisions").to_arrow()) == expected(market)


@pytest.mark.parametrize("fused", [True, False])
def test_the_plan_shows_what_is_fused(fused):
    topology = build(small_book(), whale.sinks.collect(), whale.sinks.collect(), fused=fused)
    plan = str(topology.explain(workers=1 if fused else 3))
    assert ("Edges: none, everything is fused" in plan) == fused
    assert f"Physical plan: {1 if fused else 3} stage" in plan


def test_a_line_without_room_misses_messages_and_says_how_many(no_leaks):
    """A buffer of one message, looked at a few thousand times a second."""
    market = OptionsMarketSettings(**{**MARKET.__dict__, "line_messages": 1, "rate": 100_000})
    found = measure(small_book(), market, "fused")
    ingest = found.ingest
    offered = len(all_trades(small_book(), OptionsMarketSettings(
        **{**MARKET.__dict__, "rate": 100_000}
    )))  # fmt: skip
    assert ingest.offered == offered == ingest.taken + ingest.missed
    assert ingest.missed == ingest.missed_by_lines > offered / 2
    assert 0 < ingest.gaps <= ingest.taken + market.feeds
    assert found.trades == ingest.taken
    assert ingest.missed_share == ingest.missed / offered


def test_a_stopped_run_reports_what_it_read(no_leaks):
    market = OptionsMarketSettings(**{**MARKET.__dict__, "seconds": 60.0})

    def stop_early(job: Job) -> None:
        def look(metrics: JobMetrics) -> str:
            if "collector" in {one.operator_id for one in metrics.operators}:
                if metrics.operator("collector").rows_in:
                    job.stop_from_signal(drain=True)
            return ""

        job.wait(watch=io.StringIO(), line=look, interval_s=0.01)

    found = measure(small_book(), market, "fused", wait=stop_early)
    assert found.state == "drained"
    assert found.ingest.offered == found.ingest.taken == found.trades > 0
    assert found.decisions > 0


# --- the command -------------------------------------------------------------------------------


def test_the_command_reports_and_keeps_the_decisions(tmp_path, capsys, no_leaks):
    out = tmp_path / "out"
    words = ("--rate", "20000", "--seconds", "0.2", "--contracts", "300", "--placement", "fused")
    code = main(["run", "options-market", *words, "--out", str(out), "--json",
                 "--line-messages", "65536", "--workers", "1"])  # fmt: skip
    printed = capsys.readouterr()
    assert code == 0, printed.err
    result = json.loads(printed.out.splitlines()[-1])
    assert result["application"] == "options-market"
    assert (result["placement"], result["workers"], result["hosts"]) == ("fused", 1, 1)
    assert (result["contracts"], result["contracts_from"]) == (300, "generated")
    assert result["messages"]["offered"] == result["messages"]["taken"] == result["trades"] > 3_000
    kept = pq.read_table(out)
    assert kept.num_rows == result["decisions"]
    market = OptionsMarketSettings(rate=20_000, seconds=0.2, line_messages=65_536)
    book = generated_contracts(300)
    assert in_order(kept) == expected_decisions(book, all_trades(book, market), 500)
    moments = np.stack([kept[name].to_numpy() for name in MOMENTS])
    assert (np.diff(moments, axis=0) >= 0).all()
    assert "streaming" in printed.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--rate 0", "--rate is 0.0: give 1 to 100,000,000 messages per second"),
        (
            "--placement fused --workers 3",
            "--placement fused has a process for every line at most: give --workers 1 to 2, not 3",
        ),
        (
            "--placement tpc",
            "argument --placement: unknown 'tpc' (did you mean tcp?); there are fused, "
            "shared-memory, tcp, verbs; see whale-ray run options-market --help",
        ),
        ("--overwrite", "--overwrite means nothing without --output; leave it out"),
        ("--contracts 0", "--contracts is 0: give 1 to 1,000,000"),
        ("--contracts 0 --data x", "--contracts is 0: give 1 to 1,000,000"),
        (
            "--data absent",
            "no folder 'absent': give one with options_daily*.parquet or options_universe*.parquet",
        ),
        ("--contracts 2 --feeds 3", "3 feed lines for 2 contracts: give every line one or more"),
    ],
)
def test_mistakes_are_one_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "options-market", *words.split()]) == EXIT_USAGE
    assert capsys.readouterr().err.splitlines()[-1] == f"whale-ray: {message}"


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_command_takes_real_contracts(data_dir, tmp_path, capsys):
    code = main(["run", "options-market", "--data", str(data_dir), "--rate", "5000",
                 "--seconds", "0.5", "--contracts", "1000", "--json"])  # fmt: skip
    printed = capsys.readouterr()
    assert code == 0, printed.err
    result = json.loads(printed.out.splitlines()[-1])
    assert result["contracts"] == 1_000 and result["rows_rejected"] == {}
    assert "options_daily_nse" in result["contracts_from"]
