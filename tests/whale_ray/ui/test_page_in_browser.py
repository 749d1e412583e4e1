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
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from whale_ray.records.describing import FORMAT
from whale_ray.records.folders import DESCRIPTION, HISTORY, NOW
from whale_ray.ui.server import STATIC

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, LocatorAssertions, Page

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
VIEWS = ("topology", "charts", "hosts", "trees", "decisions", "checkpoints", "failure")
WAIT_MS = 180_000  # a job that others keep from the processors takes a minute to start
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


@contextmanager
def job_under_way(place: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the job that goes on for minutes; kill it if it has not ended by then."""
    with run_job("running", place, wait=False) as process:
        try:
            yield process
        finally:
            process.kill()


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


def expect(part: Locator) -> LocatorAssertions:
    """Wait until what is then said of a part of the page is so, on a loaded machine, too."""
    from playwright.sync_api import expect

    return expect(part)


ONCE = pytest.mark.parametrize("page", ["light"], indirect=True)
"""For a test of what happens, not of what it looks like."""


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
        expect(cell).not_to_have_text(cell.inner_text())  # and new ones
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
            expect(one.locator(".head")).to_contain_text("restarted 1 time")
            one.get_by_text("running", exact=True).wait_for()
        page.get_by_role("link", name="Failures").click()
        page.get_by_text("The job was restarted 1 time").wait_for()
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
    expect(page.get_by_role("button", name="Submit")).to_have_count(0)  # without the token


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
        "format": FORMAT, "id": job_id, "name": "many", "pid": os.getpid(), "process_created_s": 0,
        "began_s": 0, "bounded": True, "checkpoints": "", "operators": operators,
        "ray_dashboard_url": "",
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
        "format": FORMAT, "at_s": 1.0, "wall_s": 0, "state": "running", "attempt": 0, "cpu_s": 0,
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
        rows = page.locator("section[aria-label=Decisions] tbody tr")
        expect(rows).to_have_count(2)
        first, second = rows.first, rows.last
        expect(first).to_contain_text(HOSTILE)
        assert first.locator("td").all_inner_texts()[:3] == ["1.5 s", "Rows per batch", "64"]
        expect(first).to_contain_text("busy = 0.9, l_i_ns = –")
        expect(second.locator("td").first).to_have_text("before")
        page.screenshot(path=tmp_path / "decisions.png", full_page=True)
        assert_accessible(page)


def run_with_switches(runs: Path) -> str:
    """Write a run whose tree of four hosts became a chain, and then lost one host."""
    job_id = many_instances(runs)
    described_path, now_path = runs / job_id / DESCRIPTION, runs / job_id / NOW
    star = {"root": 0, "edges": [[0, 1], [0, 2], [0, 3]]}
    chain = {"root": 0, "edges": [[0, 1], [1, 2], [2, 3]]}
    repaired = {"root": 0, "edges": [[0, 1], [1, 3]]}
    load = {
        "rate_slices_per_s": 1000.0, "wanted_degree": 1, "queue_slices": 90.0,
        "capacity_slices": 100.0, "send_s": 0.0001, "reason": "queue is long",
    }  # fmt: skip
    switch = {
        "stream": 4, "moves": 2, "committed_ns": 2, "ended_ns": 3_000_000, "aborted": "",
    }  # fmt: skip
    switches = [
        {**switch, "why": "scale-down", "epoch": 1, "decided_ns": 1, "load": load,
         "before": star, "after": chain, "degree_before": 3, "degree_after": 1},
        {**switch, "why": "repair", "epoch": 2, "decided_ns": 4, "load": None,
         "before": chain, "after": repaired, "degree_before": 1, "degree_after": 1},
    ]  # fmt: skip
    ring = {"id": 4, "edge": 0, "producer": 0, "consumers": [2, 4, 6], "capacity_bytes": 1 << 20}
    described = json.loads(described_path.read_text())
    described |= {"rings": [{**ring, "multicast": True}]}
    described |= {"ray_dashboard_url": "http://127.0.0.1:8265"}
    now = json.loads(now_path.read_text())
    now |= {"trees": [{"stream": 4, **repaired, "degree": 1, "load": load}], "switches": switches}
    described_path.write_text(json.dumps(described))
    now_path.write_text(json.dumps(now))
    return job_id


def test_a_switch_shows_the_trees_before_and_after_it_by_the_keyboard(page, tmp_path):
    job_id = run_with_switches(tmp_path / "runs")
    with Ui(tmp_path / "runs") as ui:
        page.goto(f"{ui.url}#/job/{job_id}/trees")
        nodes = page.locator(".svelte-flow__node")
        expect(nodes).to_have_count(3)  # the tree in force
        page.get_by_role("button", name="Epoch 1 of stream 4").press("Enter")
        expect(page.get_by_role("heading", name="Switch to epoch 1")).to_be_focused()
        expect(nodes).to_have_count(8)
        page.get_by_text("Both trees as a table").press("Enter")
        rows = page.get_by_role("group").filter(has_text="Both trees").locator("tbody tr")
        expect(rows).to_have_text(
            [
                "host-0 the source the source no",
                "host-1 host-0 host-0 no",
                "host-2 host-0 host-1 yes",
                "host-3 host-0 host-2 yes",
            ],
            use_inner_text=True,
        )
        page.screenshot(path=tmp_path / "switch.png", full_page=True)
        assert_accessible(page)
        page.get_by_role("button", name="Epoch 2 of stream 4").press("Enter")
        gone = "host-2 host-1 – (not in the tree) yes"
        expect(rows.nth(2)).to_have_text(gone, use_inner_text=True)
        page.get_by_role("button", name="Back to the tree in force").press("Enter")
        expect(nodes).to_have_count(3)
        assert_accessible(page)
        ray = page.get_by_role("link", name="Ray's dashboard")
        expect(ray).to_have_attribute("href", "http://127.0.0.1:8265")


@ONCE
def test_only_an_address_of_the_web_becomes_a_link(page, tmp_path):
    job_id = run_with_switches(tmp_path / "runs")
    path = tmp_path / "runs" / job_id / DESCRIPTION
    described = json.loads(path.read_text())
    path.write_text(json.dumps({**described, "ray_dashboard_url": "javascript:alert(1)"}))
    with Ui(tmp_path / "runs") as ui:
        page.goto(f"{ui.url}#/job/{job_id}/trees")
        page.get_by_role("heading", name="The tree in force").wait_for()
        assert page.get_by_role("link", name="Ray's dashboard").count() == 0


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
        expect(page.locator(".cell")).to_have_count(511)
        page.screenshot(path=tmp_path / "many.png", full_page=True)
        assert_accessible(page)
        frames_per_s = page.evaluate(FRAMES)
        paint_ms = page.evaluate(FIRST_PAINT)
    sys.stderr.write(f"{frames_per_s:.0f} frames/s, first paint after {paint_ms:.0f} ms\n")
