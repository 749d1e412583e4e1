"""Devices for tests: fake ones in every run, and soft-RoCE devices where there are any.

There are two kinds of fake ones. `make test` runs everything with those that carry out a request at
once, and `SMOKE` with slow ones; `make test-long` runs the rest with slow ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.transport.links import Hosts, Source, Target
from tests.transport.verbs.fabric import Fabric, two_hosts
from whale_ray.transport.verbs.carriers import load_where_devices_are
from whale_ray.transport.verbs.device import device_names
from whale_ray.transport.verbs.library import Library, NoVerbsError

DEVICES = ("rxe0", "rxe1")
STRIDE = 13
"""A prime, so that what is tried takes all turns."""
FRAMES = 200
HERE = Path(__file__).parent
PRETENDED = ("pretended", "slow")
SMOKE = {
    "test_frames_arrive_whole_once_and_in_order",
    "test_receivers_at_different_speeds_all_get_everything",
    "test_a_stored_view_stays_right",
    "test_moves_at_any_time_lose_and_double_nothing",
    "test_control_messages_survive_cuts",
    "test_a_completion_wakes_a_sleeping_host",
    "test_broken_links_lose_and_double_nothing",
    "test_slots_are_written_from_afar",
}
"""Tests that every run repeats with slow devices."""
SOFT_ROCE = pytest.param("soft-RoCE", marks=pytest.mark.rdma)
"""Kinds of devices; a test that means some of them alone is parametrized with those."""


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not isinstance(item, pytest.Function) or HERE not in item.path.parents:
            continue
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if parameters.get("kind") == "slow" and item.originalname not in SMOKE:
            item.add_marker(pytest.mark.long)


@dataclass
class Machine:
    """Two devices, which stand for two hosts."""

    library: Library
    fabric: Fabric | None
    """What the devices are pretended by; None for real ones."""

    @property
    def stride(self) -> int:
        """As of `ChannelConformance`: the processor beside soft-RoCE is an emulated one."""
        return STRIDE if self.fabric is None else 1

    def hosts(self, **settings: object) -> Hosts:
        """Return hosts that take turns with the devices, and cannot do without."""
        times = {"silence_timeout_ms": 600_000, "heartbeat_interval_ms": 60_000}
        options = {"between_hosts": "verbs", **times, **settings}
        return Hosts(lambda: self.library, DEVICES, **options)


@pytest.fixture(params=[*PRETENDED, SOFT_ROCE], scope="session")
def kind(request: pytest.FixtureRequest) -> str:
    """Name the devices to test with."""
    return request.param


@pytest.fixture
def machine(kind: str) -> Machine:
    """Return the devices; skip the test where there are none."""
    return machine_of(kind)


def machine_of(kind: str) -> Machine:
    if kind in PRETENDED:
        fabric = two_hosts()
        if kind == "slow":
            # Requests stay under way for many polls, some queue pairs' longer than others'.
            fabric.per_poll, fabric.chance = 1, random.Random(7)
        return Machine(fabric.library, fabric)
    try:
        library = load_where_devices_are()
    except NoVerbsError as error:
        pytest.skip(f"no RDMA device to test with: {error}")
    if set(device_names(library)) < set(DEVICES):
        pytest.skip("no RDMA device named rxe0 and rxe1 (.ci/softroce-vm has them)")
    return Machine(library, None)


@pytest.fixture(params=["read", "write", "send"])
def data(request: pytest.FixtureRequest) -> str:
    """Name the way that payloads take."""
    return request.param


@pytest.fixture
def hosts(machine: Machine, data: str) -> Iterator[Hosts]:
    """Yield hosts whose links are of verbs, and close them."""
    made = machine.hosts(verbs_data=data, reconnect_backoff_ms=1, reconnect_backoff_max_ms=4)
    yield made
    made.close()
    assert machine.fabric is None or not machine.fabric.open, "all must be given back"


# --- two hosts over pretended devices, which may be left for TCP --------------------------------


@pytest.fixture
def fabric() -> Fabric:
    """Return pretended devices, one for each of two hosts."""
    return two_hosts()


@pytest.fixture
def make(fabric: Fabric) -> Iterator[Callable[..., Hosts]]:
    """Return a function that makes hosts over `fabric`; in the end all must be given back."""
    made: list[Hosts] = []

    def build(**settings: object) -> Hosts:
        options = {"reconnect_backoff_ms": 1, "reconnect_backoff_max_ms": 4, **settings}
        made.append(Hosts(lambda: fabric.library, DEVICES, **options))
        return made[-1]

    yield build
    for hosts in made:
        hosts.close()
    assert not fabric.open
    assert not fabric.regions
    assert not fabric.pairs


def size(number: int) -> int:
    """Return how many bytes a frame has."""
    return 100 + number * 37 % 5000


def pair(hosts: Hosts) -> tuple[Source, Target]:
    """Link two hosts and let a stream flow between them."""
    hosts.add("parent")
    hosts.add("child", listens=False)
    hosts.dial("child", "parent")
    source = Source(FRAMES, size)
    (target,) = hosts.stream(source, "parent", ["child"])
    return source, target


def flow(hosts: Hosts, source: Source, target: Target) -> None:
    """Let a part of the stream arrive, over verbs."""
    hosts.until(lambda: len(target.received) > 30, source.step, target.step)
    assert carriers(hosts) == ["verbs", "verbs"]


def finish(hosts: Hosts, source: Source, target: Target) -> None:
    """Let the rest of it arrive: every frame once, in order and whole."""
    hosts.until(lambda: target.over, source.step, target.step)
    assert target.received == source.all
    hosts.until(lambda: all(endpoint.delivered for endpoint in hosts.endpoints.values()))


def carriers(hosts: Hosts) -> list[str]:
    """Return what carries the links, by host."""
    return [line.carrier for end in hosts.endpoints.values() for line in end.statistics()]


def cut(hosts: Hosts) -> None:
    """Break the link between both hosts, for no fault of a device's; wait for the next one."""
    (connection,) = hosts.endpoints["child"]._links.values()
    connection.sock.shutdown(2)
    hosts.until(lambda: connection not in hosts.endpoints["child"]._links.values())
    hosts.until(lambda: hosts.up("child", "parent"))
