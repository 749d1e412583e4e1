"""What tests of the page in a browser share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.whale_ray.ui.browsing import CHROMIUM, WAIT_MS, Ui, run_job
from whale_ray.ui.server import STATIC

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the runs of a job that finished and of one that failed."""
    place = tmp_path_factory.mktemp("page")
    for kind in ("finishing", "failing"):
        run_job(kind, place)
    return place


@pytest.fixture(scope="module")
def ui(place: Path) -> Iterator[Ui]:
    with Ui(place / "runs") as ui:
        yield ui


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    assert (STATIC / "index.html").is_file(), "the page is not built: make ui"
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=WAIT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox"],  # tests run as root
        )
        yield browser
        browser.close()


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    """Return a page that fails its test if the script fails or the policy is violated."""
    scheme: Any = request.param
    page = browser.new_page(color_scheme=scheme, viewport={"width": 1300, "height": 900})
    page.set_default_timeout(WAIT_MS)
    troubles: list[str] = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on(
        "console",
        lambda told: troubles.append(told.text) if told.type in ("error", "warning") else None,
    )
    yield page
    page.close()
    # Of what the server refuses, and of its end, the browser tells by itself.
    assert not [one for one in troubles if not one.startswith("Failed to load resource")]
