"""The page in a real browser (Chromium), fed by real jobs: every view, axe-core, hostile rows.

The page must have been built (`make ui`). A violation of its Content-Security-Policy, an error in
its script or anything that axe-core finds fails a test.
"""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.whale_ray.ui.browsing import (
    HOSTILE,
    ONCE,
    VIEWS,
    WAIT_MS,
    Ui,
    assert_accessible,
    expect,
    job_ids,
    job_under_way,
)

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

RESTARTED = re.compile(r"restarted \d+ times?")
"""On a loaded machine the attempt after a killed worker may be lost, too."""


def test_without_a_job_the_page_says_how_to_begin(browser, page, tmp_path):
    with Ui(tmp_path / "none") as ui:
        page.goto(ui.url)
        page.get_by_role("heading", name="No job yet").wait_for()
        assert_accessible(page)
        page.goto("about:blank")
        page.goto(f"{ui.url}#/job/%zz/topology")  # damaged on its way
        page.get_by_text("there is no job '%zz'").wait_for()


def test_the_list_and_every_view_of_each_job(ui, page, tmp_path):
    page.goto(ui.url)
    page.get_by_role("link", name="finishing").wait_for()
    assert_accessible(page)
    for name, job_id in job_ids(ui, page).items():
        for view in VIEWS:
            page.goto(f"{ui.url}#/job/{job_id}/{view}")
            current = page.locator("nav.tabs a[aria-current=page]")
            expect(current).to_have_attribute("href", f"#/job/{job_id}/{view}")
            expect(page.get_by_role("heading", level=1)).to_have_text(f"{name} {job_id}")
            page.screenshot(path=tmp_path / f"{name}-{view}.png", full_page=True)
            assert_accessible(page)


def test_the_topology_shows_what_was_counted(ui, page):
    page.goto(f"{ui.url}#/job/{job_ids(ui, page)['finishing']}/topology")
    row = page.get_by_role("row").filter(has=page.get_by_role("button", name="totals", exact=True))
    expect(row).to_contain_text("2,000")
    expect(page.locator(".svelte-flow__node")).to_have_count(3)
    page.get_by_role("button", name="totals", exact=True).click()
    instances = page.get_by_role("region", name="Instances of totals").locator("tbody tr")
    expect(instances).to_have_count(4)
    page.goto(f"{ui.url}#/job/{job_ids(ui, page)['finishing']}/hosts")
    expect(page.locator(".cell")).to_have_count(9)
    expect(page.get_by_text("9 instances")).to_be_visible()


def test_a_graph_is_shown_whole_when_the_window_becomes_narrow(ui, page, tmp_path):
    page.goto(f"{ui.url}#/job/{job_ids(ui, page)['finishing']}/topology")
    last = page.locator(".svelte-flow__node").nth(2)
    expect(last).to_be_in_viewport(ratio=0.99)
    page.set_viewport_size({"width": 420, "height": 900})
    expect(last).to_be_in_viewport(ratio=0.99)
    page.screenshot(path=tmp_path / "narrow.png", full_page=True)


def test_a_failure_shows_the_users_traceback_as_text(ui, page):
    """The message of the error is markup with script, which must neither run nor vanish."""
    page.goto(f"{ui.url}#/job/{job_ids(ui, page)['failing']}/failure")
    shown = page.locator("pre").first
    expect(shown).to_contain_text(f"ValueError: {HOSTILE}")
    expect(shown).to_contain_text("on_row")
    page.goto(f"{ui.url}#/")
    page.get_by_role("link", name="failing").wait_for()
    assert page.title() == "whale-ray"
    assert page.locator("img").count() == 0


def test_two_runs_are_drawn_in_one_chart(ui, page):
    page.goto(ui.url)
    for job in ("finishing", "failing"):
        page.get_by_role("row", name=job).get_by_role("checkbox").check()  # once the row is there
    page.get_by_role("link", name="Compare the two chosen runs").click()
    page.get_by_text("Throughput of sources as a table").click()
    series = page.locator("figure").first.locator("details tbody th")
    # The second run is drawn once its record has been read, behind the first one.
    expect(series).to_have_text([f"rows ({job_id})" for job_id in runs_compared(page)])
    assert_accessible(page)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(HAS_DARK_GRID, arg=True)
    page.emulate_media(color_scheme="dark", media="print")  # paper is white
    page.wait_for_function(HAS_DARK_GRID, arg=False)


HAS_DARK_GRID = """wanted => {
  const canvas = document.querySelector("figure canvas");
  const copy = new OffscreenCanvas(canvas.width, canvas.height);
  const pixels = copy.getContext("2d", {willReadFrequently: true});
  pixels.drawImage(canvas, 0, 0);
  const data = pixels.getImageData(0, 0, canvas.width, canvas.height).data;
  let found = false;
  for (let i = 0; i < data.length; i += 4)
    found ||= data[i + 3] === 255 && [0, 1, 2].every((channel) => data[i + channel] === 0x44);
  return found === wanted;
}"""
"""Whether a pixel of the first chart has the colour of the grid in the dark scheme.

The chart is drawn a few frames after the scheme has changed. A copy of it is read: Chromium warns
of a canvas that is read in each of many frames, unless it was made for that.
"""


def runs_compared(page: Page) -> list[str]:
    first, second = page.url.split("/job/")[1].split("/charts?with=")
    return [first, second]


