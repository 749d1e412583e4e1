"""A second process compiles a part of what a first job calls, if nothing of it is compiled yet."""

from __future__ import annotations

import atexit
import errno
import gc
import importlib
import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from numba.core import config
from numba.core.dispatcher import Dispatcher

import whale_ray as whale
from whale_ray.deployment import compiling_beside
from whale_ray.deployment.compiling_beside import compile_beside, compile_part
from whale_ray.deployment.processes import fork_server

KERNEL = """
from whale_ray.transport.compiling import njit

@njit(cache=True)
def doubled(number):
    return 2 * number

@njit("int64(int64)", cache=True)
def tripled(number):
    return 3 * number
"""

_numbers = itertools.count()


class Process:
    """Stands for the process that is started; it notes how it ends."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.ended: list[str] = []

    def launch(self, command: list[str], **_options: Any) -> Any:
        self.commands.append(command)
        return self

    def poll(self) -> None:
        """Return that it has not ended."""

    def kill(self) -> None:
        self.ended.append("kill")

    def wait(self) -> None:
        self.ended.append("wait")


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    """Return what is started, on two processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    monkeypatch.setattr(compiling_beside, "_CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(compiling_beside, "_started", [])
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    return Process()


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Return what imports the kernels as a new process does; a worker calls `doubled` first."""
    monkeypatch.setattr(config, "CACHE_DIR", "")  # kept beside them, wherever others are
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"compiled_beside_{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text(KERNEL)

    def load() -> Any:
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        module = importlib.import_module(name)
        monkeypatch.setattr(compiling_beside.payload, "read_body", module.doubled)
        return module

    return load


def test_it_starts_where_nothing_is_compiled(kernels: Callable[[], Any], process: Process) -> None:
    kernels()
    compile_beside(process.launch)
    module = "whale_ray.deployment.compiling_beside"
    command = [sys.executable, "-P", "-m", module, str(os.getpid())]
    assert process.commands == [command]
    compile_beside(process.launch)  # a second job, while nothing is kept yet
    assert process.commands == [command]


def test_it_does_not_start_where_that_is_kept(
    kernels: Callable[[], Any], process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert kernels().doubled(4) == 8
    kernels()
    compile_beside(process.launch)
    assert not process.commands

    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "empty"))
    kernels()
    compile_beside(process.launch)  # it is kept beside the source
    assert not process.commands

    monkeypatch.setattr(config, "CPU_NAME", "another")
    compile_beside(process.launch)  # but for another processor
    assert len(process.commands) == 1


def test_it_does_not_start_where_it_is_of_no_use(
    kernels: Callable[[], Any], process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing_kept = kernels()
    with monkeypatch.context() as patched:
        patched.setattr(os, "sched_getaffinity", lambda _pid: {1})
        compile_beside(process.launch)
    compiling_beside._CPU_QUOTA.write_text("150000 100000\n")  # a container's
    compile_beside(process.launch)
    compiling_beside._CPU_QUOTA.write_text("max 100000\n")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "")  # Python is part of another program
        compile_beside(process.launch)
    monkeypatch.setattr(nothing_kept.doubled, "_cache", object())  # there is no place
    compile_beside(process.launch)
    assert not process.commands


def test_a_job_runs_where_it_cannot_start(kernels: Callable[[], Any], process: Process) -> None:
    def launch(*_: Any, **_options: Any) -> Any:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    kernels()
    compile_beside(launch)
    assert not compiling_beside._started


def test_the_program_starts_and_ends_without_its_parent() -> None:
    module = "whale_ray.deployment.compiling_beside"
    command = [sys.executable, "-P", "-m", module, str(os.getppid())]  # not the one that starts it
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_it_ends_with_the_process_that_started_it(process: Process) -> None:
    compiling_beside._end(process, os.getpid() + 1)  # as in what was forked
    assert process.ended == []
    compiling_beside._end(process, os.getpid())
    assert process.ended == ["kill", "wait"]


def test_it_compiles_as_long_as_it_is_wanted(
    kernels: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = kernels()
    functions = ((module.__name__, "tripled"),)
    monkeypatch.setattr(compiling_beside, "_FUNCTIONS", functions)
    compile_part(lambda: False)
    assert not module.tripled.overloads
    compile_part(lambda: True)
    assert module.tripled.overloads


def test_what_it_compiles_is_there() -> None:
    for module, name in compiling_beside._FUNCTIONS:
        found = getattr(importlib.import_module(module, compiling_beside.__package__), name)
        assert isinstance(found, Dispatcher)
        assert callable(found.compile_now), "it needs declared types"


@pytest.mark.parametrize("is_local", [True, False])
def test_every_first_job_starts_it(monkeypatch: pytest.MonkeyPatch, is_local: bool) -> None:
    begun: list[str] = []
    if is_local:
        module = importlib.import_module("whale_ray.deployment.local_fleet")
        monkeypatch.setattr(module, "compile_beside", lambda: begun.append("local"))
        topology = whale.Topology("one")
        rows = topology.source(whale.sources.iterable([{"n": 1}]), id="rows")
        rows.sink(whale.sinks.collect(), id="out")
        whale.run(topology)
    else:
        monkeypatch.setattr(compiling_beside, "compile_beside", lambda: begun.append("server"))
        fork_server.load()
    assert len(begun) == 1


def test_the_process_compiles_as_long_as_its_parent_lives(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted: list[bool] = []
    monkeypatch.setattr(gc, "disable", lambda: None)
    monkeypatch.setattr(compiling_beside, "_OOM_SCORE", tmp_path / "oom_score_adj")
    monkeypatch.setattr(
        compiling_beside, "compile_part", lambda is_wanted: wanted.append(is_wanted())
    )
    for parent in (os.getppid(), os.getpid()):
        monkeypatch.setattr(sys, "argv", ["", str(parent)])
        compiling_beside.main()
    assert wanted == [True, False]
    assert (tmp_path / "oom_score_adj").read_text() == "1000"
