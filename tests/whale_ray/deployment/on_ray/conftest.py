"""One Ray for all tests of this folder, which jobs join as a user's own."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Any:
    """Return `ray`, connected to the Ray that the first test of this folder starts."""
    import ray

    if not ray.is_initialized():
        ray.init(
            num_cpus=4,
            num_gpus=2,
            resources={"scanner": 2},
            include_dashboard=False,
            _system_config={"metrics_report_interval_ms": 500},
            logging_level="ERROR",
            log_to_driver=False,
        )
        folder = request.node.parent
        folder.addfinalizer(ray.shutdown)
    return ray
