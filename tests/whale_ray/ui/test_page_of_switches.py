"""The page in a real browser while a real job switches its multicast tree, or hangs.

What is watched is neither reloaded nor written by the test.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import whale_ray as whale
from tests.whale_ray.ui.browsing import ONCE, Ui, assert_accessible, expect, job_under_way

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

HOSTS = 3
RATE_PER_S, ROWS = 1_000.0, 100_000_000
"""Far more rows than come before a test ends its job."""


class Count(whale.Process):
    """Counts rows."""

    def open(self, context: Any) -> None:
        self.rows = 0

    def on_batch(self, batch: Any, out: Any) -> None:
        self.rows += len(batch["n"])


@contextmanager
def watched(place: Path) -> Iterator[tuple[whale.Job, Ui]]:
    """Run a job whose rows go to all hosts through a tree, and the page that shows it."""
    topology = whale.Topology("trees")
    source = whale.sources.poisson(RATE_PER_S, lambda n, _: {"n": n}, limit=ROWS)
    every = topology.source(source, id="rows").broadcast()
    counted = every.process(Count, id="every", parallelism=HOSTS)
    counted.sink(whale.sinks.collect(), id="out")
    runs = place / "runs"
    settings = {"runtime.hosts": HOSTS, "records.folder": str(runs)}
    job = whale.submit(topology, on="processes", workers=HOSTS, settings=settings)
    try:
        with Ui(runs) as ui:
            yield job, ui
    finally:
        job.abandon()


LEVELS = """wanted => {
    const nodes = [...document.querySelectorAll(".svelte-flow__node")];
    const tops = nodes.map((node) => Math.round(node.getBoundingClientRect().top));
    return new Set(tops).size === wanted;
}"""


def wait_for_levels(page: Page, wanted: int) -> None:
    """Wait until the hosts of the tree that is drawn stand in `wanted` levels.

    The page fits a new tree into its pane a moment after it has drawn it, so all hosts are looked
    at in one call.
    """
    page.wait_for_function(LEVELS, arg=wanted)


def parents(page: Page) -> Locator:
    """Return the rows of the table that says from whom each host receives."""
    return page.get_by_role("group").filter(has_text="The tree as a table").locator("tbody tr")


@ONCE
def test_a_tree_that_switches_is_drawn_anew(page, tmp_path):
    with watched(tmp_path) as (job, ui):
        page.goto(f"{ui.url}#/job/{job.id}/trees")
        page.get_by_text("The tree as a table").click()
        expect(parents(page)).to_have_count(HOSTS)
        rows = page.get_by_role("region", name="Switches").locator("tbody tr")
        job.set_route("chain")
        chain = ["the source", "host-0", "host-1"]
        expect(parents(page).locator("td:nth-child(2)")).to_have_text(chain)
        expect(rows).to_have_count(1)
        expect(rows.first).to_contain_text("done")
        wait_for_levels(page, HOSTS)
        page.screenshot(path=tmp_path / "chain.png", full_page=True)
        job.set_route("star")
        star = ["the source", "host-0", "host-0"]
        expect(parents(page).locator("td:nth-child(2)")).to_have_text(star)
        expect(rows).to_have_count(2)
        expect(rows.first).to_contain_text("1 → 2")
        wait_for_levels(page, 2)
        page.get_by_role("button", name="Epoch 2 of stream").click()
        expect(page.locator(".svelte-flow__node")).to_have_count(2 * HOSTS)
        page.screenshot(path=tmp_path / "star.png", full_page=True)
        assert_accessible(page)


@ONCE
def test_a_worker_that_hangs_is_named_until_it_goes_on(page, tmp_path):
    """It is stopped, as by a debugger."""
    with watched(tmp_path) as (job, ui):
        page.goto(f"{ui.url}#/job/{job.id}/topology")
        page.get_by_text("running", exact=True).wait_for()
        stopped = next(
            one
            for one in psutil.Process().children(recursive=True)
            if one.name() == "whale worker 1"
        )
        stopped.suspend()
        try:
            page.get_by_text(re.compile("^Worker 1 has not moved for")).wait_for()
            assert_accessible(page)
            page.screenshot(path=tmp_path / "hangs.png", full_page=True)
        finally:
            stopped.resume()
        expect(page.get_by_text("has not moved for")).to_have_count(0)
        page.get_by_text("running", exact=True).wait_for()


class Waits(whale.Process):
    """One of its instances waits in its first call until a file is there."""

    def __init__(self, waits_for: str) -> None:
        self.waits_for = waits_for

    def open(self, context: Any) -> None:
        self.waits = context.instance == 1

    def on_batch(self, batch: Any, out: Any) -> None:
        while self.waits and not os.path.exists(self.waits_for):
            threading.Event().wait(0.05)


@ONCE
def test_a_call_that_does_not_return_names_its_worker_until_it_does(page, tmp_path):
    go = tmp_path / "go"
    topology = whale.Topology("waits")
    source = whale.sources.poisson(RATE_PER_S, lambda n, _: {"n": n}, limit=ROWS)
    every = topology.source(source, id="rows").broadcast()
    waits = every.process(partial(Waits, str(go)), id="waits", parallelism=2)
    waits.sink(whale.sinks.collect(), id="out")
    settings = {"records.folder": str(tmp_path / "runs")}
    job = whale.submit(topology, on="processes", workers=2, settings=settings)
    try:
        with Ui(tmp_path / "runs") as ui:
            page.goto(f"{ui.url}#/job/{job.id}/topology")
            warning = page.get_by_text(re.compile("^Worker 1 has not moved for"))
            warning.wait_for()
            page.screenshot(path=tmp_path / "waits.png", full_page=True)
            assert_accessible(page)
            go.touch()
            expect(warning).to_have_count(0)
    finally:
        go.touch()
        job.abandon()


@ONCE
def test_a_job_that_hangs_goes_on_and_is_killed(page, tmp_path):
    """Its driver is stopped: then nobody writes its record."""
    with Ui(tmp_path / "runs") as ui, job_under_way(tmp_path) as job:
        page.goto(ui.url)
        row = page.get_by_role("row", name="running")
        expect(row).to_contain_text("running-")
        os.kill(job.pid, signal.SIGSTOP)  # while it starts, unless it runs already
        try:
            expect(row).to_contain_text("no data for")
            page.get_by_role("link", name="running").click()
            hangs = page.get_by_text("no data from the job for")
            hangs.wait_for()
            page.screenshot(path=tmp_path / "no-data.png", full_page=True)
            assert_accessible(page)
        finally:
            os.kill(job.pid, signal.SIGCONT)
        expect(hangs).to_have_count(0)
        job.kill()
        page.get_by_text("lost", exact=True).wait_for()
        page.get_by_role("link", name="Failures").click()
        page.get_by_role("heading", name="The job's process is gone").wait_for()
        assert_accessible(page)
