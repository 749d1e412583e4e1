"""In tests of the public interface, jobs on processes start quickly."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _quick_processes(quick_processes: None) -> None:
    """See `quick_processes`."""
