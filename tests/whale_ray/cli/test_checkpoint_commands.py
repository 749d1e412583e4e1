"""Checkpoints on the command line: run, explain, stopped, resumed, and mistakes in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from whale_ray.cli.main import main

SCRIPT = """
import whale_ray as whale

doubled = whale.Topology("doubled")
rows = doubled.source(whale.sources.iterable([{"v": v} for v in range(100)]), id="rows")
rows.select((whale.col("v") * 2).alias("w"), id="twice").sink(whale.sinks.parquet("out"), id="out")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "doubled.py").write_text(SCRIPT)
    return "doubled.py"


def test_a_run_with_checkpoints_finishes_and_cannot_be_resumed(
    script: str, tmp_path: Path, capsys: Any, no_leaks: None
) -> None:
    assert main(["run", script, "--on", "processes", "--workers", "1", "--checkpoints", "st"]) == 0
    assert "out: 100 rows in" in capsys.readouterr().out
    assert main(["resume", "st", "--on", "processes"]) == 2
    told = capsys.readouterr().err
    assert "has ended behind its checkpoint 1, and its output is complete" in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["resume", "nowhere", "--on", "processes"],
            "there is no checkpoint in {folder}/nowhere: name the folder that the job was given as"
            " checkpoints=; a job that died before its first checkpoint is submitted again",
        ),
        (
            ["state", "nowhere", "show"],
            "whale-ray state PATH show OPERATOR takes 1 name, not 0",
        ),
        (
            ["resume", "nowhere", "--on", "processes", "--detach"],
            "--detach means nothing with --on processes; leave one of them out",
        ),
        (
            ["resume", "nowhere", "--parallelism", "twice"],
            "argument --parallelism: 'twice' is not ID=N, such as counts=4;"
            " see whale-ray resume --help",
        ),
        (
            ["run", "doubled.py", "--on", "inline", "--restore", "latest"],
            "restore= has no effect without checkpoints=: name the folder to keep them in",
        ),
        (
            ["run", "doubled.py", "--on", "inline", "--checkpoints", "st"]
            + ["--checkpoint-timeout", "0 s"],
            "checkpoints.timeout_ms must lie between 1 and 86,400,000, not 0",
        ),
        (
            ["stop", "job", "--now", "--savepoint"],
            "--now cancels the job, and --savepoint keeps what it knows; give one of them",
        ),
    ],
)
def test_a_mistake_about_checkpoints_is_one_line(
    words: list[str], told: str, script: str, tmp_path: Path, capsys: Any
) -> None:
    assert main(words) == 2
    assert capsys.readouterr().err == f"whale-ray: {told.format(folder=tmp_path)}\n"


def test_explain_says_how_the_job_goes_on(script: str, capsys: Any) -> None:
    options = ["--on", "inline", "--checkpoints", "st", "--checkpoint-interval", "5 seconds"]
    assert main(["explain", script, *options]) == 0
    told = capsys.readouterr().out
    assert "/st every 5 s, 3 are kept; output is visible at the end" in told
    assert "rows      makes all rows again and skips" in told
    assert "out       exactly once" in told
