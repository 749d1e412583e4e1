"""Skips what needs hosts where there can be none, with the reason; nothing may be left behind."""

from __future__ import annotations

import pytest

from whale_ray.testing.hosts import capability


@pytest.fixture
def hosts_possible(no_leaks: None) -> None:
    """Skip the test where this machine cannot make hosts out of network namespaces."""
    if capability().lack:
        pytest.skip(f"no network namespaces: {capability().lack}")
