"""A driver that lives in host 0: runs ride-hailing on the Ray that it finds, tells how it goes.

Called with the folder of its input, where its output goes, too, with settings, and with a number of
bytes. Prints a line once host 2 has got so many: the job is under way then. Prints another one at
the end: the hosts, the restarts, and how links of host 2 broke.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import whale_ray as whale
from whale_ray.api.job import Job
from whale_ray.applications.ride_hailing.settings import RideHailingSettings
from whale_ray.applications.ride_hailing.topology import build
from whale_ray.plan.hosts import host_name
from whale_ray.transport.links.statistics import LinkStatistics

POLL_S = 0.1


def links_of(job: Job, host: int) -> tuple[LinkStatistics, ...]:
    """Return the links of a host's relay; none as long as that has not been heard of."""
    relays = {relay.host: relay for relay in job.metrics().relays}
    return relays[host_name(host)].links if host_name(host) in relays else ()


def wait_for_bytes(job: Job, host: int, nbytes: int) -> None:
    """Wait until a host's relay has received `nbytes`; fails if the job ends before."""
    tick = threading.Event()
    while True:
        if sum(link.bytes_received for link in links_of(job, host)) >= nbytes:
            return
        assert job.state in {"starting", "running", "restarting"}, job.state
        tick.wait(POLL_S)


def failures(job: Job, host: int) -> dict[str, int]:
    """Return how often links of a host broke, by reason."""
    found: dict[str, int] = {}
    for link in links_of(job, host):
        for reason, times in link.failures.items():
            found[reason] = found.get(reason, 0) + times
    return found


def main() -> None:
    """Run the job in the folder that the command line names."""
    folder = Path(sys.argv[1])
    topology = build(
        whale.sources.parquet(folder / "positions.parquet"),
        whale.sources.parquet(folder / "requests.parquet"),
        whale.sinks.parquet(folder / "out"),
        RideHailingSettings(matching_instances=16),
    )
    job = whale.submit(topology, workers=8, settings=json.loads(sys.argv[2]))
    wait_for_bytes(job, 2, int(sys.argv[3]))
    sys.stdout.write("under way\n")
    sys.stdout.flush()
    job.wait()
    told = {
        "hosts": [relay.host for relay in job.metrics().relays],
        "restarts": job.outcome().restarts,
        "failures": failures(job, 2),
    }
    sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
