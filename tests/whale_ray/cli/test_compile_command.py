"""`whale-ray compile`: after it, ordinary jobs compile nothing."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import whale_ray as whale
from whale_ray import machine
from whale_ray.cli import compiling as cli
from whale_ray.cli.main import main
from whale_ray.configs.errors import EXIT_FAILURE
from whale_ray.transport import compiled_folder, compiling, kept_functions

JOB = """
import whale_ray as whale
from numba.core import event
from whale_ray import functions as F

compiled = []

class Listener(event.Listener):
    def on_start(self, event):
        compiled.append(event.data["dispatcher"].py_func.__qualname__)

    def on_end(self, event):
        pass

event.register("numba:compile", Listener())

class Same(whale.Process):
    def on_row(self, row, out):
        out.emit_rows([{"s": row.s}])

class Total(whale.KeyedProcess):
    km = whale.state.sum("double")

    def on_row(self, row, out):
        self.km.add(row.km)
        out.emit_row(total=self.km.get())

topology = whale.Topology("mileage")
rows = [{"s": n, "cab": "ab"[n % 2], "km": n / 2} for n in range(9)]
source = whale.sources.iterable(rows)
trips = topology.source(source, event_time="s", event_time_unit="s").filter(whale.col("km") > 1)
totals = trips.group_by(whale.window("s", "10 seconds"), "cab").agg(F.sum("km").alias("km"))
totals.sink(whale.sinks.collect(), id="totals")
trips.key_by("cab").process(Total, parallelism=2).sink(whale.sinks.collect(), id="running")
trips.broadcast().process(Same, parallelism=2).sink(whale.sinks.collect(), id="sent")
job = whale.run(topology)
print([len(job.results(name).to_arrow()) for name in ("totals", "running", "sent")], compiled)
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_after_it_ordinary_jobs_compile_nothing(tmp_path: Path) -> None:
    def python(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    said = python("-m", "whale_ray.cli.main", "compile")
    assert said.startswith("what most jobs use is compiled, and kept in folders such as /")
    assert python("-c", JOB) == "[2, 6, 12] []\n"
    assert not list(tmp_path.iterdir())


def test_ctrl_c_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first job is drained, and the one beside it stopped: they have not compiled all."""
    presses = iter([signal.SIGINT])

    def press(_row: object) -> None:
        for number in presses:
            signal.raise_signal(number)

    def numbered() -> Iterator[dict[str, int]]:
        return ({"number": number} for number in itertools.count())

    def endless(folder: Path, each: Callable[[object], None]) -> whale.Topology:
        assert folder.parent.name == "0", "more jobs run"
        topology = whale.Topology("endless")
        rows = whale.sources.iterable(numbered, bounded=True)
        numbers = topology.source(rows, id="numbers")
        numbers.sink(whale.sinks.each(each), id="each")
        return topology

    monkeypatch.setattr(cli, "_windows", partial(endless, each=press))
    monkeypatch.setattr(cli, "_others", partial(endless, each=cli._ignore))
    assert main(["compile"]) == 128 + signal.SIGINT
    assert capsys.readouterr().out == ""


def test_without_a_place_to_keep_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiling, "kept_in", lambda: None)
    assert main(["compile"]) == EXIT_FAILURE
    assert "NUMBA_CACHE_DIR" in capsys.readouterr().err


def test_a_full_folder_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(compiling, "kept_in", lambda: str(tmp_path))
    monkeypatch.setattr(machine, "kept_in", lambda: str(tmp_path))
    full = partial(open, "/dev/full", "wb")
    with monkeypatch.context() as patch:
        patch.setattr(compiled_folder.tempfile, "TemporaryFile", lambda dir: full())
        assert main(["compile"]) == EXIT_FAILURE
        assert machine.gather().kernel_cache_full == "No space left on device"
    told = f"cannot be kept in {tmp_path}: No space left on device; make room there"
    assert told in capsys.readouterr().err
    monkeypatch.setattr(cli, "run_ordinary_jobs", lambda: None)
    monkeypatch.setattr(kept_functions, "versions_are_kept", lambda _function: False)
    assert main(["compile"]) == EXIT_FAILURE
    assert f"nothing was kept in {tmp_path}: make room there" in capsys.readouterr().err
    (tmp_path / "one.nbc").touch()
    assert main(["compile"]) == 0
    assert str(tmp_path) in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.timeout(600)
def test_what_was_compiled_beside_the_sources_need_not_be_kept_once_more(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    said = []
    for chosen in ({}, {"NUMBA_CACHE_DIR": str(tmp_path)}):
        done = subprocess.run(
            [sys.executable, "-m", "whale_ray.cli.main", "compile"],
            env={**os.environ, **chosen},
            capture_output=True,
            text=True,
            check=True,
        )
        said.append(done.stdout)
    assert said[1] == "what most jobs use was compiled before, beside whale-ray's sources\n"
    assert not list(tmp_path.rglob("*.nbc"))
