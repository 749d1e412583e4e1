"""The runners that one pipeline test runs on: this process, processes, several hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

import whale_ray as whale
from whale_ray.api.job import Job
from whale_ray.api.submission import run, submit

Runner = Callable[..., Job]


def inline(topology: whale.Topology, settings: Mapping[str, object] | None = None) -> Job:
    return run(topology, settings=settings)


def processes(
    topology: whale.Topology, settings: Mapping[str, object] | None = None, workers: int = 3
) -> Job:
    return submit(topology, on="processes", workers=workers, settings=settings).wait(60)


def hosts(topology: whale.Topology, settings: Mapping[str, object] | None = None) -> Job:
    """Run on three logical hosts in a chain, so that one forwards what it receives."""
    several = {"runtime.hosts": 3, "runtime.route": "chain", **(settings or {})}
    return submit(topology, on="processes", workers=4, settings=several).wait(60)


@pytest.fixture(params=[inline, processes, hosts], ids=["inline", "processes", "hosts"])
def runner(request: pytest.FixtureRequest, no_leaks: None) -> Runner:
    return request.param


@pytest.fixture(params=[inline, processes], ids=["inline", "processes"])
def one_host(request: pytest.FixtureRequest, no_leaks: None) -> Runner:
    """For what several hosts cannot change, such as the text of an error."""
    return request.param
