"""Delta tables in S3, over HTTP: moto's server on this machine, one for all tests.

A table's log relies on puts that succeed only where nothing is yet; two coordinators show that the
server decides between them.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deltalake import DeltaTable

import whale_ray as whale
from tests.operators.sinks.epoch_jobs import EpochJob
from tests.operators.sinks.flaky_delta import let_transactions_fail
from tests.s3_server import S3Server, s3_server
from whale_ray.configs.errors import OutputError
from whale_ray.operators.sinks.base import CommitId, Staged
from whale_ray.operators.sinks.delta_sink import DeltaSink
from whale_ray.testing import instance_context, write_all
from whale_ray.transport.wire.batch import Batch

numbers_of_tables = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server("tables") as one:
        yield one


def table(server: S3Server, bucket: str = "tables") -> DeltaSink:
    """Return a sink of a new table."""
    url = f"s3://{bucket}/below/t{next(numbers_of_tables)}"
    sink = whale.sinks.delta(url, storage_options=server.delta_options)
    assert isinstance(sink, DeltaSink)
    return sink


def rows(sink: Any) -> list[dict[str, Any]]:
    options = dict(sink.folder.options)
    if not DeltaTable.is_deltatable(sink.folder.url, storage_options=options):
        return []
    found = DeltaTable(sink.folder.url, storage_options=options).to_pyarrow_table().to_pylist()
    assert isinstance(found, list)
    return found


def ids(sink: Any) -> list[int]:
    return sorted(row["id"] for row in rows(sink))


def numbers(*values: int) -> Batch:
    return Batch.from_pydict({"id": np.array(values, np.int64)})


@pytest.mark.long
@pytest.mark.parametrize("bounded", [False, True])
def test_rows_are_there_once_whatever_fails(
    server: S3Server, bounded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(bounded)
    let_transactions_fail(monkeypatch, chance, failures=0.3)
    job = EpochJob(table(server), "job-1", chance, failures=0.3, bounded=bounded)
    job.begin()
    for _ in range(5):
        job.run_epoch(rows=100)
    if bounded:
        assert rows(job.sink) == []
        assert job.publish() == 500
    job.close()
    assert ids(job.sink) == list(range(500))


@pytest.mark.long
def test_a_job_restored_from_an_older_epoch_loses_nothing(server: S3Server) -> None:
    """Its epochs have numbers that the first job has committed already."""
    sink = table(server)
    first = EpochJob(sink, "job-1", random.Random(1))
    first.begin()
    for _ in range(4):
        first.run_epoch(rows=100)
    first.close()
    second = EpochJob(sink, "job-2", random.Random(1))
    second.begin(first.kept[1])
    for _ in range(4):
        second.run_epoch(rows=100)
    second.close()
    assert ids(sink) == sorted([*range(400), *range(200, 600)])


@pytest.mark.long
def test_two_coordinators_commit_each_epoch_once(server: S3Server) -> None:
    sink = table(server)
    failed: list[BaseException] = []

    def commit(token: str, epoch: int, staged: Sequence[Staged]) -> None:
        try:
            sink.commit(CommitId(token, epoch), staged)
        except BaseException as error:
            failed.append(error)
            raise

    for epoch in range(1, 4):
        begun = []
        for token in ("job-1", "job-2"):
            writer = sink.open(instance_context(), token)
            writer.write(numbers(epoch))
            staged = writer.stage_epoch(epoch)
            assert staged is not None
            for _ in range(2):
                begun.append(threading.Thread(target=commit, args=(token, epoch, [staged])))
        for thread in begun:
            thread.start()
        for thread in begun:
            thread.join()
    assert not failed
    assert ids(sink) == [1, 1, 2, 2, 3, 3]


def test_a_bounded_job_adds_its_rows_at_its_end(server: S3Server, tmp_path: Path) -> None:
    sink = table(server)
    topology = whale.Topology("bounded")
    source = whale.sources.iterable([{"id": number} for number in range(100)])
    topology.source(source, id="rows").sink(sink, id="out")
    job = whale.run(topology, checkpoints=tmp_path / "state")
    result = job.results("out")
    assert (result.rows, result.path) == (100, sink.folder.url)
    assert sorted(result.to_arrow()["id"].to_pylist()) == ids(sink) == list(range(100))


def test_refused_credentials_and_a_bucket_that_is_gone_are_one_line(server: S3Server) -> None:
    sink = table(server)
    with server.strict(), pytest.raises(OutputError) as refused:
        write_all(sink, [numbers(1)])
    assert str(refused.value) == (
        f"the Delta table {sink.folder.url!r} cannot be read or written: The AWS Access Key Id you "
        "provided does not exist in our records; check the credentials, and what they permit there "
        "(storage_options)"
    )
    assert ids(sink) == []
    nowhere = table(server, bucket="nowhere")
    with pytest.raises(OutputError) as gone:
        write_all(nowhere, [numbers(1)])
    assert str(gone.value) == (
        f"the Delta table {nowhere.folder.url!r} cannot be read or written: The specified bucket "
        "does not exist; create the bucket, or name another"
    )
