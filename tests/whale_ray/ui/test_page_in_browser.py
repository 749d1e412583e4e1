"""The page in a real browser (Chromium), fed by real jobs: every view, axe-core, hostile rows.

The page must have been built (`make ui`). A violation of its Content-Security-Policy, an error in
its script or anything that axe-core finds fails a test.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from whale_ray.records.folders import DESCRIPTION, HISTORY, NOW
from whale_ray.ui.server import STATIC

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
VIEWS = ("topology", "charts", "hosts", "trees", "decisions", "checkpoints", "failure")
WAIT_MS = 60_000
HOSTILE = "<img src=x onerror=document.title='broken'><script>document.title='broken'</script>"

JOB = """
    import sys
    import whale_ray as whale
    from whale_ray.testing import ListSource, Pause

    kind, folder = sys.argv[1], sys.argv[2]
    rows = [{"n": n, "word": HOSTILE} for n in range(2000)]
    if kind == "running":
        rows = [item for row in rows * 100 for item in (row, Pause(1))]

    class Total(whale.Process):
        def open(self, context):
            self.total = 0
        def on_row(self, row, out):
            if kind == "failing" and row.n == 1500:
                raise ValueError(row.word)
            self.total += row.n
            out.emit_row(total=self.total)

    topology = whale.Topology(kind)
    source = topology.source(ListSource(rows), id="rows")
    totals = source.key_by("n").process(Total, id="totals", parallelism=4)
    totals.sink(whale.sinks.parquet(folder), id="out")
    state = folder + "-state" if kind == "running" else None
    whale.submit(
        topology, on="processes", workers=3, settings={"runtime.hosts": 3}, checkpoints=state
    ).wait()
""".replace("HOSTILE", repr(HOSTILE))


def run_job(kind: str, place: Path, *, wait: bool = True) -> subprocess.Popen[str]:
    """Run a job in a process of its own, as a user does, recorded below `place`."""
    script = place / f"{kind}.py"
    script.write_text(textwrap.dedent(JOB))
    environment = {**os.environ, "WHALE_RAY_RECORDS__FOLDER": str(place / "runs")}
    process = subprocess.Popen(
        [sys.executable, str(script), kind, str(place / kind)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    if wait:
        process.communicate(timeout=300)
    return process


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the runs of a job that finished and of one that failed."""
    place = tmp_path_factory.mktemp("page")
    for kind in ("finishing", "failing"):
        run_job(kind, place)
    return place


class Ui:
    """`whale-ray ui` in a process of its own."""

    def __init__(self, runs: Path) -> None:
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "whale_ray.cli.main",
                "ui",
                "--port",
                "0",
                "--folder",
                str(runs),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().split()[2]
        self.url_with_token = self._process.stdout.readline().split()[2]

    def __enter__(self) -> Ui:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.communicate(timeout=60)


@pytest.fixture(scope="module")
def ui(place: Path) -> Iterator[Ui]:
    with Ui(place / "runs") as ui:
        yield ui


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    assert (STATIC / "index.html").is_file(), "the page is not built: make ui"
    from playwright.sync_api import sync_playwright

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


def job_ids(ui: Ui, page: Page) -> dict[str, str]:
    """Return the id of each job by its name."""
    jobs = page.request.get(f"{ui.url}api/jobs").json()
    return {job["name"]: job["id"] for job in jobs}


def assert_accessible(page: Page) -> None:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page).response["violations"]
    told = [f"{one['id']}: {one['nodes'][0]['html'][:200]}" for one in found]
    assert not told


def test_without_a_job_the_page_says_how_to_begin(browser, page, tmp_path):
    with Ui(tmp_path / "none") as ui:
        page.goto(ui.url)
        page.get_by_role("heading", name="No job yet").wait_for()
        assert_accessible(page)


def test_the_list_and_every_view_of_each_job(ui, page, tmp_path):
    page.goto(ui.url)
    page.get_by_role("link", name="finishing").wait_for()
    assert_accessible(page)
    for name, job_id in job_ids(ui, page).items():
        for view in VIEWS:
            page.goto(f"{ui.url}#/job/{job_id}/{view}")
            page.locator("nav.tabs a[aria-current=page]").wait_for()
            assert page.get_by_role("heading", level=1).inner_text().startswith(name)
            page.screenshot(path=tmp_path / f"{name}-{view}.png", full_page=True)
            assert_accessible(page)


