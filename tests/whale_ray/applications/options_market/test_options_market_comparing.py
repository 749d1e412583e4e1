"""All placements side by side: the table, the drawing, and the command that makes them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.whale_ray.applications.options_market.markets import all_trades, expected_decisions
from tests.whale_ray.applications.options_market.test_options_market_measuring import MEASURED
from whale_ray.applications.options_market import comparing
from whale_ray.applications.options_market.application import describe_result
from whale_ray.applications.options_market.comparing import (
    describe_comparison,
    draw_comparison,
    placements_here,
    render_comparison,
)
from whale_ray.applications.options_market.generated import generated_contracts
from whale_ray.applications.options_market.measuring import STAGES, Measured
from whale_ray.applications.options_market.placements import PLACEMENTS
from whale_ray.applications.options_market.settings import OptionsMarketSettings
from whale_ray.cli.main import main
from whale_ray.configs.errors import EXIT_USAGE
from whale_ray.transport.verbs import carriers
from whale_ray.transport.verbs.library import NoVerbsError

IDLE = replace(
    MEASURED, samples=0, stages={}, end_to_end=None, wait_on_line=None, from_due=None, cpu_s=0.5
)


def described(placement: str, measured: Measured) -> dict:
    return describe_result(
        command="whale-ray run options-market --compare",
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


def test_the_command_compares_all_placements(capsys, monkeypatch, no_leaks):
    """A line has room for all of its messages, so none is missed however late its reader comes."""
    monkeypatch.setattr(comparing, "PLACEMENTS", dict.fromkeys(("fused", "tcp", "verbs")))
    words = ("--rate", "20000", "--seconds", "0.1", "--contracts", "100", "--workers", "2",
             "--line-messages", "4096")  # fmt: skip
    code = main(["run", "options-market", "--compare", *words, "--json", "--threshold-bp", "100"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    result = json.loads(printed.out.splitlines()[-1])
    assert [(run["placement"], run["hosts"]) for run in result["runs"]][:2] == [
        ("fused", 1),
        ("tcp", 2),
    ]
    market = OptionsMarketSettings(rate=20_000, seconds=0.1)
    offered = all_trades(generated_contracts(100), market)
    assert len(offered) < 4_096
    for run in result["runs"]:
        messages = run["messages"]
        assert (messages["offered"], messages["taken"], run["trades"]) == (len(offered),) * 3
        assert (messages["missed"], messages["gaps"], messages["damaged"]) == (0, 0, 0)
        assert list(run["latency_us"])[: len(STAGES)] == list(STAGES)
        expected = expected_decisions(generated_contracts(100), offered, 100)
        assert run["decisions"] == len(expected) > 0
    assert printed.out.splitlines()[0].startswith("options-market: ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--compare --placement tcp", "--compare takes all placements; leave out --placement"),
        (
            "--compare --output out",
            "--compare and --highest run the market several times; leave out --output",
        ),
        (
            "--highest --output out",
            "--compare and --highest run the market several times; leave out --output",
        ),
        ("--highest --rate 5", "--highest searches the rate; leave out --rate"),
        ("--highest --rate 50000", "--highest searches the rate; leave out --rate"),
        (
            "--placement fused --engines 1",
            "--placement fused has an engine for every line; leave out --engines, or give --feeds",
        ),
        (
            "--compare --set runtime.hosts=2",
            "runtime.hosts=2 is no part of the placement 'fused', which has 1; leave it out, or "
            "choose another placement",
        ),
        ("--plots figures", "--plots means nothing without --compare; leave it out"),
        (
            "--compare --workers 1",
            "--placement shared-memory needs 2 workers or more, not 1: handlers have their own",
        ),
    ],
)
def test_mistakes_are_one_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "options-market", *words.split()]) == EXIT_USAGE
    assert capsys.readouterr().err.splitlines()[-1] == f"whale-ray: {message}"
