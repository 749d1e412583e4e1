"""A one-to-many tree with checkpoints on Ray: a worker is killed, and each row comes once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import whale_ray as whale
from tests.whale_ray.api.test_checkpoints import COUNT, GATE, OFTEN, until, visible
from tests.whale_ray.user_code.gated_numbers import GatedNumbers, kill_worker_once

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(600)]

HOSTS = 3


class NumbersRows(whale.Process):
    """Numbers the rows of each instance; the worker of the last one is killed in the middle."""

    def __init__(self, folder: Path) -> None:
        self._killed = folder / "killed"

    def open(self, context: Any) -> None:
        self._instance, self._seen = context.instance, 0

    def on_row(self, row: Any, out: Any) -> None:
        if self._instance == HOSTS - 1:
            kill_worker_once(row.number, GATE + 500, self._killed)
        self._seen += 1
        out.emit_row(key=self._instance, nth=self._seen, number=row.number)


def test_a_tree_that_loses_a_worker_in_the_middle_brings_each_row_once(
    cluster: Any, tmp_path: Path
) -> None:
    topology = whale.Topology("tree")
    rows = topology.source(GatedNumbers(COUNT, GATE, tmp_path / "go"), id="numbers", parallelism=1)
    every = rows.broadcast().process(lambda: NumbersRows(tmp_path), id="every", parallelism=HOSTS)
    every.sink(whale.sinks.parquet(str(tmp_path / "out")), id="out")
    settings = {"runtime.hosts": HOSTS, "runtime.route": "chain"}
    checkpoints: dict[str, Any] = {"checkpoints": tmp_path / "state", **OFTEN}
    job = whale.submit(topology, workers=HOSTS, address="auto", settings=settings, **checkpoints)
    until(lambda: len(visible(tmp_path)) == HOSTS * GATE, "the first half is not visible", 150)
    (tmp_path / "go").touch()
    job.wait(120)
    metrics = job.metrics().checkpoints
    assert metrics is not None
    assert metrics.restored > 0
    assert job.outcome().restarts == 1
    everything = [(host, nth) for host in range(HOSTS) for nth in range(1, COUNT + 1)]
    assert visible(tmp_path) == everything
