"""Delta tables: exactly once under failures, partitions, and what is refused.

The tables are read back by deltalake itself, and once by DuckDB's Parquet reader from the files
that the log names.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import whale_ray as whale
from tests.operators.sinks.epoch_jobs import EpochJob
from tests.operators.sinks.flaky_delta import let_transactions_fail
from whale_ray.configs.errors import OutputError, UsageError
from whale_ray.operators.sinks.base import CommitId
from whale_ray.operators.sinks.delta_log import DeltaLog
from whale_ray.operators.sinks.delta_sink import DeltaSink, delta
from whale_ray.plan.preflight import preflight
from whale_ray.testing import check_sink, instance_context, write_all
from whale_ray.transport.wire.batch import Batch


@pytest.fixture(scope="module", autouse=True)
def _deltalake_runs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let deltalake open what it keeps open for the whole process."""
    write_all(delta(tmp_path_factory.mktemp("warm") / "t"), [numbers(1)])


def numbers(*values: int) -> Batch:
    return Batch.from_pydict({"id": np.array(values, np.int64)})


def rows(path: Path) -> list[dict[str, Any]]:
    return DeltaTable(path).to_pyarrow_table().to_pylist()


def ids(path: Path) -> list[int]:
    return sorted(DeltaTable(path).to_pyarrow_table()["id"].to_pylist())


def files(path: Path) -> set[str]:
    return {one.name for one in path.glob("part-*")}


def named(path: Path) -> set[str]:
    return {uri.rpartition("/")[2] for uri in DeltaTable(path).file_uris()}


@pytest.mark.long
@pytest.mark.parametrize(
    ("partition_by", "many"),
    [("", 1_000), ("id", 30), pytest.param("", 100_000, marks=pytest.mark.long)],
)
def test_the_sink_keeps_its_promises(tmp_path: Path, partition_by: str, many: int) -> None:
    places = map(str, range(100))

    def read(sink: Any) -> list[dict[str, Any]]:
        path = Path(sink.folder.url)
        return rows(path) if DeltaTable.is_deltatable(str(path)) else []

    def make() -> whale.sinks.Sink:
        return delta(tmp_path / next(places), partition_by=partition_by or ())

    # A partition has a file of its own.
    check_sink(make, read, ids=many, failure_rates=(0.0, 0.3))


@pytest.mark.parametrize("failures", [0.0, pytest.param(0.1, marks=pytest.mark.long), 0.3])
def test_an_unbounded_job_has_each_of_100_000_ids_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: float
) -> None:
    chance = random.Random(failures)
    let_transactions_fail(monkeypatch, chance, failures)
    job = EpochJob(delta(tmp_path / "t"), "job-1", chance, failures, batch_rows=2500)
    job.begin()
    for _ in range(20):
        job.run_epoch(rows=5000)
    job.close()
    assert ids(tmp_path / "t") == list(range(100_000))
    job.sink.recover("job-1", job.kept[-1].staged, bounded=False)
    assert files(tmp_path / "t") == named(tmp_path / "t")


@pytest.mark.parametrize("failures", [0.0, 0.3])
def test_a_bounded_job_adds_the_parts_of_all_epochs_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: float
) -> None:
    chance = random.Random(f"bounded {failures}")
    let_transactions_fail(monkeypatch, chance, failures)
    job = EpochJob(delta(tmp_path / "t"), "job-1", chance, failures, bounded=True)
    job.begin()
    for _ in range(10):
        job.run_epoch(rows=1000)
        assert not DeltaTable.is_deltatable(str(tmp_path / "t"))
    job._write(77)
    assert job.publish() == 10_077
    assert ids(tmp_path / "t") == list(range(10_077))
    assert files(tmp_path / "t") == named(tmp_path / "t")


def test_a_job_restored_from_an_older_epoch_loses_nothing(tmp_path: Path) -> None:
    """Its epochs have numbers that the first job has committed already."""
    sink = delta(tmp_path / "t")
    first = EpochJob(sink, "job-1", random.Random(1))
    first.begin()
    for _ in range(5):
        first.run_epoch(rows=100)
    first.close()
    second = EpochJob(sink, "job-2", random.Random(1))
    second.begin(first.kept[1])
    for _ in range(5):
        second.run_epoch(rows=100)
    second.close()
    assert ids(tmp_path / "t") == sorted([*range(500), *range(200, 700)])


