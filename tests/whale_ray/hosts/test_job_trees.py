"""Trees of a running job: switched, and repaired around relays that are killed; every row once.

Each instance checks that it sees every row, once and in order, whatever happens meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import whale_ray as whale
from whale_ray.api.job import Job
from whale_ray.api.submission import submit
from whale_ray.multicast.trees import (
    Route,
)

pytestmark = pytest.mark.usefixtures("no_leaks")

HOSTS = 8
PATIENCE_S = 120
RATE_PER_S, ROWS = 100_000.0, 100_000_000
"""Far more rows than come before a test stops its job."""


class Check(whale.Process):
    """Counts the rows that come in their turn, and those that do not."""

    def open(self, context: Any) -> None:
        self.instance, self.seen, self.wrong = context.instance, 0, 0

    def on_batch(self, batch: Any, out: Any) -> None:
        numbers = batch["n"]
        due = np.arange(self.seen, self.seen + len(numbers))
        self.wrong += int((numbers != due).sum())
        self.seen += len(numbers)

    def close(self, out: Any) -> None:
        out.emit_rows([{"instance": self.instance, "seen": self.seen, "wrong": self.wrong}])


def begin(**settings: object) -> Job:
    """Start a stream of rows to an instance on each host, and wait until it flows."""
    topology = whale.Topology("trees")
    source = whale.sources.poisson(RATE_PER_S, lambda n, _: {"n": n, "pad": n * 3}, limit=ROWS)
    every = topology.source(source, id="rows").broadcast()
    checked = every.process(Check, id="every", parallelism=HOSTS)
    checked.sink(whale.sinks.collect(), id="out")
    job = submit(
        topology, on="processes", workers=HOSTS, settings={"runtime.hosts": HOSTS, **settings}
    )
    wait_for(job, lambda: rows_in(job, "every") > 0)
    return job


def go_on(job: Job) -> None:
    """Wait until every instance has more rows than the source had sent."""
    sent = rows_sent(job)
    wait_for(job, lambda: min(rows_of_each(job)) > sent)


def rows_in(job: Job, operator: str) -> int:
    return sum(one.rows_in for one in job.metrics().operators if one.operator_id == operator)


def rows_sent(job: Job) -> int:
    return sum(one.rows_out for one in job.metrics().operators if one.operator_id == "rows")


def rows_of_each(job: Job) -> list[int]:
    """Return how many rows each instance has seen, 0 of one that has not told of any."""
    instances = [one for member in job.metrics().members for one in member.instances]
    seen = [one.rows_in for one in instances if one.operator_id == "every"]
    return seen + [0] * (HOSTS - len(seen))


def wait_for(
    job: Job, what: Callable[[], bool], patience_s: float = PATIENCE_S, every_s: float = 0.1
) -> None:
    """Let the job run until something is so, and look every so often; raises what it fails with."""
    until_s = time.monotonic() + patience_s
    while not what():
        assert time.monotonic() < until_s
        with contextlib.suppress(TimeoutError):
            job.wait(every_s)


def has_switched(job: Job, times: int) -> bool:
    return len(job.metrics().switches) >= times


def has_made(job: Job, why: str, times: int) -> bool:
    """Return whether so many switches were made for a reason, and not aborted."""
    made = [switch for switch in job.metrics().switches if switch.why == why and not switch.aborted]
    return len(made) >= times


def have_returned(job: Job, hosts: int) -> bool:
    """Return whether so many hosts have come back into the tree."""
    made = [switch for switch in job.metrics().switches if not switch.aborted]
    back = [set(switch.after.vertices) - set(switch.before.vertices) for switch in made]
    return sum(map(len, back)) >= hosts


def processes(name: str) -> list[psutil.Process]:
    """Return the job's living processes of a name, such as "whale relay 3"."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.name() == name and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            pass
    return found


def kill(job: Job, name: str, patience_s: float = PATIENCE_S, every_s: float = 0.1) -> None:
    """Kill a process, and wait until another has taken its place."""
    (victim,) = processes(name)
    os.kill(victim.pid, signal.SIGKILL)
    wait_for(
        job,
        lambda: any(process.pid != victim.pid for process in processes(name)),
        patience_s,
        every_s,
    )


