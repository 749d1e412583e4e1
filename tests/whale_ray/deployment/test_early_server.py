"""A fork server that was started before its job forks the job's workers, or ends."""

from __future__ import annotations

import os
from typing import Any

import psutil

import whale_ray as whale
from tests.runs import has_ended
from whale_ray.api.submission import submit
from whale_ray.configs.settings import Settings
from whale_ray.deployment.processes.early_server import early_fork_server

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


def fork_servers() -> list[psutil.Process]:
    children = [child for child in psutil.Process().children() if not has_ended(child)]
    return [child for child in children if any("fork_server" in word for word in child.cmdline())]


def test_the_first_job_is_forked_from_it_and_the_next_from_its_own(no_leaks: None) -> None:
    with early_fork_server(GRACE_MS):
        (early,) = fork_servers()
        assert parents_of_workers() == {early.pid}
        assert fork_servers() == [], "the job has ended it"
        assert parents_of_workers() != {early.pid}


def test_without_a_job_it_ends_with_the_block(no_leaks: None) -> None:
    with early_fork_server(GRACE_MS):
        (early,) = fork_servers()
    assert not early.is_running()


def test_a_dead_one_is_replaced(no_leaks: None) -> None:
    with early_fork_server(GRACE_MS):
        (early,) = fork_servers()
        early.kill()
        early.wait()
        (parent,) = parents_of_workers()
        assert parent != early.pid


def test_a_job_with_another_grace_starts_its_own(no_leaks: None) -> None:
    with early_fork_server(GRACE_MS + 1):
        (early,) = fork_servers()
        assert early.pid not in parents_of_workers()
        assert fork_servers() == [early], "it still waits"
    assert not early.is_running()
