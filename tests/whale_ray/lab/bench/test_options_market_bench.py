"""The suite options-market: placements side by side, the drawing, the highest rate."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.whale_ray.applications.options_market.markets import all_trades, expected_decisions
from tests.whale_ray.applications.options_market.test_options_market_measuring import MEASURED
from whale_ray.applications.options_market.generated import generated_contracts
from whale_ray.applications.options_market.placements import PLACEMENTS, placements_here
from whale_ray.applications.options_market.report import describe_result
from whale_ray.applications.options_market.settings import OptionsMarketSettings
from whale_ray.cli.main import main
from whale_ray.configs.errors import EXIT_USAGE, SettingsError
from whale_ray.lab.bench import options_market
from whale_ray.lab.bench.options_market import Comparisons, compare
from whale_ray.lab.bench.options_market.comparing import (
    describe_comparison,
    draw_comparison,
    render_comparison,
)
from whale_ray.lab.bench.options_market.highest_rate import highest_rate
from whale_ray.lab.bench.options_market.measuring import STAGES, Ingest, MarketRun
from whale_ray.transport.verbs import carriers
from whale_ray.transport.verbs.library import NoVerbsError

IDLE = replace(
    MEASURED, samples=0, stages={}, end_to_end=None, wait_on_line=None, from_due=None, cpu_s=0.5
)


def described(placement: str, measured: MarketRun) -> dict:
    return describe_result(
        command="whale-ray bench options-market",
        settings=OptionsMarketSettings(),
        more_settings={},
        placement=placement,
        book=generated_contracts(),
        rows_rejected={},
        measured=measured,
        output=None,
    )


def compared() -> dict:
    runs = [described("shared-memory", MEASURED), described("tcp", IDLE)]
    return describe_comparison("whale-ray …", runs, {"verbs": "no RDMA device on this machine"})


def test_a_comparison_as_people_read_it():
    assert render_comparison(compared()).splitlines() == [
        "options-market: 2 placements",
        "  mean latency, µs         shared-memory             tcp",
        "  feed handler                      30.0               -",
        "  to decision engine                 8.0               -",
        "  decision engine                   50.0               -",
        "  to collector                      12.0               -",
        "  end to end                       100.0               -",
        "  wait on line before               40.0               -",
        "  transport                          20%               -",
        "  messages/s                      50,000          50,000",
        "  missed                         1.0000%         1.0000%",
        "  processor s                        3.5             0.5",
        "  left out      verbs: no RDMA device on this machine",
    ]


def test_a_comparison_is_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="plots are an extra")
    draw_comparison(tmp_path, compared())
    assert {path.name for path in tmp_path.iterdir()} == {
        "options-market.png",
        "options-market.svg",
    }


@pytest.mark.parametrize("has_devices", [False, True])
def test_verbs_take_a_device(has_devices, monkeypatch):
    def load() -> object:
        if not has_devices:
            raise NoVerbsError("no RDMA device on this machine", "look for one")
        return object()

    monkeypatch.setattr(carriers, "load_where_devices_are", load)
    names, without = placements_here()
    assert [*names, *without] == list(PLACEMENTS)
    assert without == ({} if has_devices else {"verbs": "no RDMA device on this machine"})


def test_a_placement_that_cannot_run_here_is_refused_with_the_reason(monkeypatch, capsys):
    def load() -> object:
        raise NoVerbsError("no RDMA device on this machine", "look for one")

    monkeypatch.setattr(carriers, "load_where_devices_are", load)
    assert main(["run", "options-market", "--placement", "verbs"]) == EXIT_USAGE
    assert capsys.readouterr().err.splitlines()[-1] == (
        "whale-ray: --placement verbs cannot run here: no RDMA device on this machine; choose "
        "another one"
    )


def test_all_placements_decide_the_same(monkeypatch, no_leaks):
    """A line has room for all of its messages, so none is missed however late its reader comes."""
    names = (["fused", "tcp"], {"verbs": "no RDMA device on this machine"})
    monkeypatch.setattr(options_market, "placements_here", lambda: names)
    book = generated_contracts(100)
    market = OptionsMarketSettings(rate=20_000, seconds=0.1, line_messages=4_096, threshold_bp=100)
    result = compare(book, market, workers=2)
    assert [(run["placement"], run["hosts"]) for run in result["runs"]] == [
        ("fused", 1),
        ("tcp", 2),
    ]
    assert result["left_out"] == names[1]
    offered = all_trades(book, market)
    assert len(offered) < 4_096
    for run in result["runs"]:
        messages = run["messages"]
        assert (messages["offered"], messages["taken"], run["trades"]) == (len(offered),) * 3
        assert (messages["missed"], messages["gaps"], messages["damaged"]) == (0, 0, 0)
        assert list(run["latency_us"])[: len(STAGES)] == list(STAGES)
        assert run["decisions"] == len(expected_decisions(book, offered, 100)) > 0


def test_the_highest_rate_of_each_placement_is_searched(monkeypatch):
    """Every run misses a share that grows with its rate: the search must end below the limit."""
    tried: list[float] = []

    def measure(_book: object, market: OptionsMarketSettings, _name: str, **_: object) -> MarketRun:
        tried.append(market.rate)
        missed = 0 if market.rate <= 300_000 else 1_000
        ingest = Ingest(100_000, 100_000 - missed, missed, 1, 0, missed)
        return replace(MEASURED, ingest=ingest)

    monkeypatch.setattr(options_market, "measure", measure)
    monkeypatch.setattr(options_market, "placements_here", lambda: (["fused"], {}))
    result = compare(generated_contracts(10), OptionsMarketSettings(), is_highest=True)
    (run,) = result["runs"]
    assert 300_000 / 1.05 <= run["settings"]["rate"] <= 300_000
    assert run["settings"]["rate"] in tried and max(tried) > 300_000


def test_the_suite_is_a_command(capsys, monkeypatch, tmp_path):
    asked = []

    def run(
        quick: bool, only: str | None = None, plots: Path | None = None, rate: float | None = None
    ) -> Comparisons:
        asked.append((quick, only, plots, rate))
        return Comparisons({"placements": compared()})

    monkeypatch.setattr(options_market, "run", run)
    words = ["--quick", "--only", "placements", "--rate", "400000", "--plots", str(tmp_path)]
    assert main(["bench", "options-market", *words]) == 0
    assert asked == [(True, "placements", tmp_path, 400_000.0)]
    assert capsys.readouterr().out.startswith("placements: options-market: 2 placements\n")
    assert main(["bench", "options-market", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parts"]["placements"] == compared()
    assert main(["bench", "rows", "--rate", "5"]) == EXIT_USAGE
    assert "suite 'rows' takes no --rate" in capsys.readouterr().err


# --- the highest rate ------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A run at a rate that misses everything above a limit."""

    rate: float
    limit: float

    @property
    def ingest(self) -> Ingest:
        missed = 0 if self.rate <= self.limit else 100
        return Ingest(1_000, 1_000 - missed, missed, 1, 0, missed)


