"""One process compiles a function; others that come meanwhile wait, and load what it has kept."""

from __future__ import annotations

import errno
import fcntl
import importlib
import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from numba.core import config
from numba.core.compiler_lock import global_compiler_lock

from whale_ray.testing import VirtualClock
from whale_ray.transport import compiling_in_turn
from whale_ray.transport.compiling_in_turn import WAIT_MAX_NS

KERNEL = """
from whale_ray.transport.compiling import njit

@njit("int64(int64)", cache=True)
def doubled(number):
    total = 0
    for _ in range(2):
        total += number
    return total
"""
FORK = multiprocessing.get_context("fork")

_numbers = itertools.count()


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Return what imports a function of which nothing is kept."""
    monkeypatch.setattr(config, "CACHE_DIR", "")  # kept beside it, wherever others are
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"compiled_in_turn_{next(_numbers)}"
    (tmp_path / f"{name}.py").write_text(KERNEL)

    def load() -> Any:
        importlib.invalidate_caches()
        return importlib.import_module(name).doubled

    return load


@contextmanager
def elsewhere(do: Callable[[Any], None]) -> Iterator[Any]:
    """Let a process do something with one end of a pipe; yield the other end, then kill it."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=do, args=(theirs,))
    process.start()
    theirs.close()
    try:
        yield ours
    finally:
        process.kill()
        process.join()
        ours.close()


def test_of_processes_that_begin_at_once_one_compiles(load: Callable[[], Any]) -> None:
    def call(pipe: Any) -> None:
        doubled = load()
        pipe.send("ready")
        pipe.recv()
        pipe.send((doubled(4), doubled.stats.cache_misses.total()))

    with elsewhere(call) as one, elsewhere(call) as other, elsewhere(call) as third:
        pipes = (one, other, third)
        assert [pipe.recv() for pipe in pipes] == ["ready"] * 3
        for pipe in pipes:
            pipe.send("go")
        told = [pipe.recv() for pipe in pipes]
    assert sorted(told) == [(8, 0), (8, 0), (8, 1)]


def test_a_process_that_does_not_end_is_waited_for_until_a_limit(
    load: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped while it compiles, as in a debugger."""
    clock = VirtualClock()
    monkeypatch.setattr(compiling_in_turn, "SystemClock", lambda: clock)
    doubled = load()

    def lock(pipe: Any) -> None:
        place = doubled.stats.cache_path
        os.makedirs(place, exist_ok=True)
        with open(os.path.join(place, compiling_in_turn._FILE), "w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)  # all its bytes
            pipe.send("locked")
            pipe.recv()

    with elsewhere(lock) as pipe:
        assert pipe.recv() == "locked"
        assert doubled(4) == 8
    assert clock.monotonic_ns() >= WAIT_MAX_NS
    assert doubled.stats.cache_misses.total() == 1


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_is_no_error(
    load: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    assert load()(4) == 8


def test_nothing_stays_open(load: Callable[[], Any]) -> None:
    before = set(os.listdir("/proc/self/fd"))
    assert load()(4) == 8
    assert set(os.listdir("/proc/self/fd")) <= before


def test_no_other_thread_locks_a_function_before_this_one_is_unlocked(
    load: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To close the file would end the lock of the other one, too."""
    doubled, close = load(), os.close
    compiles: list[bool] = []

    def note(file: int) -> None:
        compiles.append(global_compiler_lock.is_locked())
        close(file)

    monkeypatch.setattr(os, "close", note)
    doubled.compile("int64(int64)")
    assert compiles and all(compiles)
