"""`whale-ray optimize`: what it says of options and logs; nothing is measured here."""

from __future__ import annotations

from pathlib import Path

import pytest

from whale_ray.applications.options_market.placements import workers_of
from whale_ray.cli import optimize_measured
from whale_ray.cli.main import main
from whale_ray.tuning.optimizing import (
    AS_IT_IS,
    OPTIMIZED,
    SINGLE_ROWS,
    CheckedPrediction,
)

TSPEC = Path(__file__).parents[3] / "examples" / "tspec" / "tweets.yaml"


def told(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that fails with a line, and return that line."""
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    return printed.err


def test_a_log_can_be_gone_through_step_by_step(tmp_path, capsys):
    log = tmp_path / "log.yaml"
    main(["optimize", str(TSPEC), "--cores", "8", "--log", str(log)])
    capsys.readouterr()
    assert main(["optimize", "--replay", str(log)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("tweet-statistics: ")
    first, *_, last = printed.split("\n\n")[1:]
    assert "moods" not in first
    assert "counts: " in last and "moods: " in last


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "optimize needs a topology"),
        ([str(TSPEC), "--cores", "0"], "--cores is 0; it must be at least 1"),
        ([str(TSPEC), "--parallelism", "2"], "unknown option --parallelism; with --measured"),
        ([str(TSPEC), "--replay", "log.yaml"], "--replay shows what was decided before"),
        (["--replay", "nowhere.yaml"], "cannot read nowhere.yaml: No such file"),
        (["options-market", "--seconds", "0"], "--seconds is 0.0: give 0.01 to 86,400 seconds"),
        (["nothing.py"], "nothing.py: no such file"),
        (["linear-rode"], "unknown application 'linear-rode' (did you mean linear-road?)"),
    ],
)
def test_mistakes_are_told_in_a_line(words, line, capsys):
    assert line in told(["optimize", *words], capsys)


def test_the_options_market_is_measured_as_it_would_run(monkeypatch):
    given = []
    monkeypatch.setattr(optimize_measured, "_optimize", lambda *them: given.extend(them) or 0)
    assert main(["optimize", "options-market", "--contracts", "9", "--feeds", "3"]) == 0
    _, topology, settings, workers = given
    assert topology.logical_plan().nodes[0].parallelism == 3
    assert (settings.transport.wtl_ms, settings.runtime.source_workers) == (0, 1)
    assert workers == workers_of("shared-memory", None, 3)


@pytest.mark.parametrize(("after", "line"), [(89.0, "was 11% slower than as it is"), (91.0, "")])
def test_an_optimized_topology_that_is_slower_is_told(after, line):
    found = [
        CheckedPrediction(name, 1.0, measured, wall_per_s=1.0)
        for name, measured in ((SINGLE_ROWS, 1.0), (AS_IT_IS, 100.0), (OPTIMIZED, after))
    ]
    assert line in (told := optimize_measured._slower(found) or "")
    assert bool(line) == bool(told)


def test_what_was_not_measured_is_no_zero() -> None:
    short = CheckedPrediction("optimized", 54_599.0, 49_290.0, wall_per_s=0.0)
    shown = optimize_measured._row(short)
    assert shown["measured/s"] == "49,290"
    assert {shown[name] for name in ("by the clock/s", "at rows/s", "measured ms")} == {"–"}
