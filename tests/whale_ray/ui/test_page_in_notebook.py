"""`job.ui()` in a notebook that a real kernel executes, its output shown by a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.whale_ray.api.test_notebook import SETUP, Notebook, opened, shown
from tests.whale_ray.ui.browsing import ONCE, expect

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

SUBMIT = """
    job = whale.submit(
        endless(), on="processes", workers=1, settings={"records.folder": "runs of its own"}
    )
    job.ui()
"""


class OwnThread:
    """Executes a notebook's cells in a thread: the browser's event loop has the main one."""

    def __init__(self, folder: Path) -> None:
        self._stack = ExitStack()
        self._executor = self._stack.enter_context(ThreadPoolExecutor(1))
        context = opened(folder)
        self._notebook: Notebook = self._executor.submit(context.__enter__).result()
        end = context.__exit__
        self._stack.callback(lambda: self._executor.submit(end, None, None, None).result())
        self.execute(SETUP)

    def __enter__(self) -> OwnThread:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def execute(self, source: str) -> Any:
        return self._executor.submit(self._notebook.execute, source).result()


@contextmanager
def web_page(folder: Path, html: str) -> Iterator[str]:
    """Serve a page as Jupyter does: from the loopback, at another port than the job's page."""
    (folder / "index.html").write_text(f"<!doctype html><title>notebook</title>{html}")
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@ONCE
def test_a_cell_shows_the_page_of_a_job_that_runs_and_drains(page, tmp_path):
    """The job has a folder of records of its own, which the page must read."""
    (tmp_path / "web").mkdir()
    with OwnThread(tmp_path) as notebook:
        html = shown(notebook.execute(SUBMIT))["text/html"]
        with web_page(tmp_path / "web", html) as url:
            page.goto(url)
            shown_job = page.frame_locator("iframe")
            expect(shown_job.get_by_role("heading", level=1)).to_contain_text("endless endless-")
            shown_job.get_by_text("running", exact=True).wait_for()
            few = shown_job.get_by_role("row").filter(
                has=shown_job.get_by_role("button", name="few", exact=True)
            )
            expect(few).to_contain_text("/s")
            expect(few).not_to_have_text(few.inner_text(), use_inner_text=True)  # it is live
            page.screenshot(path=tmp_path / "notebook.png")
            expect(shown_job.get_by_role("button", name="End the job …")).to_have_count(0)
            notebook.execute("job.stop()")
            shown_job.get_by_text("drained", exact=True).wait_for()
            page.goto("about:blank")


def test_a_cell_says_why_there_is_no_page(tmp_path):
    with OwnThread(tmp_path) as notebook:
        notebook.execute(
            """
            job = whale.run(fares(), settings={"records.interval_ms": 0})
            try:
                job.ui()
            except whale.errors.UsageError as error:
                told = str(error)
            """
        )
        told = shown(notebook.execute("told"))["text/plain"]
    assert "is not recorded: set records.interval_ms, 1000 by default" in told
