"""Endless jobs with checkpoints into tables: stopped, killed and restored, each row once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import whale_ray as whale
from tests.operators.sinks.postgres_server import ask
from tests.runs import living
from whale_ray.configs.errors import OutputError
from whale_ray.operators.sinks.base import Sink

pytestmark = pytest.mark.long

ROWS = 1000
"""In each file of the source."""

Table = tuple[Sink, Callable[[], list[int]]]


@pytest.fixture(params=["delta", "postgres"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Table]:
    """Yield a sink and what returns the ids in its table."""
    if request.param == "delta":
        path = tmp_path / "table"

        def in_delta() -> list[int]:
            if not DeltaTable.is_deltatable(str(path)):
                return []
            return sorted(DeltaTable(path).to_pyarrow_table()["id"].to_pylist())

        yield whale.sinks.delta(path), in_delta
        return
    dsn = request.getfixturevalue("database")

    def in_postgres() -> list[int]:
        if ask(dsn, "SELECT to_regclass('t')") == [(None,)]:
            return []
        return [row[0] for row in ask(dsn, "SELECT id FROM t ORDER BY id")]

    yield whale.sinks.postgres(dsn, "t"), in_postgres


def add_file(folder: Path, number: int) -> None:
    """Let a file of the next ids appear."""
    folder.mkdir(exist_ok=True)
    ids = np.arange(number * ROWS, (number + 1) * ROWS)
    pq.write_table(pa.table({"id": ids}), folder / f".{number}")
    (folder / f".{number}").rename(folder / f"{number:03}.parquet")


def test_each_row_is_in_the_table_once_however_often_jobs_end(
    tmp_path: Path, table: Table, no_leaks: None
) -> None:
    """A job is cancelled, another loses a worker and is stopped, a third has other instances."""
    sink, ids = table
    folder = tmp_path / "in"

    def submit(instances: int) -> whale.Job:
        topology = whale.Topology("endless")
        source = whale.sources.growing_folder(folder, poll_ms=10)
        topology.source(source, id="rows").sink(sink, id="out", parallelism=instances)
        return whale.submit(
            topology,
            on="processes",
            workers=2,
            checkpoints=tmp_path / "store",
            checkpoint_interval="50 milliseconds",
            restore="latest",
        )

    def until(job: whale.Job, rows: int) -> None:
        while len(ids()) < rows:
            job.savepoint(60)
        assert ids() == list(range(rows))

    add_file(folder, 0)
    job = submit(1)
    until(job, ROWS)
    job.stop(drain=False, timeout_s=60)
    add_file(folder, 1)
    job = submit(1)
    until(job, 2 * ROWS)
    next(living("whale worker")).kill()
    add_file(folder, 2)
    until(job, 3 * ROWS)
    job.stop(savepoint=True, timeout_s=60)
    add_file(folder, 3)
    job = submit(2)
    until(job, 4 * ROWS)
    job.stop(savepoint=True, timeout_s=60)
    assert ids() == list(range(4 * ROWS))


def test_a_job_does_not_begin_to_go_on_if_its_table_has_other_columns_by_now(
    tmp_path: Path, no_leaks: None
) -> None:
    path, store = tmp_path / "table", tmp_path / "store"
    csv = whale.sources.growing_folder(tmp_path / "in", "csv", {"id": "int64"}, poll_ms=10)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.csv").write_text("id\n1\n")
    topology = whale.Topology("endless")
    topology.source(csv, id="rows").sink(whale.sinks.delta(path), id="out")
    job = whale.submit(topology, on="processes", workers=1, checkpoints=store)
    while not DeltaTable.is_deltatable(str(path)):
        job.savepoint(60)
    job.savepoint(60)  # behind whose rows nothing is staged
    job.stop(savepoint=True, timeout_s=60)
    changed = pa.table({"id": ["1"]})
    write_deltalake(str(path), changed, mode="overwrite", schema_mode="overwrite")
    for go_on in (
        lambda: whale.resume(store),
        lambda: whale.submit(topology, on="processes", checkpoints=store, restore="latest"),
    ):
        with pytest.raises(OutputError, match="column 'id' is long instead of string; rename"):
            go_on()