def test_the_topology_shows_what_was_counted(ui, page):
    page.goto(f"{ui.url}#/job/{job_ids(ui, page)['finishing']}/topology")
    row = page.get_by_role("row").filter(has=page.get_by_role("button", name="totals", exact=True))
    assert "2,000" in row.inner_text()
    assert page.locator(".svelte-flow__node").count() == 3
    page.get_by_role("button", name="totals", exact=True).click()
    assert page.get_by_role("region", name="Instances of totals").locator("tbody tr").count() == 4


def test_a_graph_is_shown_whole_when_the_window_becomes_narrow(ui, page, tmp_path):
    from playwright.sync_api import expect

    page.goto(f"{ui.url}#/job/{job_ids(ui, page)['finishing']}/topology")
    last = page.locator(".svelte-flow__node").nth(2)
    expect(last).to_be_in_viewport(ratio=0.99)
    page.set_viewport_size({"width": 420, "height": 900})
    expect(last).to_be_in_viewport(ratio=0.99)
    page.screenshot(path=tmp_path / "narrow.png", full_page=True)


def test_a_failure_shows_the_users_traceback_as_text(ui, page):
    """The message of the error is markup with script, which must neither run nor vanish."""
    page.goto(f"{ui.url}#/job/{job_ids(ui, page)['failing']}/failure")
    shown = page.locator("pre").first.inner_text()
    assert f"ValueError: {HOSTILE}" in shown and "on_row" in shown
    page.goto(f"{ui.url}#/")
    page.get_by_role("link", name="failing").wait_for()
    assert page.title() == "whale-ray"
    assert page.locator("img").count() == 0


def test_two_runs_are_drawn_in_one_chart(ui, page):
    from playwright.sync_api import expect

    page.goto(ui.url)
    for job in ("finishing", "failing"):
        page.get_by_role("row", name=job).get_by_role("checkbox").check()  # once the row is there
    page.get_by_role("link", name="Compare the two chosen runs").click()
    page.get_by_text("Throughput of sources as a table").click()
    series = page.locator("figure").first.locator("details tbody th")
    # The second run is drawn once its record has been read, behind the first one.
    expect(series).to_have_text([f"rows ({job_id})" for job_id in runs_compared(page)])


def runs_compared(page: Page) -> list[str]:
    first, second = page.url.split("/job/")[1].split("/charts?with=")
    return [first, second]


def test_a_running_job_is_live_and_ends_by_the_token(page, place, tmp_path):
    from playwright.sync_api import expect

    process = run_job("running", tmp_path, wait=False)
    with Ui(tmp_path / "runs") as ui, process:
        page.goto(ui.url_with_token)
        page.get_by_role("link", name="running").click()
        page.get_by_text("running", exact=True).wait_for()
        cell = page.get_by_role("row").filter(
            has=page.get_by_role("button", name="rows", exact=True)
        )
        expect(cell).to_contain_text("/s", timeout=WAIT_MS)  # it has counters
        expect(cell).not_to_have_text(cell.inner_text(), timeout=WAIT_MS)  # and new ones
        page.get_by_role("button", name="Rescale …").click()
        dialog = page.get_by_role("dialog")
        assert dialog.get_by_role("button", name="Rescale", exact=True).is_disabled()
        dialog.get_by_label("totals").fill("2")
        assert dialog.get_by_role("button", name="Rescale", exact=True).is_enabled()
        page.screenshot(path=tmp_path / "rescale.png")
        assert_accessible(page)
        dialog.get_by_role("button", name="Leave it").click()
        page.get_by_role("button", name="End the job …").click()
        page.get_by_role("dialog").get_by_role("button", name="End the job").click()
        page.get_by_text("drained", exact=True).wait_for()
        assert "token" not in page.url
        process.kill()


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
    assert page.locator(".formula").inner_text() == formula
    page.get_by_role("button", name="Play").click()
    page.get_by_role("heading", name="step 2 of").wait_for()


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
    assert page.get_by_role("button", name="Submit").count() == 0  # without the token


