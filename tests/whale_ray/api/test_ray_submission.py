"""How a job is spread over the nodes of a Ray cluster; no Ray runs here."""

from __future__ import annotations

from itertools import groupby
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import whale_ray as whale
from whale_ray.api import ray_submission
from whale_ray.api import submission as api
from whale_ray.api.job import Job
from whale_ray.api.ray_submission import RayRunner, _ControllerRunner, await_claimable
from whale_ray.configs.errors import FolderInUseError
from whale_ray.configs.settings import Settings
from whale_ray.deployment.on_ray import ray_nodes
from whale_ray.deployment.on_ray.ray_nodes import cluster_nodes, places_of_hosts, spread_over
from whale_ray.plan.requests import ClusterNode
from whale_ray.transport.clock import VirtualClock

SMALL, LARGE = ClusterNode("small", 2), ClusterNode("large", 14)


def spread(nodes: list[ClusterNode], workers: int | None = None, **runtime: int) -> tuple[int, int]:
    """Return how many hosts and workers the settings say."""
    settings = Settings().with_overrides({f"runtime.{name}": n for name, n in runtime.items()})
    found = spread_over(nodes, settings, workers).runtime
    return found.hosts, found.workers


def test_a_job_has_a_host_on_each_node_and_a_worker_for_each_processor() -> None:
    assert spread([SMALL, LARGE]) == (2, 16)
    assert spread([SMALL, LARGE], 6) == (2, 0)
    assert spread([SMALL, LARGE], workers=1) == (1, 0)
    assert spread([SMALL, LARGE], hosts=5) == (5, 0)
    assert spread([SMALL]) == (1, 0)
    assert spread([SMALL], 8) == (1, 0)


def test_hosts_get_nodes_and_their_processors() -> None:
    assert places_of_hosts([SMALL, LARGE], 1) == [SMALL]
    assert places_of_hosts([SMALL, LARGE], 2) == [SMALL, LARGE]
    assert places_of_hosts([SMALL, LARGE], 5) == [
        ClusterNode("small", 0),
        ClusterNode("small", 1),
        ClusterNode("small", 1),
        ClusterNode("large", 7),
        ClusterNode("large", 7),
    ]


@given(st.lists(st.integers(1, 64), min_size=1, max_size=6), st.integers(1, 20))
def test_the_hosts_of_a_node_share_its_processors(cpus: list[int], hosts: int) -> None:
    nodes = [ClusterNode(str(number), n) for number, n in enumerate(cpus)]
    places = places_of_hosts(nodes, hosts)
    assert len(places) == hosts
    blocks = [(name, list(block)) for name, block in groupby(places, lambda place: place.id)]
    assert [name for name, _ in blocks] == [node.id for node in nodes[:hosts]]
    for (_, block), node in zip(blocks, nodes, strict=False):
        assert sum(place.cpus for place in block) == node.cpus


def node(name: str, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "Resources": resources}