def test_a_commit_that_was_compacted_and_vacuumed_since_is_found_all_the_same(
    tmp_path: Path,
) -> None:
    sink = delta(tmp_path / "t")
    job = EpochJob(sink, "job-1", random.Random(1))
    job.begin()
    for _ in range(3):
        job.run_epoch(rows=100)
    job.close()
    table = DeltaTable(tmp_path / "t")
    table.optimize.compact()
    job.sink.recover("job-1", (), bounded=False)
    old = DeltaTable(tmp_path / "t", version=2)  # still has all its files
    assert len(old.to_pyarrow_table()) == 300
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    restored = EpochJob(sink, "job-2", random.Random(1))
    restored.begin(job.kept[-1])
    restored.run_epoch(rows=100)
    restored.close()
    assert ids(tmp_path / "t") == list(range(400))


def test_staged_files_that_are_gone_are_named(tmp_path: Path) -> None:
    sink = delta(tmp_path / "t")
    writer = sink.open(instance_context(), "job-1")
    writer.write(numbers(1))
    staged = writer.stage_epoch(1)
    assert staged is not None
    (path,) = (tmp_path / "t").glob("part-*")
    path.unlink()
    with pytest.raises(
        OutputError, match=f"1 files with staged rows are gone, such as '{path.name}"
    ):
        sink.recover("job-1", [staged], bounded=False)


def test_two_operators_of_one_job_write_into_one_table(tmp_path: Path) -> None:
    sinks = [delta(tmp_path / "t").for_operator(name) for name in ("left", "right")]
    jobs = [EpochJob(sink, "job-1", random.Random(1)) for sink in sinks]
    for job in jobs:
        job.begin()
    for _ in range(3):
        for job in jobs:
            job.run_epoch(rows=10)
    for job in jobs:
        job.close()
    assert ids(tmp_path / "t") == sorted([*range(30), *range(30)])