@given(st.floats(0.0, 2e6), st.floats(0.01, 0.5))
def test_the_search_finds_the_limit(limit, precision):
    runs: list[Run] = []

    def measure(rate: float) -> Run:
        runs.append(Run(rate, limit))
        return runs[-1]

    found = highest_rate(measure, 1_000, 1_000_000, precision=precision)
    assert len(runs) <= 3 + math.log2(math.log(1_000) / math.log(1 + precision)) + 1
    if limit < 1_000:
        assert found is None
        return
    rate, run = found
    assert run == Run(rate, limit)
    if limit >= 1_000_000:
        assert rate == 1_000_000
    else:
        assert rate <= limit <= rate * (1 + precision) * (1 + 1e-9)


def test_a_share_at_the_limit_is_too_much():
    ingest = Ingest(10_000, 9_999, 1, 1, 0, 1)
    assert highest_rate(lambda _rate: replace(MEASURED, ingest=ingest), 10, 10) is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ((0, 5, 0.1), "the search goes from 0 to 5 messages/s: give 0 < low <= high"),
        ((9, 5, 0.1), "the search goes from 9 to 5 messages/s: give 0 < low <= high"),
        ((1, 5, 0), "precision is 0: give more than 0 and less than 1"),
    ],
)
def test_searches_that_make_no_sense_are_refused(values, message):
    low, high, precision = values
    with pytest.raises(SettingsError) as refused:
        highest_rate(lambda rate: Run(rate, 1), low, high, precision=precision)
    assert str(refused.value) == message