def many_instances(runs: Path) -> str:
    """Write a run of 480 matching instances on 30 hosts, all busy, and return its id."""
    job_id, hosts, instances = "many-00000000", 30, 480
    operators = [
        {"id": name, "kind": kind, "verb": kind, "stage": stage, "parallelism": dop,
         "location": "", "state": []}
        for stage, (name, kind, dop) in enumerate(
            [("requests", "source", 1), ("match", "co-process", instances), ("out", "sink", 30)]
        )
    ]  # fmt: skip
    placed = [[0], [n * hosts * 2 // instances for n in range(instances)], list(range(30))]
    folder = runs / job_id
    folder.mkdir(parents=True)
    described = {
        "format": 1, "id": job_id, "name": "many", "pid": os.getpid(), "process_created_s": 0,
        "began_s": 0, "bounded": True, "checkpoints": "", "operators": operators,
        "stages": [
            {"id": n, "operators": [one["id"]], "parallelism": one["parallelism"],
             "instance_worker": placed[n]}
            for n, one in enumerate(operators)
        ],
        "edges": [
            {"id": n, "source": source, "target": target, "grouping": "broadcast",
             "carried_by": "shared memory", "reason": ""}
            for n, (source, target) in enumerate([("requests", "match"), ("match", "out")])
        ],
        "hosts": [f"host-{n}" for n in range(hosts)],
        "worker_host": [n // 2 for n in range(hosts * 2)],
        "rings": [],
    }  # fmt: skip
    now = {
        "format": 1, "at_s": 1.0, "wall_s": 0, "state": "running", "attempt": 0, "cpu_s": 0,
        "operators": [], "members": [], "rings": [], "relays": [], "trees": [], "switches": [],
        "instances": [
            [place, n, worker, 1000, (n % 11) / 10, (n % 7) / 7, 0]
            for place, workers in enumerate(placed) for n, worker in enumerate(workers)
        ],
        "throttled": {}, "checkpoints": None, "end": None,
        "decisions": {"earlier": 3, "steps": [
            {"operator": "requests", "decides": "dop", "value": 1, "formula": "dop",
             "numbers": {"ppt_ns": 5.0}, "reason": "the user has set it"},
            {"operator": "requests", "decides": "batch_rows", "value": 64, "formula": HOSTILE,
             "numbers": {"busy": 0.9, "l_i_ns": None}, "reason": HOSTILE, "at_s": 1.5},
        ]},
    }  # fmt: skip
    (folder / DESCRIPTION).write_text(json.dumps(described))
    (folder / NOW).write_text(json.dumps(now))
    (folder / HISTORY).write_text("")
    return job_id


def test_decisions_are_shown_the_last_first_with_their_numbers_as_text(page, tmp_path):
    job_id = many_instances(tmp_path / "runs")
    with Ui(tmp_path / "runs") as ui:
        page.goto(f"{ui.url}#/job/{job_id}/decisions")
        page.get_by_text("3 earlier ones are left out").wait_for()
        first, second = page.locator("section[aria-label=Decisions] tbody tr").all()
        assert HOSTILE in first.inner_text()
        assert first.locator("td").all_inner_texts()[:3] == ["1.5 s", "Rows per batch", "64"]
        assert "busy = 0.9, l_i_ns = –" in first.inner_text()
        assert second.locator("td").first.inner_text() == "before"
        page.screenshot(path=tmp_path / "decisions.png", full_page=True)
        assert_accessible(page)


FRAMES = """async () => {
    const pane = document.querySelector(".svelte-flow__pane");
    const box = pane.getBoundingClientRect();
    const times = [];
    const begin = performance.now();
    while (performance.now() - begin < 3000) {
        const at = { clientX: box.x + 300, clientY: box.y + 200, bubbles: true, cancelable: true };
        const deltaY = times.length % 40 < 20 ? 8 : -8;
        pane.dispatchEvent(new WheelEvent("wheel", { ...at, deltaY }));
        times.push(await new Promise(requestAnimationFrame));
    }
    return (times.length - 1) / (times.at(-1) - times[0]) * 1000;
}"""


FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def test_480_instances_on_30_hosts_are_shown_and_stay_smooth(page, tmp_path):
    """Frames per second while it is zoomed are printed: a bound would fail on a busy machine."""
    job_id = many_instances(tmp_path / "runs")
    with Ui(tmp_path / "runs") as ui:
        page.goto(f"{ui.url}#/job/{job_id}/hosts")
        page.locator(".svelte-flow__node").nth(29).wait_for()
        assert page.locator(".cell").count() == 511
        page.screenshot(path=tmp_path / "many.png", full_page=True)
        assert_accessible(page)
        frames_per_s = page.evaluate(FRAMES)
        paint_ms = page.evaluate(FIRST_PAINT)
    sys.stderr.write(f"{frames_per_s:.0f} frames/s, first paint after {paint_ms:.0f} ms\n")