def test_nodes_that_can_run_workers_this_one_first(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [
        node("b", CPU=4.0, memory=1.0),
        node("here", CPU=2.0),
        node("a", CPU=8.0),
        node("gone", alive=False, CPU=64.0),
        node("head", memory=1.0),
    ]

    def found(here: str) -> list[ClusterNode]:
        context = SimpleNamespace(get_node_id=lambda: here)
        stand_in = SimpleNamespace(nodes=lambda: nodes, get_runtime_context=lambda: context)
        monkeypatch.setattr(ray_nodes, "ray", stand_in)
        return [ClusterNode(one.id, one.cpus) for one in cluster_nodes()]

    others = [ClusterNode("a", 8), ClusterNode("b", 4)]
    assert found("here") == [ClusterNode("here", 2), *others]
    assert found("head") == [*others, ClusterNode("here", 2)]
    nodes[:] = [node("head")]
    assert found("head") == [ClusterNode("head", 0)]


class Controller:
    """A controller of a Ray that is gone: nobody may ask it."""

    def __getattr__(self, name: str) -> Any:
        msg = f"Failed to submit task {name}"
        raise RuntimeError(msg)


@pytest.mark.parametrize("is_connected", [False, True])
def test_a_job_whose_ray_is_gone_is_quiet_at_the_drivers_end(
    is_connected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gone, or another one since: what leads the job is not asked, or does not answer."""
    monkeypatch.setattr(ray_submission.ray, "is_initialized", lambda: is_connected)
    runner = RayRunner.__new__(RayRunner)
    runner._outcome, runner._controller = None, Controller()
    runner._thread = SimpleNamespace(join=lambda _timeout_s: None)
    job = Job("job-1", "job", runner)
    monkeypatch.setattr(api, "_active", {job.id: job})
    api._cancel_jobs_at_exit()
    if is_connected:
        with pytest.raises(RuntimeError, match="Failed to submit task state"):
            assert job.state
    else:
        assert job.state == "finishing"
        assert job.metrics().operators == ()


def test_a_detached_job_is_refused_before_a_ray_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_options: Any) -> None:
        raise AssertionError("Ray is started")

    monkeypatch.setattr(ray_submission.ray, "init", init)
    topology = whale.Topology("lasting")
    rows = topology.source(whale.sources.iterable([{"x": 1}]), id="rows")
    rows.sink(whale.sinks.collect(), id="out")
    with pytest.raises(whale.errors.UsageError) as refused:
        whale.submit(topology, detach=True, address="local")
    assert str(refused.value) == (
        "a detached job needs a Ray that outlives this process; start one with `ray start --head`"
    )


def test_a_savepoint_is_waited_for_while_the_controller_is_being_created(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    waits = [[], [], ["call 1"], [], ["call 2"]]  # what Ray has an answer to

    def ask(*_: Any) -> str:
        asked.append(f"call {len(asked) + 1}")
        return asked[-1]

    method = SimpleNamespace(remote=ask)
    controller: Any = SimpleNamespace(request_savepoint=method, stop_with_savepoint=method)
    monkeypatch.setattr(ray_submission.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray_submission.ray, "wait", lambda calls, timeout: (waits.pop(0), calls))
    monkeypatch.setattr(ray_submission.ray, "get", lambda call, timeout: 4)
    monkeypatch.setattr(_ControllerRunner, "savepoint_of", lambda self, number: f"of {number}")
    monkeypatch.setattr(_ControllerRunner, "__abstractmethods__", frozenset())
    runner: Any = _ControllerRunner("job", controller)
    runner.state = lambda: "starting"
    assert Job("job", "job", runner).savepoint() == "of 4"
    assert asked == ["call 1"], "each further one would be another savepoint"
    job = Job("job", "job", runner)
    with pytest.raises(TimeoutError, match="still starting after 0 s; it stops, with a savepoint"):
        job.stop(timeout_s=0, savepoint=True)
    assert runner.stop_with_savepoint()
    assert (waits, asked) == ([], ["call 1", "call 2"])


@pytest.mark.parametrize(
    ("is_alive", "is_locked"),
    [(True, True), (False, True), (False, False)],
    ids=["alive", "killed", "killed, by its heartbeat"],
)
@pytest.mark.parametrize("refusals", [3, 1_000])
def test_the_process_of_a_killed_controller_is_waited_for_until_it_leaves_the_folder(
    is_alive: bool, is_locked: bool, refusals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    clock = VirtualClock()

    def look(_: object) -> None:
        looks.append(clock.monotonic_ns())
        if len(looks) <= refusals:
            raise FolderInUseError("'/data' is in use", "job-1", is_locked=is_locked)

    monkeypatch.setattr(ray_submission, "check_claimable", look)
    monkeypatch.setattr(
        ray_submission, "controller_of", {"job-1": object()}.get if is_alive else {}.get
    )
    assignment: Any = object()
    is_waited_for = is_locked and not is_alive
    if not is_waited_for or refusals > 3:
        with pytest.raises(FolderInUseError, match="'/data' is in use") as refused:
            await_claimable(assignment, clock)
        assert refused.value.job == "job-1"
    else:
        await_claimable(assignment, clock)
    if not is_waited_for:
        assert looks == [0]
    elif refusals > 3:
        assert looks[-1] == 10_000_000_000
    else:
        assert len(looks) == refusals + 1


def test_a_job_whose_process_leaves_ray_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(call: object) -> bytes:
        raise SystemExit(0)

    monkeypatch.setattr(ray_submission.ray, "get", leave)
    monkeypatch.setattr(ray_submission.ray, "is_initialized", lambda: False)
    runner = ray_submission.RayRunner.__new__(ray_submission.RayRunner)
    values = {"_run": None, "_workers": 1, "_logs_place": "", "_outcome": None}
    vars(runner).update(values, _output=SimpleNamespace(finish=lambda: None))
    runner._await_end()
    assert runner._outcome is not None
    assert "left Ray" in str(runner._outcome.error)
