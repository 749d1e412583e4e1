"""One Ray, which whale-ray starts, for all tests of this folder; Spark needs one, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from whale_ray.ray_bridge import RaySession, connect_ray
from whale_ray.ray_bridge.session import RayKeeper
from whale_ray.spark import find_java, java_environment


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest) -> Iterator[RaySession]:
    """Return a use of the Ray that the first test of this folder starts."""
    with connect_ray("local", num_cpus=4, environment=java_environment(find_java())) as used:
        keeper = RayKeeper()
        folder = request.node.parent
        folder.addfinalizer(keeper.close)
        yield used
