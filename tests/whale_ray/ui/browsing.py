"""`whale-ray ui` and jobs in processes of their own, for tests of the page in a real browser."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Locator, LocatorAssertions, Page

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
        rows = [item for row in rows * 100 for item in (row, Pause(10))]

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
    if kind == "failing":  # before its second sample
        environment["WHALE_RAY_RECORDS__INTERVAL_MS"] = "3600000"
    process = subprocess.Popen(
        [sys.executable, str(script), kind, str(place / kind)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    if wait:
        process.communicate(timeout=300)
    return process


@contextmanager
def job_under_way(place: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the job that goes on for half an hour; kill it if it has not ended by then.

    A test ends it sooner, and on a loaded machine takes minutes itself.
    """
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
