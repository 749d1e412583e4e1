"""What users' functions print and log in plain processes comes out where the driver prints."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import whale_ray as whale

pytestmark = pytest.mark.usefixtures("no_leaks")


class Talks(whale.Process):
    def open(self, context: Any) -> None:
        sys.stdout.write(f"opening {context.instance}\n")

    def on_row(self, row: Any, out: Any) -> None:
        sys.stdout.write(f"row {row.v}\n")
        logging.getLogger("tests.talks").warning("odd %d", row.v)

    def close(self, out: Any) -> None:
        sys.stderr.write("bye")


def talking(process: Any = Talks, rows: int = 3) -> whale.Topology:
    topology = whale.Topology("talking")
    source = whale.sources.iterable([{"v": v} for v in range(rows)])
    stream = (
        topology.source(source, id="rows").direct("v").process(process, id="talk", parallelism=3)
    )
    stream.sink(whale.sinks.collect(), id="out")
    return topology


def test_lines_bear_operator_and_instance(capsys: pytest.CaptureFixture[str]) -> None:
    whale.submit(talking(), on="processes", workers=2).wait(60)
    printed = capsys.readouterr()
    assert sorted(printed.out.splitlines()) == [
        line for n in range(3) for line in (f"(talk#{n}) opening {n}", f"(talk#{n}) row {n}")
    ]
    assert sorted(printed.err.splitlines()) == [
        line
        for n in range(3)
        for line in (f"(talk#{n}) WARNING tests.talks: odd {n}", f"(talk#{n}) bye")
    ]


class Floods(whale.Process):
    def on_row(self, row: Any, out: Any) -> None:
        for number in range(500):
            sys.stdout.write(f"{number}\n")


def test_a_line_per_row_is_limited_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"runtime.output_lines_per_s": 1}
    job = whale.submit(talking(Floods, 1), on="processes", workers=1, settings=settings).wait(60)
    assert job.state == "finished"
    printed = capsys.readouterr()
    shown = printed.out.splitlines()
    assert shown[:10] == [f"(talk#0) {number}" for number in range(10)]
    told = printed.err.splitlines()
    counts = [int(line.split()[2]) for line in told]
    assert len(shown) + sum(counts) == 500
    assert "lines more, not shown (runtime.output_lines_per_s=1)" in told[-1]


class DiesTalking(whale.Process):
    def on_row(self, row: Any, out: Any) -> None:
        sys.stdout.write("last words\n")
        os.kill(os.getpid(), signal.SIGKILL)


def test_the_last_output_of_a_killed_process_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    settings = {"runtime.max_restarts": 0}
    topology = talking(DiesTalking, 1)
    with pytest.raises(whale.errors.WorkerDiedError):
        whale.submit(topology, on="processes", workers=1, settings=settings).wait(60)
    assert capsys.readouterr().out == "(talk#0) last words\n"


SCRIPT = """
    import whale_ray as whale
    def shout(row):
        print("shouted", row.v)
        return True
    topology = whale.Topology("shouting")
    rows = topology.source(whale.sources.iterable([{"v": 1}]), id="rows")
    rows.filter(shout, id="shout").sink(whale.sinks.collect(), id="out")
"""


def test_the_command_keeps_its_json_on_the_last_line(tmp_path: Path) -> None:
    script = tmp_path / "shouting.py"
    script.write_text("\n".join(line.removeprefix("    ") for line in SCRIPT.splitlines()))
    command = [sys.executable, "-m", "whale_ray.cli.main", "run", f"{script}:topology"]
    done = subprocess.run(
        [*command, "--on", "processes", "--workers", "1", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "(shout#0) shouted 1", done.stderr
    assert lines[-1].startswith("{")
