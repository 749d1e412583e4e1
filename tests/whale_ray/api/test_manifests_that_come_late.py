"""A job fails while the manifest of an epoch is being written: what it names stays.

The manifest counts once it is there, however late. What sinks have staged for it must not be
removed before that is known.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import whale_ray as whale
from whale_ray.configs.errors import UserFunctionError
from whale_ray.state.epochs.local_files import LocalFiles
from whale_ray.transport.clock import SystemClock

ROWS = 5_000
"""More than are read before a manifest is written."""
LATE_NS = 300_000_000


@pytest.mark.parametrize("blocked", [1, 3], ids=["the first one", "a later one"])
def test_a_job_goes_on_from_a_manifest_that_came_while_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocked: int
) -> None:
    genuine, clock = LocalFiles.put, SystemClock()
    begun, failing = threading.Event(), threading.Event()
    manifests = 0

    def slow(files: LocalFiles, name: str, data: bytes) -> None:
        nonlocal manifests
        manifests += name.startswith("manifests/")
        if name.startswith("manifests/") and manifests == blocked:
            begun.set()
            assert failing.wait(60)
            clock.sleep_ns(LATE_NS)  # the disk takes its time; the job fails meanwhile
        genuine(files, name, data)

    monkeypatch.setattr(LocalFiles, "put", slow)
    job_of = Jobs(tmp_path, begun, failing)
    with pytest.raises(UserFunctionError, match="it fails here"):
        job_of.run()
    names = sorted(path.name for path in (tmp_path / "state" / "manifests").iterdir())
    assert int(names[-1].split("-")[1]) == blocked, "the late one counts"
    job = job_of.run(restore="latest")
    metrics = job.metrics().checkpoints
    assert metrics is not None and metrics.restored == blocked
    assert sorted(job.results("out").to_arrow()["n"].to_pylist()) == list(range(ROWS))


class Jobs:
    """A job that fails once, while a manifest is being written; and the one that goes on."""

    def __init__(self, folder: Path, begun: threading.Event, failing: threading.Event) -> None:
        self._folder, self._begun, self._failing = folder, begun, failing

    def run(self, **more: Any) -> whale.Job:
        topology = whale.Topology("late")
        rows = topology.source(
            whale.sources.iterable([{"n": n} for n in range(ROWS)]), id="rows"
        ).map(self._fail_once, id="fails")
        rows.sink(whale.sinks.parquet(self._folder / "out"), id="out")
        settings = {"runtime.source_batch_rows": 10, "checkpoints.interval_ms": 10}
        return whale.run(topology, checkpoints=self._folder / "state", settings=settings, **more)

    def _fail_once(self, row: Any) -> dict[str, int]:
        if self._begun.is_set() and not self._failing.is_set():
            self._failing.set()
            raise ValueError("it fails here")
        if not self._failing.is_set():
            SystemClock().sleep_ns(1_000_000)
        return {"n": row.n}
