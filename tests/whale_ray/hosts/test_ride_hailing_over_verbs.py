"""Ride-hailing over hosts that RDMA queue pairs link, and nothing else, equals the batch query.

Hosts take turns with two devices, and share no memory. While the rides of an hour flow, their tree
is switched, and a relay in the middle of it is killed.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.loaded_servers import LoadedServers
from tests.transport.verbs.conftest import machine_of
from tests.whale_ray.hosts.emulated import LOOK_EVERY_S, MARKS, PATIENCE_S, wait_long_for
from tests.whale_ray.hosts.emulated import SETTINGS as EMULATED
from tests.whale_ray.hosts.rides import Rides, assert_equal_answers
from tests.whale_ray.hosts.test_job_trees import has_switched, kill, rows_in
from whale_ray.api.job import Job
from whale_ray.api.submission import submit
from whale_ray.deployment.processes.process_fleet import HostPlace
from whale_ray.transport.links.statistics import LinkStatistics

pytestmark = [pytest.mark.rdma, *MARKS]

RIDES_VARIABLE = "WHALE_RAY_RIDES"
"""Names a folder of rides that were made before: an emulated machine is slow at that."""

ADDRESSES = ("192.0.2.1", "192.0.2.2", "192.0.2.2")
"""Of the hosts. Requests come from host 1; a chain goes on from there over host 0 to host 2."""
MIDDLE = 0
DEVICES = {"192.0.2.1": "rxe0", "192.0.2.2": "rxe1"}
"""Those of .ci/softroce-vm, by address."""
SETTINGS = {
    **EMULATED,
    "runtime.hosts": len(ADDRESSES),
    "runtime.route": "star",
    "transport.handshake_timeout_ms": 60_000,
    "transport.silence_timeout_ms": 60_000,
}


@pytest.fixture
def rides(tmp_path: Path) -> Rides:
    """Return an hour of rides; skip the test where the devices are missing."""
    machine_of("soft-RoCE")
    named = os.environ.get(RIDES_VARIABLE)
    return Rides(Path(named)) if named else Rides(tmp_path).make(1)


def links_of(job: Job) -> list[tuple[str, LinkStatistics]]:
    """Return all links, as either side last told of them, each with that side's device."""
    relays = zip(ADDRESSES, job.metrics().relays, strict=False)
    return [(DEVICES[address], link) for address, relay in relays for link in relay.links]


def are_all_up(job: Job) -> bool:
    links = links_of(job)
    return len(links) == len(ADDRESSES) * (len(ADDRESSES) - 1) and all(
        link.up and link.bytes_sent and link.bytes_received for _, link in links
    )


def assert_nothing_but_verbs(job: Job) -> None:
    """All bytes that links have carried went by queue pairs of their hosts' own devices."""
    for device, link in links_of(job):
        assert set(link.sent_by_carrier) | set(link.received_by_carrier) == {"verbs"}
        assert link.way in {"", f"verbs READ on {device}"}


def test_an_hour_while_the_tree_changes_and_a_relay_dies(
    rides: Rides, loaded_servers: LoadedServers
) -> None:
    job = submit(
        rides.topology(paced=True),
        on="processes",
        workers=len(ADDRESSES),
        settings=SETTINGS,
        places=[HostPlace(address, loaded_servers) for address in ADDRESSES],
    )
    wait_long_for(job, lambda: rows_in(job, "match") > 0)
    job.set_route("chain")
    wait_long_for(job, lambda: has_switched(job, 1) and are_all_up(job))
    assert_nothing_but_verbs(job)
    kill(job, f"whale relay {MIDDLE}", PATIENCE_S, LOOK_EVERY_S)
    assert job.state == "running"
    job.wait(PATIENCE_S)
    assert_equal_answers(job.results("out").to_arrow(), rides.expected)
    assert_nothing_but_verbs(job)
    assert job.outcome().restarts == 0
    whys = [switch.why for switch in job.metrics().switches if not switch.aborted]
    assert whys[0] == "reshape"
    assert {"repair", "return"} <= set(whys)
