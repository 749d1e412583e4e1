"""The driver is killed while it publishes or restarts: each output is complete, old or new."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest

import whale_ray as whale

OLD, NEW, NEXT = 10, 1_000, 20
SINKS = ("first", "second")

DRIVER = """
    import os, signal, sys
    import psutil
    import whale_ray as whale
    from whale_ray.api.submission import submit
    from whale_ray.deployment.processes.process_fleet import ProcessFleet
    from whale_ray.operators.sinks import staging

    folder, owner, name, when, turn, count = sys.argv[1:]
    owner = {"fleet": ProcessFleet, "folder": staging.OutputFolder, "staging": staging}[owner]
    call, calls = getattr(owner, name), []

    def die():
        print(*(one.pid for one in psutil.Process().children(recursive=True)), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    def fatal(*arguments):
        calls.append(when)
        is_fatal = len(calls) == int(turn)
        if is_fatal and when == "before":
            die()
        result = call(*arguments)
        if is_fatal:
            die()
        return result

    setattr(owner, name, fatal)
    restarts = name == "respawn"

    class Passes(whale.Process):
        def open(self, context):
            if restarts and context.attempt == 0 and context.instance == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        def on_batch(self, batch, out):
            out.emit({"v": batch["v"].copy()})

    topology = whale.Topology("killed")
    rows = topology.source(
        whale.sources.iterable([{"v": v} for v in range(int(count))]), id="rows")
    for sink in ("first", "second"):
        rows.shuffle().process(Passes, id=f"to-{sink}", parallelism=2).sink(
            whale.sinks.parquet(f"{folder}/{sink}", overwrite=True), id=sink)
    submit(topology, on="processes", workers=2).wait(100)
"""


def write(folder: Path, count: int) -> None:
    topology = whale.Topology("written")
    rows = topology.source(whale.sources.iterable([{"v": v} for v in range(count)]), id="rows")
    for sink in SINKS:
        rows.sink(whale.sinks.parquet(folder / sink, overwrite=True), id=sink)
    whale.run(topology)


def values(path: Path) -> list[int]:
    return sorted(pq.read_table(path)["v"].to_pylist())


@pytest.mark.parametrize(
    ("owner", "name", "when", "turn", "new"),
    [
        pytest.param("staging", "_exchange", "before", 1, 0, marks=pytest.mark.long),
        ("staging", "_exchange", "after", 1, 1),
        pytest.param("folder", "publish", "after", 1, 1, marks=pytest.mark.long),
        pytest.param("staging", "_exchange", "after", 2, 2, marks=pytest.mark.long),
        pytest.param("fleet", "respawn", "before", 1, 0, marks=pytest.mark.long),
        pytest.param("fleet", "respawn", "after", 1, 0, marks=pytest.mark.long),
    ],
)
def test_outputs_are_complete_and_the_next_job_finds_nothing_else(
    owner: str, name: str, when: str, turn: int, new: int, tmp_path: Path, no_leaks: None
) -> None:
    folder = tmp_path / "results"
    write(folder, OLD)
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(DRIVER))
    moment = (owner, name, when, str(turn))
    killed = subprocess.run(
        [sys.executable, str(script), str(folder), *moment, str(NEW)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert killed.returncode == -9, killed.stderr
    pids = [int(pid) for pid in killed.stdout.split()]
    assert len(pids) >= 2
    assert psutil.wait_procs(living(pids), timeout=60)[1] == []
    found = [values(folder / sink) for sink in SINKS]
    assert sorted(map(len, found)) == [OLD] * (2 - new) + [NEW] * new
    assert all(one == list(range(len(one))) for one in found)
    write(folder, NEXT)
    assert [values(folder / sink) for sink in SINKS] == [list(range(NEXT))] * 2
    assert sorted(path.name for path in folder.iterdir()) == sorted(SINKS)


def living(pids: list[int]) -> list[psutil.Process]:
    found = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            found.append(psutil.Process(pid))
    return found
