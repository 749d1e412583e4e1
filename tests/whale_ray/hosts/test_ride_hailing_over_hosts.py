"""Ride-hailing over four hosts equals the batch query, also when a host is cut off for a while.

Two hours of the real data where they are given, else of generated data. For a cut the links are
made so slow that a job takes seconds for its bytes, and where this process builds the job its rides
are paced, so that it takes many: a cut in the middle of the bytes is in the middle of the job.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from tests.whale_ray.applications.ride_hailing.test_ride_hailing_runs import assert_equal_answers
from tests.whale_ray.hosts.ride_hailing_driver import failures, wait_for_bytes
from tests.whale_ray.hosts.rides import Rides
from whale_ray.api.submission import submit
from whale_ray.deployment.processes.process_fleet import HostPlace
from whale_ray.testing.hosts import NamespaceHosts, RayNodes

pytestmark = pytest.mark.usefixtures("hosts_possible")

HOSTS = 4
NAMES = ["host-0", "host-1", "host-2", "host-3"]
HOURS = 2
SLOW_MBIT = 2.0
UNDER_WAY_BYTES = 200_000
"""What host 2 has received when a link is cut: a part of the 1 MB or so that it gets in all."""
CUT_S = 5.0
"""Longer than `transport.silence_timeout_ms`: both sides give the connection up."""
PATIENCE_S = 280
PATIENT = {"runtime.start_timeout_ms": 1000 * PATIENCE_S}


@pytest.fixture(scope="module")
def rides(tmp_path_factory: pytest.TempPathFactory) -> Rides:
    return Rides(tmp_path_factory.mktemp("rides")).make(HOURS)


def submitted(rides: Rides, hosts: NamespaceHosts, route: str, *, paced: bool = False) -> whale.Job:
    """Start the job with eight workers in plain processes, two in each host."""
    return submit(
        rides.topology(paced=paced),
        on="processes",
        workers=2 * HOSTS,
        settings={**PATIENT, "runtime.hosts": HOSTS, "runtime.route": route},
        places=[HostPlace(host.address, host.popen) for host in hosts],
    )


def cut_off(host: int, others: list[int], hosts: NamespaceHosts) -> None:
    """Cut the link of a host, or those to some others, for a while."""
    for other in [hosts[index] for index in others] or [None]:
        hosts[host].cut(other)
    threading.Event().wait(CUT_S)
    for other in [hosts[index] for index in others] or [None]:
        hosts[host].heal(other)


@pytest.mark.long
@pytest.mark.parametrize(
    "route",
    ["star", pytest.param("chain", marks=pytest.mark.exhaustive)],  # a chain is cut below
)
def test_four_hosts_equal_the_query(rides: Rides, route: str) -> None:
    with NamespaceHosts(HOSTS, rate_mbit=200) as hosts:
        job = submitted(rides, hosts, route).wait(PATIENCE_S)
    assert_equal_answers(job.results("out").to_arrow(), rides.expected)
    assert [relay.host for relay in job.metrics().relays] == [
        "host-0",
        "host-1",
        "host-2",
        "host-3",
    ]
    assert all(relay.refused == {} for relay in job.metrics().relays)


@pytest.mark.long
@pytest.mark.parametrize(
    ("route", "others"),
    [
        pytest.param("star", [], marks=pytest.mark.exhaustive),
        ("star", [0]),
        pytest.param("chain", [], marks=pytest.mark.exhaustive),
        ("chain", [1, 3]),
    ],
)
def test_a_host_that_is_cut_off_for_seconds_catches_up(
    rides: Rides, route: str, others: list[int]
) -> None:
    with NamespaceHosts(HOSTS, rate_mbit=SLOW_MBIT) as hosts:
        job = submitted(rides, hosts, route, paced=True)
        wait_for_bytes(job, 2, UNDER_WAY_BYTES)
        cut_off(2, others, hosts)
        assert job.state == "running"
        job.wait(PATIENCE_S)
    assert_equal_answers(job.results("out").to_arrow(), rides.expected)
    assert job.outcome().restarts == 0
    assert failures(job, 2).get("silent", 0) > 0


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.parametrize(
    "cut", [pytest.param(False, marks=pytest.mark.exhaustive), True], ids=["whole", "cut"]
)
def test_four_ray_nodes_equal_the_query(rides: Rides, cut: bool, tmp_path: Path) -> None:
    for path in (rides.positions, rides.requests):
        (tmp_path / path.name).symlink_to(path)
    with NamespaceHosts(HOSTS, rate_mbit=100) as hosts, RayNodes(hosts, cpus=2) as nodes:
        for host in hosts if cut else ():
            host.set_rate(SLOW_MBIT)
        with nodes.popen(
            [sys.executable, "-m", "tests.whale_ray.hosts.ride_hailing_driver"]
            + [str(tmp_path), json.dumps(PATIENT), str(UNDER_WAY_BYTES)],
            stdout=subprocess.PIPE,
            text=True,
        ) as driver:
            assert driver.stdout is not None
            assert driver.stdout.readline() == "under way\n"
            if cut:
                cut_off(2, [], hosts)
                assert driver.poll() is None
            told = json.loads(driver.communicate(timeout=PATIENCE_S)[0])
    assert_equal_answers(pq.read_table(tmp_path / "out"), rides.expected)
    assert told["hosts"] == NAMES
    assert told["restarts"] == 0
    assert ("silent" in told["failures"]) == cut
