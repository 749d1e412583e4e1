"""The page in a real browser (Chromium), fed by written records: many instances, switches, links.

The page must have been built (`make ui`). A violation of its Content-Security-Policy, an error in
its script or anything that axe-core finds fails a test.
"""

from __future__ import annotations

import json
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.whale_ray.ui.browsing import HOSTILE, ONCE, Ui, assert_accessible, expect
from whale_ray.records.describing import FORMAT
from whale_ray.records.folders import DESCRIPTION, HISTORY, NOW

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


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
        "format": FORMAT, "id": job_id, "name": "many", "pid": os.getpid(), "process_started_s": 0,
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
def test_only_an_address_of_the_web_becomes_a_link_and_no_name_widens_the_page(page, tmp_path):
    job_id = run_with_switches(tmp_path / "runs")
    path = tmp_path / "runs" / job_id / DESCRIPTION
    described = json.loads(path.read_text())
    described["hosts"][0] = "w" * 300
    described["edges"][0]["source"] = "w" * 300
    path.write_text(json.dumps({**described, "ray_dashboard_url": "javascript:alert(1)"}))
    with Ui(tmp_path / "runs") as ui:
        page.goto(f"{ui.url}#/job/{job_id}/trees")
        page.get_by_role("heading", name="The tree in force").wait_for()
        assert page.get_by_role("link", name="Ray's dashboard").count() == 0
        width = "document.documentElement.scrollWidth"
        assert page.evaluate(width) == 1300
        page.get_by_role("button", name="Epoch 1 of stream 4").click()
        page.get_by_role("heading", name="Switch to epoch 1").wait_for()
        assert page.evaluate(width) == 1300


def links_between_all(runs: Path, job_id: str) -> None:
    """Let each host have sent to each other; one link is down, and one reader is slow."""
    path = runs / job_id / NOW
    hosts = [f"host-{n}" for n in range(30)]
    link = {"way": "tcp", "up": True, "sent_bytes": 1000, "received_bytes": 1000, "rtt_ms": 1.0,
            "waited": 0, "last_failure": ""}  # fmt: skip
    down = {"up": False, "last_failure": "refused"}
    relays = [
        {"host": host, "links": [{**link, "peer": peer} for peer in hosts if peer != host],
         "waits_for": [], "sent_bytes_per_s": 1000.0}
        for host in hosts
    ]  # fmt: skip
    relays[0]["links"][0] |= down  # to host-1
    relays[8] |= {"waits_for": ["host-2"]}
    path.write_text(json.dumps({**json.loads(path.read_text()), "relays": relays}))


COVERED = """() => {
    const boxes = [...document.querySelectorAll(".svelte-flow__node")].map((node) => {
        const { e: x, f: y } = new DOMMatrix(getComputedStyle(node).transform);
        return { x, y, right: x + node.offsetWidth, bottom: y + node.offsetHeight };
    });
    const behind = (at) => boxes.filter(
        (box) => at.x > box.x && at.x < box.right && at.y > box.y && at.y < box.bottom).length;
    const found = { hidden: 0, seen: 0 };
    for (const path of document.querySelectorAll(".links path"))
        for (let length = 0; length < path.getTotalLength(); length += 200)
            found[behind(path.getPointAtLength(length)) ? "hidden" : "seen"] += 1;
    return found;
}"""
"""How many points of the links, 200 apart, are behind a box and how many are not."""


LINKS = """wanted => {
    const lines = [...document.querySelectorAll(".links path")];
    return String(lines.map((line) => line.outerHTML.split("M").length - 1)) === String(wanted);
}"""


def wait_for_links(page: Page, wanted: list[int]) -> None:
    """Wait until so many links are drawn as usual, as slow and as down."""
    page.wait_for_function(LINKS, arg=wanted)


@ONCE
def test_links_are_drawn_beside_the_boxes_and_those_of_one_host_alone(page, tmp_path):
    job_id = many_instances(tmp_path / "runs")
    links_between_all(tmp_path / "runs", job_id)
    with Ui(tmp_path / "runs") as ui:
        page.goto(f"{ui.url}#/job/{job_id}/hosts")
        page.locator(".svelte-flow__node").nth(29).wait_for()
        wait_for_links(page, [433, 1, 1])  # 30 * 29 / 2 in all
        found = page.evaluate(COVERED)
        assert (found["hidden"], found["seen"] > 1_000) == (0, True)
        rows = page.get_by_role("region", name="Links").locator("tbody tr")
        expect(rows).to_have_count(100)
        expect(page.get_by_text("100 of 870 are shown")).to_be_visible()
        expect(rows.first).to_contain_text("host-0 host-1 down", use_inner_text=True)
        page.screenshot(path=tmp_path / "links.png", full_page=True)
        page.locator(".svelte-flow__node").nth(1).click()
        expect(page.locator(".node.marked")).to_have_text(re.compile("host-1"))
        wait_for_links(page, [28, 0, 1])
        expect(rows).to_have_count(2 * 29)
        page.screenshot(path=tmp_path / "links-of-one.png", full_page=True)


FRAMES = """async () => {
    const pane = document.querySelector(".svelte-flow__pane");
    const box = pane.getBoundingClientRect();
    const times = [];
    const begin = performance.now();
    while (performance.now() - begin < 3000 || times.length < 2) {
        const at = { clientX: box.x + 300, clientY: box.y + 200, bubbles: true, cancelable: true };
        const deltaY = times.length % 40 < 20 ? 8 : -8;
        pane.dispatchEvent(new WheelEvent("wheel", { ...at, deltaY }));
        times.push(await new Promise(requestAnimationFrame));
    }
    return [times.length - 1, (times.at(-1) - times[0]) / 1000];
}"""


FIRST_PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def browser_cpu_s() -> float:
    """Return the processor time that all of Chromium's processes have taken."""
    spent = 0.0
    for one in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it ends meanwhile, or waits for being ended
            if "chrom" in one.name():
                times = one.cpu_times()
                spent += times.user + times.system
    return spent


def test_480_instances_on_30_hosts_are_shown_and_stay_smooth(page, tmp_path):
    """Frames per second while it is zoomed, and the processor time of each, are printed.

    A bound would fail on a busy machine.
    """
    job_id = many_instances(tmp_path / "runs")
    with Ui(tmp_path / "runs") as ui:
        page.goto(f"{ui.url}#/job/{job_id}/hosts")
        page.locator(".svelte-flow__node").nth(29).wait_for()
        expect(page.locator(".cell")).to_have_count(511)
        page.screenshot(path=tmp_path / "many.png", full_page=True)
        assert_accessible(page)
        links_between_all(tmp_path / "runs", job_id)
        page.get_by_role("heading", name="Links between hosts").wait_for()
        spent_s = browser_cpu_s()
        frames, seconds = page.evaluate(FRAMES)
        cpu_ms = (browser_cpu_s() - spent_s) / frames * 1000
        paint_ms = page.evaluate(FIRST_PAINT)
    sys.stderr.write(
        f"{frames / seconds:.0f} frames/s of {cpu_ms:.1f} ms of processor time each, "
        f"first paint after {paint_ms:.0f} ms\n"
    )