@pytest.mark.long
def test_concurrent_jobs_and_a_second_coordinator_of_one(tmp_path: Path) -> None:
    """Each of four jobs commits ten epochs, and each commit is made by two threads at once."""
    sink = delta(tmp_path / "t")
    failed: list[BaseException] = []

    def commit(token: str, epoch: int, staged: Any) -> None:
        try:
            sink.commit(CommitId(token, epoch), staged)
        except BaseException as error:
            failed.append(error)
            raise

    def job(number: int) -> None:
        writer = sink.open(instance_context(), f"job-{number}")
        for epoch in range(1, 11):
            writer.write(numbers(number * 100 + epoch))
            staged = [writer.stage_epoch(epoch)]
            pair = [
                threading.Thread(target=commit, args=(f"job-{number}", epoch, staged))
                for _ in range(2)
            ]
            for thread in pair:
                thread.start()
            for thread in pair:
                thread.join()
        writer.abort()

    threads = [threading.Thread(target=job, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert ids(tmp_path / "t") == sorted(n * 100 + e for n in range(4) for e in range(1, 11))


def test_a_table_that_always_changes_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeltaLog, "_try", lambda *_: False)
    with pytest.raises(OutputError, match="other jobs keep changing the Delta table .* 100 times"):
        write_all(delta(tmp_path / "t"), [numbers(1)])


def test_an_aborted_writer_and_a_forgotten_epoch_leave_no_file(tmp_path: Path) -> None:
    sink = delta(tmp_path / "t")
    writer = sink.open(instance_context(), "job-1")
    writer.write(numbers(1, 2))
    writer.stage_epoch(1)
    writer.write(numbers(3))
    writer._rows._flush()
    assert len(files(tmp_path / "t")) == 2
    writer.abort()
    assert len(files(tmp_path / "t")) == 1
    other = sink.open(instance_context(), "job-2")
    other.write(numbers(5))
    other.stage_epoch(1)
    sink.recover("job-1", (), bounded=False)
    assert len(files(tmp_path / "t")) == 1  # the other job's
    sink.discard("job-2")
    assert files(tmp_path / "t") == set()


def test_a_partitioned_table_is_read_alike_by_others(tmp_path: Path) -> None:
    path = tmp_path / "t"
    table = pa.table(
        {
            "n": pa.array(range(1000), pa.int32()),
            "kind": pa.array([f"k{n % 3}" if n % 7 else None for n in range(1000)]),
            "day": pa.array([date(2024, 1, 1 + n % 2) for n in range(1000)]),
        }
    )
    batches = [Batch.from_arrow(one) for one in table.to_batches(max_chunksize=300)]
    result = write_all(delta(path, partition_by=["kind", "day"]), batches[:2], batches[2:])
    assert result.rows == 1000
    by_number = [("n", "ascending")]
    assert DeltaTable(path).to_pyarrow_table().sort_by(by_number) == table
    assert result.to_arrow().sort_by(by_number) == table
    # One file for each partition and instance; the log tells the bounds of its rows.
    (log,) = (path / "_delta_log").glob("*.json")
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    added = [action["add"] for action in actions if "add" in action]
    assert len(added) == 16
    for add in added:
        told = json.loads(add["stats"])
        query = f"SELECT count(*), min(n), max(n) FROM '{path / add['path']}'"
        bounds = told["minValues"]["n"], told["maxValues"]["n"]
        with duckdb.connect() as connection:
            assert connection.execute(query).fetchall() == [(told["numRecords"], *bounds)]
    # A table that is there says itself how it is partitioned.
    write_all(delta(path), batches, token="second")
    assert len(rows(path)) == 2000


def test_more_partitions_than_files_may_be_open(tmp_path: Path) -> None:
    batch = Batch.from_pydict({"id": np.arange(150), "part": np.arange(150)})
    write_all(delta(tmp_path / "t", partition_by="part"), [batch])
    assert ids(tmp_path / "t") == list(range(150))


def test_a_table_is_replaced_in_one_transaction(tmp_path: Path) -> None:
    write_all(delta(tmp_path / "t"), [numbers(1, 2)])
    result = write_all(delta(tmp_path / "t", mode="overwrite"), [numbers(3)], token="second")
    assert ids(tmp_path / "t") == [3]
    assert len(DeltaTable(tmp_path / "t", version=0).to_pyarrow_table()) == 2
    assert result.rows == 1
    write_all(delta(tmp_path / "t", mode="overwrite"), [numbers()], token="third")
    assert ids(tmp_path / "t") == []


def test_a_job_without_rows_creates_an_empty_table(tmp_path: Path) -> None:
    assert write_all(delta(tmp_path / "t"), [numbers()]).rows == 0
    assert ids(tmp_path / "t") == []
    assert write_all(delta(tmp_path / "none"), []).to_arrow().num_rows == 0
    assert not (tmp_path / "none").exists()


def _other_columns(path: Path) -> None:
    write_deltalake(str(path), pa.table({"id": ["a"], "more": [1]}))
    write_all(delta(path), [numbers(1)])


def _otherwise_partitioned(path: Path) -> None:
    write_deltalake(str(path), pa.table({"id": [1]}), partition_by=None)
    delta(path, partition_by="id").prepare("t", bounded=True)


def _with_a_foreign_file(path: Path) -> None:
    path.mkdir()
    (path / "letters.txt").touch()
    delta(path).check()


def _a_file(path: Path) -> None:
    path.touch()
    delta(path).check()


def _damaged_log(path: Path) -> None:
    write_all(delta(path), [numbers(1)])
    (path / "_delta_log" / f"{0:020}.json").write_text("{")
    write_all(delta(path), [numbers(1)], token="second")


def _columns(path: Path, kind: Any, **options: Any) -> None:
    column = pa.array([1], pa.int64()).cast(kind)
    batch = Batch.from_arrow(pa.record_batch({"x": column, "id": [1]}))
    write_all(delta(path, **options), [batch])


def _before_the_start(path: Path) -> None:
    write_all(delta(path), [numbers(1)])
    topology = whale.Topology("table")
    rows = topology.source(whale.sources.arrow(pa.table({"id": ["1"]})), id="rows")
    rows.sink(whale.sinks.delta(path), id="out")
    preflight(topology.logical_plan(), checkpoints=True, restores=True)


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a table of other columns": (
        _other_columns,
        "has other columns than these rows: column 'id' is long instead of string and column "
        "'more' is missing instead of long; rename or cast them with select()",
    ),
    "a table of other columns, before the job": (
        _before_the_start,
        "column 'id' is string instead of long; rename or cast them with select()",
    ),
    "a table partitioned otherwise": (
        _otherwise_partitioned,
        "is partitioned by nothing: leave partition_by out",
    ),
    "a folder of something else": (
        _with_a_foreign_file,
        "is no Delta table and holds 'letters.txt': name another",
    ),
    "a file": (_a_file, "must be a folder, and is a file"),
    "a damaged log": (_damaged_log, "cannot be read or written: "),
    "a time of day": (
        lambda path: _columns(path, pa.time64("us")),
        "column 'x' has type time64[us], a time of day, which Delta Lake does not have",
    ),
    "a duration": (
        lambda path: _columns(path, pa.duration("us")),
        "column 'x' has type duration[us], which Delta Lake does not have",
    ),
    "single nanoseconds": (
        lambda path: _columns(path, pa.timestamp("ns")),
        "column 'x' is timestamp[ns], in Delta Lake it is timestamp[us], where not every value",
    ),
    "a partition by numbers with a point": (
        lambda path: _columns(path, pa.float64(), partition_by="x"),
        "cannot be partitioned by column 'x' of type double",
    ),
    "a partition by what is not there": (
        lambda path: _columns(path, pa.int64(), partition_by="z"),
        "there is no column 'z' to partition the table by",
    ),
    "a partition by all": (
        lambda path: _columns(path, pa.int64(), partition_by=["x", "id"]),
        "the table is partitioned by all its columns",
    ),
    "a partition of an empty text": (
        lambda path: write_all(
            delta(path, partition_by="t"), [Batch.from_rows([{"t": "", "id": 1}])]
        ),
        "column 't', by which the Delta table is partitioned, has an empty text",
    ),
    "replacing without an end": (
        lambda path: delta(path, mode="overwrite").prepare("t", bounded=False),
        "use mode='append'",
    ),
    "an object store that is not there": (
        lambda path: write_all(delta("s3://none/t", storage_options=NOWHERE), [numbers(1)]),
        "the Delta table 's3://none/t' cannot be read or written: ",
    ),
}
NOWHERE = {
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "AWS_ALLOW_HTTP": "true",
    "AWS_ACCESS_KEY_ID": "a",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_REGION": "x",
    "max_retries": "0",
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    refuse, told = REFUSED[case]
    with pytest.raises(OutputError) as error:
        refuse(tmp_path / "t")
    assert told in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("name", ["x%20y", "a\\b", "a\tb"])
def test_paths_that_deltalake_takes_for_others_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="deltalake cannot read tables whose paths have"):
        whale.sinks.delta(f"/tables/{name}")


