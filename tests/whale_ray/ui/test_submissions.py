"""Processes of topologies that were submitted on the page: their lines, and their end."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from whale_ray.configs.errors import ResourceError, UsageError
from whale_ray.ui import actions
from whale_ray.ui.actions import Submissions
from whale_ray.ui.rescaling import Rescale

TSPEC = """\
tspec: 1
topology: played
operators:
  trips: {source: simulated, rate_per_s: 1000, rows: 10, row_bytes: 24, dop: 1}
  out: {sink: simulated, inputs: [{from: trips}], ppt_us: 0}
"""


def runs(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every submitted topology be a process that does this instead."""
    start = asyncio.create_subprocess_exec

    async def start_code(*_: str, **how: Any) -> asyncio.subprocess.Process:
        return await start(sys.executable, "-c", code, **how)

    monkeypatch.setattr(actions.asyncio, "create_subprocess_exec", start_code)


async def until(submissions: Submissions, line: str) -> None:
    while line not in submissions.output:
        await asyncio.sleep(0.01)


def test_a_long_line_is_left_out_and_the_next_ones_are_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs("print('begin'); print('x' * 1_000_000); print('end')", monkeypatch)

    async def submit() -> list[str]:
        submissions = Submissions(tmp_path)
        await submissions.submit(TSPEC, workers=1)
        await asyncio.wait_for(until(submissions, "played: ended with exit code 0"), 60)
        return list(submissions.output)

    lines = asyncio.run(submit())
    assert lines[0] == "played: begin" and lines[-2] == "played: end"
    assert any("65,536 bytes without a new line are left out" in line for line in lines)
    assert sum(map(len, lines)) < 200_000


def test_it_is_recorded_where_the_page_looks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs("import os; print(os.environ['WHALE_RAY_RECORDS__FOLDER'])", monkeypatch)

    async def submit() -> list[str]:
        submissions = Submissions(tmp_path)
        await submissions.submit(TSPEC, workers=1)
        await asyncio.wait_for(until(submissions, "played: ended with exit code 0"), 60)
        return list(submissions.output)

    assert asyncio.run(submit())[0] == f"played: {tmp_path}"


def test_what_does_not_drain_in_time_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs(
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('deaf', flush=True); signal.pause()",
        monkeypatch,
    )

    async def submit() -> list[str]:
        submissions = Submissions(tmp_path)
        await submissions.submit(TSPEC, workers=1)
        await asyncio.wait_for(until(submissions, "played: deaf"), 60)
        await asyncio.wait_for(submissions.close(drain_timeout_s=0.1), 60)
        return list(submissions.output)

    assert asyncio.run(submit())[-1] == "played: ended with exit code -9"


def test_a_job_that_is_rescaled_twice_goes_on_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs("print('goes on')", monkeypatch)
    monkeypatch.setattr(actions, "is_alive", lambda folder: True)
    end: list[dict[str, Any]] = []

    async def rescale_twice() -> list[str]:
        submissions = Submissions(tmp_path)

        def rescale() -> None:
            submissions.rescale(tmp_path, Rescale({"counts": 2}), lambda _: next(iter(end), None))

        rescale()
        with pytest.raises(UsageError, match="stops already"):
            rescale()
        end.append({"state": "stopped", "checkpoint": "file:///state/epoch-3"})
        ended = f"{tmp_path.name}: ended with exit code 0"
        await asyncio.wait_for(until(submissions, ended), 60)
        await asyncio.wait_for(submissions.close(), 60)
        return list(submissions.output)

    assert sum("goes on" in line for line in asyncio.run(rescale_twice())) == 1


def test_nothing_is_started_by_a_server_that_has_ended(tmp_path: Path) -> None:
    async def submit() -> None:
        submissions = Submissions(tmp_path)
        await submissions.close()
        await submissions.submit(TSPEC, workers=1)

    with pytest.raises(ResourceError, match="this server ends"):
        asyncio.run(submit())
