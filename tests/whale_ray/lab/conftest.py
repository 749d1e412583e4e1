"""Marks the laboratory's tests `lab`, but for a few that show in every run that it works."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def quick_processes() -> None:
    """Let processes start as they do for a user: what is measured may include that."""


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("smoke") is None:
            item.add_marker(pytest.mark.lab)
