"""Windows, joins, duplicates, keyed processes: the same results on every runner."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import whale_ray as whale
from tests.whale_ray.api.stateful_topology import build, check
from whale_ray.api.submission import submit

SMALL_SLICES = {"transport.wtl_ms": 0.0, "transport.mms_bytes": 4_096}
"""So that rows of one stream come in many slices, and watermarks between them."""


@pytest.mark.parametrize("parallelism", [1, 3, 7])
def test_in_one_process(parallelism: int) -> None:
    check(whale.run(build(parallelism), settings={"runtime.source_batch_rows": 50}))


@pytest.mark.parametrize(
    ("workers", "hosts", "parallelism"),
    [
        (3, 1, 3),
        pytest.param(2, 1, 1, marks=pytest.mark.long),
        pytest.param(4, 1, 7, marks=pytest.mark.long),
        pytest.param(2, 2, 1, marks=pytest.mark.long),
        pytest.param(4, 2, 3, marks=pytest.mark.long),
        (4, 2, 7),
    ],
)
def test_on_processes_of_one_host_and_of_two(
    workers: int, hosts: int, parallelism: int, no_leaks: None
) -> None:
    settings = {**SMALL_SLICES, "runtime.hosts": hosts}
    job = submit(build(parallelism), on="processes", workers=workers, settings=settings)
    check(job.wait(280))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    import ray

    ray.init(num_cpus=4, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.parametrize(
    ("hosts", "parallelism"),
    [
        (1, 3),
        (2, 7),
        *(
            pytest.param(*one, marks=pytest.mark.exhaustive)
            for one in [(1, 1), (1, 7), (2, 1), (2, 3)]
        ),
    ],
)
def test_on_ray_of_one_host_and_of_two(cluster: Any, hosts: int, parallelism: int) -> None:
    settings = {**SMALL_SLICES, "runtime.hosts": hosts}
    check(submit(build(parallelism), workers=4, settings=settings).wait(280))
