"""Devices for tests: pretended ones in every run, soft-RoCE's where there are any."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.transport.links import Hosts
from tests.transport.verbs.fabric import Fabric, two_hosts
from whale_ray.transport.verbs.carriers import load_where_devices_are
from whale_ray.transport.verbs.device import device_names
from whale_ray.transport.verbs.library import Library, NoVerbsError

DEVICES = ("rxe0", "rxe1")


@dataclass
class Machine:
    """Two devices, which stand for two hosts."""

    library: Library
    fabric: Fabric | None
    """What the devices are pretended by; None for real ones."""

    def hosts(self, **settings: object) -> Hosts:
        """Return hosts that take turns with the devices, and cannot do without."""
        times = {"silence_timeout_ms": 600_000, "heartbeat_interval_ms": 60_000}
        options = {"between_hosts": "verbs", **times, **settings}
        return Hosts(lambda: self.library, DEVICES, **options)


@pytest.fixture(
    params=["pretended", "slow", pytest.param("soft-RoCE", marks=pytest.mark.rdma)],
    scope="session",
)
def kind(request: pytest.FixtureRequest) -> str:
    """Name the devices to test with."""
    return request.param


@pytest.fixture
def machine(kind: str) -> Machine:
    """Return the devices; skip the test where there are none."""
    return machine_of(kind)


def machine_of(kind: str) -> Machine:
    if kind in {"pretended", "slow"}:
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
