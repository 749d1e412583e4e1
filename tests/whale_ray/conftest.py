"""Jobs on processes start quickly; the runners that one pipeline test runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial

import pytest

import whale_ray as whale
from tests.loaded_servers import LoadedServers
from whale_ray.api.job import Job
from whale_ray.api.submission import run, submit
from whale_ray.deployment.processes import process_fleet, waiting_server
from whale_ray.deployment.processes.fork_server import ForkServer

Runner = Callable[..., Job]


@pytest.fixture(scope="session")
def loaded_servers(_no_leaks_of_the_run: None) -> Iterator[LoadedServers]:
    """Return what launches fork servers that need not load anything."""
    with closing(LoadedServers()) as servers:
        yield servers


@pytest.fixture(scope="module", autouse=True)
def quick_processes(loaded_servers: LoadedServers) -> Iterator[None]:
    """Let the jobs of a module that run on processes start them quickly."""
    with pytest.MonkeyPatch.context() as patch:
        here = process_fleet.HostPlace(launch=loaded_servers)
        patch.setattr(process_fleet, "HERE", here)
        patch.setattr(waiting_server, "ForkServer", partial(ForkServer, loaded_servers))
        waiting_server.end_waiting_server()
        yield
        waiting_server.end_waiting_server()


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
