"""Windows, joins, duplicates, keyed processes over two hosts that share no network but a link."""

from __future__ import annotations

import pytest

from tests.whale_ray.api.stateful_topology import build, check
from whale_ray.api.submission import submit
from whale_ray.deployment.processes.process_fleet import HostPlace
from whale_ray.testing.hosts import NamespaceHosts

pytestmark = [pytest.mark.usefixtures("hosts_possible"), pytest.mark.long]

PATIENCE_S = 280


@pytest.mark.parametrize(
    "parallelism", [3, *(pytest.param(one, marks=pytest.mark.exhaustive) for one in (1, 7))]
)
def test_two_hosts_have_the_results_of_one(parallelism: int) -> None:
    with NamespaceHosts(2, rate_mbit=200) as hosts:
        job = submit(
            build(parallelism),
            on="processes",
            workers=4,
            settings={"runtime.hosts": 2, "runtime.start_timeout_ms": 1_000 * PATIENCE_S},
            places=[HostPlace(host.address, host.popen) for host in hosts],
        ).wait(PATIENCE_S)
    check(job)
    assert [relay.host for relay in job.metrics().relays] == ["host-0", "host-1"]
