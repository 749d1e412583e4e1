"""Makes the pictures of "Tuning a job" anew: real runs of examples/tweets.py, on the real page.

`make pictures` runs the job as its author wrote it, optimizes it, runs it again, and takes pictures
of `whale-ray ui` in Chromium. It takes some minutes, and writes to docs/pages/operations/pictures.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[1]
PICTURES = Path(__file__).parent / "pages" / "operations" / "pictures"
APP = f"{ROOT / 'examples' / 'tweets.py'}:one_by_one"
TWEETS = "600000"
WIDTH, HEIGHT = 1200, 960
WAIT_MS = 120_000
RINGS_FILL_MS = 300_000
BLOCKED = re.compile(r"tweets.*back-pressured\s*(100|[5-9]\d)\s*%", re.DOTALL)
"""What the node of the source says once the rings behind it are full."""

SET = ("--workers", "2", "--set", "runtime.source_batch_rows=1024")
HOW = ("--on", "processes", *SET)


def command(*words: str) -> list[str]:
    """Return a command of whale-ray, in this Python."""
    return [sys.executable, "-m", "whale_ray.cli.main", *words]


@contextmanager
def served() -> Iterator[str]:
    """Serve the page; give its address."""
    words = command("ui", "--port", "0")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield server.stdout.readline().split()[2]
        server.send_signal(signal.SIGINT)


def take(page: Page, name: str, *, height: int) -> None:
    """Keep the upper part of what the page shows."""
    page.wait_for_timeout(1500)  # graphs and charts are drawn
    clip = {"x": 0.0, "y": 0.0, "width": WIDTH, "height": height}
    page.screenshot(path=PICTURES / f"{name}.png", clip=clip)


def newest_job(page: Page, url: str) -> str:
    """Return the id of the job that began last."""
    jobs = page.request.get(f"{url}api/jobs").json()
    return str(max(jobs, key=lambda job: job["began_s"])["id"])


def slow_run(page: Page, url: str) -> str:
    """Run the job as it is until its rings are full, and cancel it; return its id."""
    with subprocess.Popen(command("run", APP, *HOW)) as job:
        page.goto(url)
        page.get_by_role("link", name="one-by-one").wait_for(timeout=WAIT_MS)
        job_id = newest_job(page, url)
        page.goto(f"{url}#/job/{job_id}/topology")
        page.locator(".svelte-flow__node", has_text=BLOCKED).wait_for(timeout=RINGS_FILL_MS)
        take(page, "slow-topology", height=900)
        page.goto(f"{url}#/job/{job_id}/hosts")
        page.get_by_role("heading", name="Rings").wait_for()
        page.get_by_label("compact").check()
        page.get_by_role("heading", name="Rings").scroll_into_view_if_needed()
        page.get_by_role("region", name="Rings").screenshot(path=PICTURES / "slow-rings.png")
        job.send_signal(signal.SIGINT)
        page.wait_for_timeout(2000)
        job.send_signal(signal.SIGINT)  # it would drain for a minute
    return job_id


def make(page: Page, url: str) -> None:
    """Take all pictures."""
    before = slow_run(page, url)
    told = subprocess.run(
        command("optimize", APP, *SET, "--log", "decisions.yaml"),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    (PICTURES / "optimize.txt").write_text(told.stdout, encoding="utf-8")
    page.goto(f"{url}#/optimizer")
    page.locator("input[type=file]").set_input_files("decisions.yaml")
    page.get_by_role("heading", name="step 1 of").wait_for()
    while "batch_rows" not in page.locator("div[aria-live]").inner_text():
        page.get_by_role("button", name="Forward").click()
    take(page, "optimizer-step", height=620)
    subprocess.run(command("run", APP, *HOW, "--optimize"), check=True)
    after = newest_job(page, url)
    page.goto(f"{url}#/job/{before}/charts?with={after}")
    page.get_by_text("is drawn solid").wait_for()
    take(page, "two-runs", height=960)
    page.goto(f"{url}#/job/{after}/topology")
    page.locator(".svelte-flow__node").nth(3).wait_for()
    take(page, "fast-topology", height=900)


def main() -> None:
    """Run everything in an empty folder, with records of its own."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    PICTURES.mkdir(exist_ok=True)
    with TemporaryDirectory(prefix="whale-ray-") as folder:
        os.chdir(folder)
        os.environ |= {"WHALE_RAY_RECORDS__FOLDER": f"{folder}/runs", "TWEETS": TWEETS}
        with sync_playwright() as playwright, served() as url:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(
                color_scheme="light", viewport={"width": WIDTH, "height": HEIGHT}
            )
            page.set_default_timeout(WAIT_MS)
            make(page, url)
            browser.close()
        os.chdir(ROOT)


if __name__ == "__main__":
    main()
