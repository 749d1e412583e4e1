"""What tests over RDMA devices wait for: where these are emulated, the processor may be, too.

There a job takes a minute or two until its rows flow, more while other tests run, and the usual
limits would count its processes as dead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tests.whale_ray.hosts.test_job_trees import wait_for
from whale_ray.api.job import Job

PATIENCE_S = 500
LOOK_EVERY_S = 1.0
"""To look takes such a processor tens of milliseconds, which the job could use."""

SETTINGS: Mapping[str, object] = {
    "runtime.start_timeout_ms": 1000 * PATIENCE_S,
    "runtime.unreachable_after_ms": 1000 * PATIENCE_S,
    "runtime.poll_interval_ms": 1000,
    "transport.between_hosts": "verbs",
}

MARKS = (
    pytest.mark.timeout(2 * PATIENCE_S),
    pytest.mark.usefixtures("no_leaks"),
)


def wait_long_for(job: Job, what: Callable[[], bool]) -> None:
    """Let the job run until something is so; raises what it fails with."""
    wait_for(job, what, PATIENCE_S, LOOK_EVERY_S)
