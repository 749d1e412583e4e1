"""The runners that one pipeline test runs on: in this process, and in plain processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

import whale_ray as whale
from whale_ray.runtime.api import run, submit
from whale_ray.runtime.job import Job

Runner = Callable[..., Job]


def inline(topology: whale.Topology, settings: Mapping[str, object] | None = None) -> Job:
    return run(topology, settings=settings)


def processes(
    topology: whale.Topology, settings: Mapping[str, object] | None = None, workers: int = 3
) -> Job:
    return submit(topology, on="processes", workers=workers, settings=settings).wait(60)


@pytest.fixture(params=[inline, processes], ids=["inline", "processes"])
def runner(request: pytest.FixtureRequest, no_leaks: None) -> Runner:
    return request.param
