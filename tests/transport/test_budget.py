"""Rings get the largest common size that the budget allows, or a refusal that says what to do."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.configs.errors import ResourceError
from whale_ray.configs.settings import TransportSettings
from whale_ray.transport.budget import plan_ring_bytes

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def test_plenty():
    assert plan_ring_bytes(10, TransportSettings(), 8 * GIB, 16 * GIB) == 4 * MIB


def test_no_rings_fit_into_nothing():
    assert plan_ring_bytes(0, TransportSettings(), 0, 0) == 4 * MIB


def test_the_smaller_of_both_memories_decides():
    settings = TransportSettings()
    assert plan_ring_bytes(100, settings, GIB, 16 * GIB) == 2 * MIB
    assert plan_ring_bytes(100, settings, 16 * GIB, GIB) == 2 * MIB
    assert plan_ring_bytes(100, settings, None, GIB) == 2 * MIB
    assert plan_ring_bytes(100, settings, None, 16 * GIB) == 4 * MIB


def test_a_refusal_names_need_budget_and_remedy():
    with pytest.raises(ResourceError) as caught:
        plan_ring_bytes(1000, TransportSettings(), 256 * MIB, GIB)
    assert str(caught.value) == (
        "the job's 1000 rings need 253.9 MiB at the least, but may take only 64.0 MiB, 25% of "
        "256.0 MiB free in /dev/shm; make room there, lower the parallelism or the number of "
        "workers, raise transport.memory_budget_fraction, or lower transport.ring_bytes_min"
    )
    with pytest.raises(ResourceError, match="free in memory"):
        plan_ring_bytes(1000, TransportSettings(), None, 256 * MIB)


@given(
    count=st.integers(1, 5000),
    shm=st.integers(0, 64 * GIB),
    memory=st.integers(0, 64 * GIB),
    exponents=st.lists(st.integers(16, 30), min_size=2, max_size=2).map(sorted),
)
def test_the_size_is_the_largest_that_fits(count, shm, memory, exponents):
    settings = TransportSettings(ring_bytes_min=1 << exponents[0], ring_bytes=1 << exponents[1])
    allowed = int(min(shm, memory) * settings.memory_budget_fraction)
    fitting = [
        1 << exponent
        for exponent in range(exponents[0], exponents[1] + 1)
        if count * ((1 << exponent) + 4096) <= allowed
    ]
    if not fitting:
        with pytest.raises(ResourceError):
            plan_ring_bytes(count, settings, shm, memory)
        return
    assert plan_ring_bytes(count, settings, shm, memory) == max(fitting)