def assert_all_see_every_row_once(job: Job) -> None:
    """Let more rows come, then stop the job, which must still run."""
    go_on(job)
    assert job.state == "running"
    job.stop(drain=True, timeout_s=PATIENCE_S)
    table = job.results("out").to_arrow()
    sent = rows_sent(job)
    assert sorted(table["instance"].to_pylist()) == list(range(HOSTS))
    assert table["seen"].to_pylist() == [sent] * HOSTS
    assert table["wrong"].to_pylist() == [0] * HOSTS


@pytest.mark.long
@pytest.mark.parametrize("route", ["non-blocking", pytest.param("chain", marks=pytest.mark.long)])
def test_relays_that_are_killed_are_replaced_without_a_restart(route: str) -> None:
    """In the middle of the tree, at a leaf, and at the source's own host."""
    job = begin(**{"runtime.route": route})
    for host, returns in ((1, 1), (HOSTS - 1, 2), (0, 2), (3, 3)):
        kill(job, f"whale relay {host}")
        wait_for(job, partial(has_made, job, "return", returns))  # host 0 stays in its trees
        go_on(job)
    assert_all_see_every_row_once(job)
    assert job.outcome().restarts == 0
    assert has_made(job, "repair", 3)


def test_a_worker_that_is_killed_restarts_the_job() -> None:
    job = begin()
    kill(job, "whale worker 5")
    wait_for(job, lambda: job.state == "running")
    assert_all_see_every_row_once(job)
    assert job.outcome().restarts == 1


def test_trees_are_switched_while_rows_flow() -> None:
    job = begin()
    goals: list[tuple[Route, int]] = [
        ("star", 0),
        ("chain", 0),
        ("non-blocking", 2),
        ("binomial", 0),
        ("non-blocking", 1),
    ]
    for number, (route, degree) in enumerate(goals, 1):
        job.set_route(route, degree)
        wait_for(job, partial(has_switched, job, number))
    assert_all_see_every_row_once(job)
    assert job.outcome().restarts == 0
    switches = job.metrics().switches
    assert [switch.degree_after for switch in switches if not switch.aborted] == [7, 1, 2, 3, 1]


def test_trees_switch_and_relays_die_amid_epochs(tmp_path: Path) -> None:
    """A marker comes once to each host, whatever the way that it takes; a restart goes on there."""
    settings = {"checkpoints.url": str(tmp_path), "checkpoints.interval_ms": 20}
    job = begin(**settings)

    def counted() -> int:
        return job.metrics().checkpoints.count

    for number, route in enumerate((("star", 0), ("chain", 0), ("non-blocking", 2)), 1):
        before = counted()
        job.set_route(*route)
        wait_for(job, partial(has_switched, job, number))
        wait_for(job, lambda before=before: counted() > before + 1)
    for host in (1, 0):
        before = counted()
        kill(job, f"whale relay {host}")
        wait_for(job, lambda before=before: counted() > before + 1)
    kill(job, "whale worker 5")
    wait_for(job, lambda: job.state == "running" and job.metrics().checkpoints.restored > 0)
    assert_all_see_every_row_once(job)
    assert job.outcome().restarts == 1
    assert job.metrics().checkpoints.failures == 0


@pytest.mark.long
def test_relays_are_killed_while_trees_are_switched() -> None:
    """Several hosts may be away at once, but none when the relay of the source's own is killed.

    With it goes what it keeps for them beyond its ring, and then the job restarts.
    """
    job = begin()
    goals: list[tuple[Route, int]] = [("star", 0), ("chain", 0), ("non-blocking", 2)]
    others = 0
    for number in range(10):
        host = (number * 5) % HOSTS
        if host == 0:
            wait_for(job, partial(have_returned, job, others))
            go_on(job)
        job.set_route(*goals[number % len(goals)])
        kill(job, f"whale relay {host}")
        if host == 0:
            go_on(job)
        others += host != 0
    assert_all_see_every_row_once(job)
    assert job.outcome().restarts == 0
