"""Two sinks of one job: killed between their outputs, the job goes on, and both have all rows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import whale_ray as whale
from tests.whale_ray.applications.paced_table import PacedTable
from whale_ray.operators.process import InstanceContext
from whale_ray.operators.sinks.base import CommitId, Delivery, Sink, SinkResult, SinkWriter, Staged
from whale_ray.testing import VirtualClock

ROWS = pa.table({"n": list(range(1_000))})
KILLED_AT_EPOCH = 3


@dataclass(frozen=True)
class KilledBetween(Sink):
    """Another sink, in whose commit or publication the process is killed, once."""

    inner: Sink
    marker: str
    publishes_parts: ClassVar[bool] = True
    delivery: ClassVar[Delivery | None] = "exactly once"

    def prepare(self, token: str, *, bounded: bool) -> None:
        self.inner.prepare(token, bounded=bounded)

    def open(self, context: InstanceContext, token: str) -> SinkWriter:
        return self.inner.open(context, token)

    def publish(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        self._kill_once()
        return self.inner.publish(token, staged)

    def commit(self, commit: CommitId, staged: Sequence[Staged]) -> None:
        if commit.epoch >= KILLED_AT_EPOCH:
            self._kill_once()
        self.inner.commit(commit, staged)

    def _kill_once(self) -> None:
        if not Path(self.marker).exists():
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def recover(self, token: str, staged: Sequence[Staged], *, bounded: bool) -> None:
        self.inner.recover(token, staged, bounded=bounded)

    def discard(self, token: str) -> None:
        self.inner.discard(token)

    def describe(self) -> str:
        return f"{self.inner.describe()}, killed once"


def run(folder: Path, restore: str | None, bounded: bool = False) -> None:
    """Run the job; the first sink of a bounded one is a Delta table."""
    topology = whale.Topology("twice")
    rows = topology.source(PacedTable(ROWS, bounded=bounded), id="rows")
    make = whale.sinks.delta if bounded else whale.sinks.parquet
    rows.filter(whale.col("n") >= 0, id="all").sink(make(folder / "first"), id="first")
    second = KilledBetween(whale.sinks.parquet(folder / "second"), str(folder / "marker"))
    rows.filter(whale.col("n") % 2 == 0, id="even").sink(second, id="second")
    whale.run(
        topology,
        clock=VirtualClock(0),
        settings={"checkpoints.interval_ms": 500, "runtime.poll_interval_ms": 50},
        checkpoints=folder / "state",
        restore=restore,
    )


@pytest.mark.long
def test_killed_between_two_commits_both_have_each_row_once(tmp_path: Path) -> None:
    program = f"from {__name__} import run; from pathlib import Path; run(Path({str(tmp_path)!r}),"
    killed = subprocess.run([sys.executable, "-c", f"{program} None)"], check=False)
    assert killed.returncode == -signal.SIGKILL
    numbers = sorted(pq.read_table(tmp_path / "first")["n"].to_pylist())
    even = sorted(pq.read_table(tmp_path / "second")["n"].to_pylist())
    assert [n for n in numbers if n % 2 == 0] != even  # one has committed, the other has not
    subprocess.run([sys.executable, "-c", f"{program} 'latest')"], check=True)
    assert sorted(pq.read_table(tmp_path / "first")["n"].to_pylist()) == list(range(1_000))
    assert sorted(pq.read_table(tmp_path / "second")["n"].to_pylist()) == list(range(0, 1_000, 2))


@pytest.mark.long
def test_a_bounded_job_killed_between_two_publications_shows_each_row_once(tmp_path: Path) -> None:
    program = (
        f"from {__name__} import run; from pathlib import Path;"
        f" run(Path({str(tmp_path)!r}), None, bounded=True)"
    )
    killed = subprocess.run([sys.executable, "-c", program], check=False)
    assert killed.returncode == -signal.SIGKILL
    table = tmp_path / "first"
    assert sorted(DeltaTable(table).to_pyarrow_table()["n"].to_pylist()) == list(range(1_000))
    assert not list((tmp_path / "second").glob("part-*"))
    run(tmp_path, "latest", bounded=True)
    assert sorted(DeltaTable(table).to_pyarrow_table()["n"].to_pylist()) == list(range(1_000))
    assert sorted(pq.read_table(tmp_path / "second")["n"].to_pylist()) == list(range(0, 1_000, 2))


def test_two_sinks_for_one_folder_are_told_also_where_one_path_leads_through_a_link(
    tmp_path: Path,
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    topology = whale.Topology("linked")
    rows = topology.source(whale.sources.iterable([{"n": 1}]), id="rows")
    rows.sink(whale.sinks.parquet(tmp_path / "folder" / "out"), id="first")
    with pytest.raises(whale.errors.TopologyError, match="sink 'first' writes to"):
        rows.sink(whale.sinks.csv(tmp_path / "link" / "out"), id="second")