def test_a_running_job_is_live_and_ends_by_the_token(page, place, tmp_path):
    with Ui(tmp_path / "runs") as ui, job_under_way(tmp_path):
        page.goto(ui.url_with_token)
        page.get_by_role("link", name="running").click()
        page.get_by_text("running", exact=True).wait_for()
        cell = page.get_by_role("row").filter(
            has=page.get_by_role("button", name="rows", exact=True)
        )
        expect(cell).to_contain_text("/s")  # it has counters
        expect(cell).not_to_have_text(cell.inner_text(), use_inner_text=True)  # and new ones
        page.get_by_role("button", name="Rescale …").click()
        dialog = page.get_by_role("dialog")
        expect(dialog.get_by_role("button", name="Rescale", exact=True)).to_be_disabled()
        dialog.get_by_label("totals").fill("2")
        expect(dialog.get_by_role("button", name="Rescale", exact=True)).to_be_enabled()
        page.screenshot(path=tmp_path / "rescale.png")
        assert_accessible(page)
        dialog.get_by_role("button", name="Close").click()
        page.get_by_role("button", name="End the job …").click()
        page.get_by_role("dialog").get_by_role("button", name="End the job").click()
        page.get_by_text("drained", exact=True).wait_for()
        assert "token" not in page.url


def kill_a_worker(job: subprocess.Popen[str]) -> None:
    """Kill a worker process of a job that runs in a process of its own."""
    members = psutil.Process(job.pid).children(recursive=True)
    next(one for one in members if one.name().startswith("whale worker")).kill()


@ONCE
def test_two_browsers_follow_a_job_that_loses_a_worker_until_one_ends_it(browser, page, tmp_path):
    """The other one came without the token: it only reads."""
    reader = browser.new_context().new_page()
    reader.set_default_timeout(WAIT_MS)
    with Ui(tmp_path / "runs") as ui, job_under_way(tmp_path) as process:
        page.goto(ui.url_with_token)
        reader.goto(ui.url)
        both = (page, reader)
        for one in both:
            one.get_by_role("link", name="running").click()
            row = one.get_by_role("row").filter(has=one.get_by_role("button", name="totals"))
            expect(row).to_contain_text("/s")
        kill_a_worker(process)
        for one in both:
            expect(one.locator(".head")).to_contain_text(RESTARTED)
            one.get_by_text("running", exact=True).wait_for()
        page.get_by_role("link", name="Failures").click()
        page.get_by_text(re.compile(f"The job was {RESTARTED.pattern}")).wait_for()
        assert_accessible(page)
        expect(reader.get_by_role("button", name="End the job …")).to_have_count(0)
        page.get_by_role("button", name="End the job …").click()
        page.get_by_role("dialog").get_by_label("cancel at once").check()
        page.get_by_role("dialog").get_by_role("button", name="End the job").click()
        for one in both:
            one.get_by_text("cancelled", exact=True).wait_for()
    reader.context.close()


SUBMITTED = """\
tspec: 1
topology: from-the-builder
operators:
  trips: {source: simulated, rate_per_s: 1000, rows: 100, row_bytes: 24, dop: 1}
  out: {sink: simulated, inputs: [{from: trips}], ppt_us: 0}
"""


@ONCE
def test_a_topology_is_submitted_from_the_builder_and_its_run_is_in_the_list(page, tmp_path):
    with Ui(tmp_path / "runs") as ui:
        page.goto(ui.url_with_token)
        page.get_by_role("link", name="Builder").click()
        page.get_by_label("The topology as text").fill(SUBMITTED)
        expect(page.locator(".svelte-flow__node")).to_have_count(2)
        page.get_by_label("Workers").fill("1")
        page.get_by_role("button", name="Submit").click()
        page.get_by_text("Submitted.").wait_for()
        page.get_by_text("from-the-builder: ended with exit code 0").wait_for()
        page.get_by_role("link", name="Jobs").click()
        row = page.get_by_role("row", name="from-the-builder")
        expect(row).to_contain_text("finished")
        expect(row.get_by_role("cell", name="100", exact=True)).to_be_visible()
        assert_accessible(page)


LAST_STEP = re.compile(r"step (\d+) of \1\b")
"""Where playing stops; each step before it is shown for a moment."""


def test_the_optimizer_goes_forward_back_and_plays(ui, page):
    page.goto(f"{ui.url}#/optimizer")
    page.get_by_role("button", name="Optimize the builder's topology").click()
    page.get_by_role("heading", name="step 1 of").wait_for()
    formula = page.locator(".formula").inner_text()
    assert formula
    assert_accessible(page)
    page.get_by_role("button", name="Forward").click()
    page.get_by_role("heading", name="step 2 of").wait_for()
    page.get_by_role("button", name="Back").click()
    page.get_by_role("heading", name="step 1 of").wait_for()
    expect(page.locator(".formula")).to_have_text(formula)
    page.get_by_role("button", name="Play").click()
    page.get_by_role("heading", name=LAST_STEP).wait_for()


def test_the_builder_draws_what_is_written_and_names_the_line_of_a_mistake(ui, page):
    page.goto(f"{ui.url}#/builder")
    page.locator(".svelte-flow__node").nth(2).wait_for()
    assert_accessible(page)
    page.get_by_label("named").fill("more")
    page.get_by_label("reading").select_option("fares")
    page.get_by_role("button", name="Add", exact=True).click()
    page.locator(".svelte-flow__node").nth(3).wait_for()
    text = page.get_by_label("The topology as text")
    text.fill(text.input_value() + "  bad: {sauce: x}\n")
    page.get_by_text("line 12").wait_for()
    expect(page.get_by_role("button", name="Submit")).to_have_count(0)  # without the token