@pytest.mark.parametrize("name", ["x y", "100%", "ü#?", "a%zz"])
def test_other_odd_paths_are_tables_to_which_rows_can_be_added(tmp_path: Path, name: str) -> None:
    for _ in range(2):
        topology = whale.Topology("odd")
        rows = topology.source(whale.sources.iterable([{"a": 1}]), id="rows")
        rows.sink(whale.sinks.delta(tmp_path / name), id="out")
        whale.run(topology)
    assert DeltaTable(str(tmp_path / name)).to_pyarrow_table().num_rows == 2


def test_arguments_are_checked() -> None:
    with pytest.raises(UsageError, match="it is 'append' or 'overwrite'"):
        delta("t", mode="merge")
    with pytest.raises(UsageError, match="name a folder"):
        delta("")
    assert isinstance(delta("s3://bucket/t"), DeltaSink)
    assert "secret" not in repr(delta("s3://none/t", storage_options=NOWHERE))


@pytest.mark.long
@pytest.mark.parametrize("on", ["inline", "processes"])
def test_a_job_writes_a_table(tmp_path: Path, on: str, no_leaks: None) -> None:
    topology = whale.Topology("table")
    source = whale.sources.iterable([{"id": n} for n in range(1000)])
    topology.source(source, id="rows").sink(whale.sinks.delta(tmp_path / "t"), id="out")
    if on == "inline":
        job = whale.run(topology)
    else:
        job = whale.submit(topology, on="processes", workers=2)
    assert job.wait(150).results("out").rows == 1000
    assert ids(tmp_path / "t") == list(range(1000))
    assert job.results("out").whereabouts == f"in {tmp_path / 't'}"
    table = DeltaTable(tmp_path / "t")
    assert table.transaction_version(f"whale-ray/{job.id}-0/out") == 0
