"""A fork server that waits forks the workers of the next job, if that would start one like it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pytest

import whale_ray as whale
from tests.runs import has_ended
from tests.whale_ray.api.test_checkpoints import until
from whale_ray.api.submission import submit
from whale_ray.configs.errors import JobError, UsageError
from whale_ray.configs.settings import Settings
from whale_ray.deployment.processes import waiting_server
from whale_ray.deployment.processes.fork_server import ForkServer
from whale_ray.deployment.processes.waiting_server import early_fork_server

GRACE_MS = Settings().runtime.kill_grace_ms


class Parent(whale.Process):
    """Tells which process forked its worker."""

    def on_batch(self, batch: whale.Batch, out: Any) -> None:
        out.emit({"parent": [os.getppid()]})


def parents_of_workers() -> set[int]:
    """Run a job in two plain processes; return the ids of the processes that forked them."""
    topology = whale.Topology("parents")
    rows = topology.source(whale.sources.iterable([{"v": 1}]), id="rows")
    rows.broadcast().process(Parent, id="parent", parallelism=2).sink(
        whale.sinks.collect(), id="out"
    )
    table = submit(topology, on="processes", workers=2).wait(100).results("out").to_arrow()
    assert table.num_rows == 2
    return set(table["parent"].to_pylist())


def numbers(rows: npt.NDArray[np.int64], _: np.random.Generator) -> dict[str, Any]:
    return {"v": rows}


def fork_servers() -> list[psutil.Process]:
    """Return those started as for a user, and those that `tests.loaded_servers` has forked."""
    found = []
    for child in living_children(psutil.Process()):
        command = " ".join(child.cmdline())
        found += [child] if "fork_server" in command else []
        found += living_children(child) if "loaded_servers" in command else []
    return found


def only_fork_server() -> psutil.Process:
    """Return the one that starts; `tests.loaded_servers` forks it a moment after it is asked."""
    until(lambda: bool(fork_servers()), "no fork server has started")
    (one,) = fork_servers()
    return one


def living_children(process: psutil.Process) -> list[psutil.Process]:
    return [child for child in process.children() if not has_ended(child)]


@pytest.mark.long
def test_an_early_one_forks_every_job_of_its_block(
    monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    monkeypatch.setattr(waiting_server, "ForkServer", ForkServer)  # as for a user
    with early_fork_server(GRACE_MS):
        early = only_fork_server()
        assert parents_of_workers() == {early.pid}
        assert parents_of_workers() == {early.pid}
    assert not early.is_running()


def test_the_server_of_a_job_waits_for_the_next_also_if_the_job_failed(no_leaks: None) -> None:
    topology = whale.Topology("failing")
    rows = topology.source(whale.sources.iterable([{"v": 0}]), id="rows")
    rows.map(lambda row: {"v": 1 // row.v}).sink(whale.sinks.collect(), id="out")
    with pytest.raises(JobError, match="ZeroDivisionError"):
        submit(topology, on="processes", workers=2).wait(100)
    (first,) = fork_servers()
    assert parents_of_workers() == {first.pid}
    assert fork_servers() == [first]


def test_jobs_at_the_same_time_have_servers_of_their_own(no_leaks: None) -> None:
    topology = whale.Topology("long")
    rows = topology.source(whale.sources.poisson(100, numbers, limit=10**6), id="rows")
    rows.sink(whale.sinks.collect(), id="out")
    with early_fork_server(GRACE_MS):
        early = only_fork_server()
        running = submit(topology, on="processes", workers=2)
        try:
            until(lambda: bool(early.children()), "no worker of the first job starts")
            assert early.pid not in parents_of_workers()
        finally:
            running.stop(drain=False)
        assert len(fork_servers()) == 1, "only one waits"


@pytest.mark.parametrize("changed", ["environment", "folder"])
def test_a_server_with_another_environment_or_folder_is_replaced(
    changed: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_leaks: None
) -> None:
    (first,) = parents_of_workers()
    if changed == "environment":
        monkeypatch.setenv("WHALE_RAY_TEST_OF_SERVERS", "1")
    else:
        monkeypatch.chdir(tmp_path)
    (second,) = parents_of_workers()
    assert second != first
    assert [server.pid for server in fork_servers()] == [second], "the first has ended"


def test_a_folder_that_was_removed_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_leaks: None
) -> None:
    folder = tmp_path / "removed"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(UsageError, match="^the working directory was removed, and workers run"):
        parents_of_workers()


def test_without_a_job_it_ends_with_the_block(no_leaks: None) -> None:
    with early_fork_server(GRACE_MS):
        early = only_fork_server()
    assert not early.is_running()


def test_a_dead_one_is_replaced(no_leaks: None) -> None:
    with early_fork_server(GRACE_MS):
        early = only_fork_server()
        early.kill()
        early.wait()
        (parent,) = parents_of_workers()
        assert parent != early.pid


def test_a_job_with_another_grace_starts_its_own(no_leaks: None) -> None:
    with early_fork_server(GRACE_MS + 1):
        early = only_fork_server()
        assert early.pid not in parents_of_workers()
    assert not early.is_running()
