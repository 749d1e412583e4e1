"""Skips what needs hosts where there can be none, with the reason; nothing may be left behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.runs import alone_in
from whale_ray.testing.hosts import capability
from whale_ray.testing.hosts.owners import FOLDERS


@pytest.fixture
def hosts_possible(no_leaks: None) -> Iterator[None]:
    """Skip the test where this machine cannot make hosts out of network namespaces.

    No other run makes any meanwhile: whoever does takes away what dead owners have left.
    """
    if capability().lack:
        pytest.skip(f"no network namespaces: {capability().lack}")
    with alone_in(FOLDERS):
        yield
