"""Jobs that go on from an older checkpoint than the newest: what they commit then is not lost.

They have the same epochs again, with other rows, than the job before, which has committed its own.
Kafka's sink is tested by `tests/operators/kafka/test_commit_protocol.py`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

import whale_ray as whale
from tests.operators.sinks.postgres_server import ask
from tests.whale_ray.applications.paced_table import PacedTable, PlannedFailureError
from whale_ray.operators.sinks.base import Sink
from whale_ray.testing import VirtualClock

ROWS = 500
PART = ROWS // PacedTable.parts
NUMBERS = pa.table({"id": range(ROWS)})
FILES = {"parquet": whale.sinks.parquet, "csv": whale.sinks.csv, "json": whale.sinks.json_lines}

Output = tuple[Sink, Callable[[], pa.Table]]


@pytest.fixture(params=[*FILES, "delta", "postgres"])
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Output:
    """Return a sink and what returns the rows that readers of its output find."""
    kind, path = request.param, tmp_path / "out"
    if kind == "delta":
        return whale.sinks.delta(path), lambda: DeltaTable(path).to_pyarrow_table()
    if kind == "postgres":
        dsn = request.getfixturevalue("database")
        sink = whale.sinks.postgres(dsn, "t")
        return sink, lambda: pa.table({"id": [row[0] for row in ask(dsn, "TABLE t")]})
    return FILES[kind](path), lambda: ds.dataset(path, format=kind).to_table()


class Jobs:
    """Jobs of one topology, which take a checkpoint between any two parts of their rows."""

    def __init__(self, sink: Sink, folder: Path, *, bounded: bool) -> None:
        self._sink, self._folder, self._bounded = sink, folder, bounded
        self._clock = VirtualClock()

    def run(self, *, fails_after: int | None = None, restore: str | None = None) -> whale.Job:
        topology = whale.Topology("again")
        source = PacedTable(NUMBERS, fails_after=fails_after, bounded=self._bounded)
        topology.source(source, id="rows").sink(self._sink, id="out")
        settings = {
            "checkpoints.url": str(self._folder),
            "checkpoints.interval_ms": 500,
            "checkpoints.keep": 100,
            "runtime.poll_interval_ms": 50,
            "runtime.max_restarts": 0,
        }
        return whale.run(topology, clock=self._clock, settings=settings, restore=restore)

    def oldest(self) -> str:
        manifests = self._folder / "manifests"
        return str(manifests / min(os.listdir(manifests)))


def test_an_unbounded_job_adds_all_rows_since_the_older_checkpoint(
    output: Output, tmp_path: Path
) -> None:
    sink, read = output
    jobs = Jobs(sink, tmp_path / "state", bounded=False)
    with pytest.raises(PlannedFailureError):
        jobs.run(fails_after=4)
    before = Counter(read()["id"].to_pylist())
    assert before == Counter(range(4 * PART))
    jobs.run(restore=jobs.oldest())
    added = Counter(read()["id"].to_pylist()) - before
    assert added == Counter(range(PART, ROWS))


@pytest.mark.parametrize("kind", ["collect", "parquet"])
def test_a_bounded_job_publishes_each_row_once(kind: str, tmp_path: Path) -> None:
    sink = whale.sinks.collect() if kind == "collect" else whale.sinks.parquet(tmp_path / "out")
    jobs = Jobs(sink, tmp_path / "state", bounded=True)
    with pytest.raises(PlannedFailureError):
        jobs.run(fails_after=4)
    with pytest.raises(PlannedFailureError):
        jobs.run(fails_after=3, restore=jobs.oldest())
    job = jobs.run(restore="latest")
    assert sorted(job.results("out").to_arrow()["id"].to_pylist()) == list(range(ROWS))
