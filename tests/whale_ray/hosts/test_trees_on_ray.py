"""Trees of a job on Ray: relays and the controller killed while rows flow; every row once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import whale_ray as whale
from tests.runs import living

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.usefixtures("no_leaks")]

HOSTS, ROWS, RATE_PER_S = 3, 400_000, 20_000.0
PATIENCE_S = 120


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray

    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield ray
    ray.shutdown()


class Check(whale.Process):
    """Counts the rows that come in their turn, and those that do not."""

    def open(self, context: Any) -> None:
        self.seen = self.wrong = 0

    def on_batch(self, batch: Any, out: Any) -> None:
        numbers = batch["n"]
        self.wrong += int((numbers != np.arange(self.seen, self.seen + len(numbers))).sum())
        self.seen += len(numbers)

    def close(self, out: Any) -> None:
        out.emit_rows([{"seen": self.seen, "wrong": self.wrong}])


def wait_for(job: Any, what: Any) -> None:
    """Let the job run until something is so; raises what it fails with."""
    until_s = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < until_s
        with contextlib.suppress(TimeoutError):
            job.wait(0.1)


def pids(name: str, known: frozenset[int] | set[int] = frozenset()) -> set[int]:
    """Return the living processes of this run whose name begins so, but for `known` ones."""
    return {process.pid for process in living(name)} - known


@pytest.mark.parametrize("victims", [("whale relay 1",), ("whale relay 0", "ray::Controller")])
def test_relays_and_the_controller_are_killed(cluster: Any, victims: tuple[str, ...]) -> None:
    topology = whale.Topology("trees-on-ray")
    source = whale.sources.poisson(RATE_PER_S, lambda n, _: {"n": n}, limit=ROWS)
    every = topology.source(source, id="rows").broadcast()
    every.process(Check, id="every", parallelism=HOSTS).sink(whale.sinks.collect(), id="out")
    before = {name: pids(name) for name in victims}
    settings = {"runtime.hosts": HOSTS, "runtime.workers": HOSTS}
    job = whale.submit(topology, workers=HOSTS, settings=settings)
    wait_for(job, lambda: any(one.rows_in for one in job.metrics().operators))
    for name in victims:
        (victim,) = pids(name, before[name])
        job.set_route("chain")
        os.kill(victim, signal.SIGKILL)
        wait_for(job, partial(pids, name, before[name] | {victim}))
    job.set_route("star")
    table = job.results("out").to_arrow()
    assert table["seen"].to_pylist() == [ROWS] * HOSTS
    assert table["wrong"].to_pylist() == [0] * HOSTS
    outcome = job.outcome()
    assert (outcome.restarts, outcome.metrics.lost) == (0, "")
