"""`whale-ray simulate` as it is called: figures, single runs, mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whale_ray.cli.main import main
from whale_ray.lab.simulator.default_costs import MEASURED


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let every command run in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--hosts", "1"],
            "1 destinations: one-to-many needs 2 or more, and no more than 100,000 are simulated",
        ),
        (
            ["--hosts", "0"],
            "0 destinations: one-to-many needs 2 or more, and no more than 100,000 are simulated",
        ),
        (["--hosts", "4", "--rate", "0"], "a rate of 0: it must be above 0"),
        (["--hosts", "4", "--seconds", "-1"], "a duration of -1: it must be above 0"),
        (
            ["--hosts", "4", "--degree", "2000"],
            "an out-degree of 2000: it must be 1 to 1024, or 0 to adjust itself",
        ),
        (
            ["--hosts", "4", "--queue", "5000"],
            "a queue of 5000 slices: it must hold 1 to 1,024",
        ),
        (
            ["--hosts", "4", "--route", "ring"],
            "route 'ring' is not known; there are non-blocking, star, chain, binomial",
        ),
        (
            ["--hosts", "4", "--slice-bytes", "0"],
            "slices of 0 bytes: they must have 1 to 16,777,216",
        ),
        (
            ["--hosts", "4", "--link-mbit", "0"],
            "a link of 0.0 Mbit/s carries nothing; leave it out for no limit",
        ),
        (
            ["--hosts", "4", "--set", "multicast"],
            "--set multicast lacks its value; write --set multicast=VALUE",
        ),
        (["--rate", "5"], "--rate means nothing without --hosts"),
        (["--write", "x"], "--write means nothing without --calibrate"),
        (
            ["--only", "tree"],
            "unknown figure 'tree' (did you mean trees?); there are parallelism, trees, "
            "multicast-latency, dynamic, load, scale",
        ),
        (
            ["--validate", "--only", "trees"],
            "--only chooses among figures; leave out --calibrate, --validate and --hosts",
        ),
        (["--seed", "-1"], "--seed -1: it must be 0 or more"),
        (
            ["--costs", "measurd"],
            "--costs measurd: no such file (did you mean measured?); or measured, published",
        ),
    ],
)
def test_mistakes_are_reported_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"whale-ray: {message}\n"


@pytest.mark.parametrize(
    "setting", ["multicast.threshold_up=5", "multicast.threshold_down=0", "multicast.nothing=1"]
)
def test_settings_out_of_range_are_refused(
    setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", "--hosts", "4", "--set", setting]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"whale-ray: {setting.partition('=')[0]}") or "nothing" in error
    assert error.count("\n") == 1


@pytest.mark.smoke
def test_one_run_reports_its_results(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "--hosts", "100", "--rate", "900", "--seconds", "1", "--seed", "3"]
    assert main([*words, "--json"]) == 0
    first = capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert capsys.readouterr().out == first
    told = json.loads(first)
    assert told["simulated"] is True
    assert told["slices"] == pytest.approx(900, rel=0.2)
    assert told["throughput_slices_per_s"] == pytest.approx(told["offered_slices_per_s"], rel=0.2)
    assert main(words) == 0
    assert capsys.readouterr().out.startswith(
        "simulated, seed 3: non-blocking to 100 hosts\n  slices: "
    )


def test_figures_are_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    MEASURED.write(folder / "costs.json")
    words = ["--quick", "--no-plots", "--only", "trees", "--out", "here", "--costs", "costs.json"]
    assert main(["simulate", *words, "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"simulated, seed 1; costs of: {MEASURED.machine}"
    assert json.loads(lines[-1])["figures"] == {"trees": ["here/trees.json"]}
    assert json.loads((folder / "here" / "trees.json").read_text(encoding="utf-8"))["seed"] == 1
