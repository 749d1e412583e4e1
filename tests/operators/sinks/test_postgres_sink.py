"""Postgres tables, on a real server: exactly once under failures, types, what is refused."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest

import whale_ray as whale
from tests.operators.sinks.epoch_jobs import EpochJob
from tests.operators.sinks.postgres_server import ask, do, ids, postgres_server, staged_rows_left
from tests.runs import rest
from whale_ray.configs.errors import AttemptLostError, OutputError
from whale_ray.operators.sinks import postgres_server as postgres_server_module
from whale_ray.operators.sinks.base import CommitId
from whale_ray.operators.sinks.postgres_sink import postgres
from whale_ray.operators.sinks.postgres_tables import PostgresTable
from whale_ray.testing import check_sink, instance_context, write_all
from whale_ray.transport.wire.batch import Batch


def numbers(*values: int) -> Batch:
    return Batch.from_pydict({"id": np.array(values, np.int64)})


@pytest.mark.long
def test_the_sink_keeps_its_promises(database: str) -> None:
    names = itertools.count()

    def read(sink: Any) -> list[dict[str, Any]]:
        there = ask(database, f"SELECT to_regclass('{sink.table.name}') IS NOT NULL")
        rows = ask(database, f"SELECT id, text FROM {sink.table.name}") if there[0][0] else []
        return [{"id": number, "text": text} for number, text in rows]

    def make() -> whale.sinks.Sink:
        return postgres(database, f"t{next(names)}")

    check_sink(make, read, ids=100_000, failure_rates=(0.0, 0.1, 0.3))
    assert ask(database, "SELECT tablename FROM pg_tables WHERE tablename ~ 'whale_stage'") == []


@pytest.fixture
def flaky(monkeypatch: pytest.MonkeyPatch) -> Callable[[random.Random, float], None]:
    """Return a function after which connections break before or after a commit's parts."""

    def let_fail(chance: random.Random, failures: float) -> None:
        def breaking(real: Callable[..., Any]) -> Callable[..., Any]:
            def call(self: PostgresTable, connection: Any, *arguments: Any) -> Any:
                for moment in ("before", "after"):
                    if moment == "after":
                        done = real(self, connection, *arguments)
                    if chance.random() < failures / 4:
                        connection.pgconn.finish()
                        raise psycopg.OperationalError(f"the connection broke {moment}")
                return done

            return call

        for name in ("advance", "create", "move", "empty"):
            monkeypatch.setattr(PostgresTable, name, breaking(getattr(PostgresTable, name)))
        real_commit = psycopg.Connection.commit

        def commit(self: Any) -> None:
            """Be cut off behind a commit, so that its outcome is unknown."""
            real_commit(self)
            if "advance" in getattr(self, "marks", ()) and chance.random() < failures:
                raise psycopg.OperationalError("the connection broke after the commit")

        def advance(self: PostgresTable, connection: Any, *arguments: Any) -> Any:
            connection.marks = ("advance",)
            return marked(self, connection, *arguments)

        marked = PostgresTable.advance
        monkeypatch.setattr(PostgresTable, "advance", advance)
        monkeypatch.setattr(psycopg.Connection, "commit", commit)

    return let_fail


_LONG = pytest.mark.long


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "failures"),
    [
        ("append", 0.0),
        ("append", 0.3),
        pytest.param("append", 0.1, marks=_LONG),
        pytest.param("upsert", 0.1, marks=_LONG),
        pytest.param("upsert", 0.3, marks=_LONG),
    ],
)
def test_an_unbounded_job_has_each_of_100_000_ids_once(
    database: str, flaky: Callable[..., None], mode: Any, failures: float
) -> None:
    chance = random.Random(failures)
    flaky(chance, failures)
    sink = postgres(database, "t", mode=mode, key="id" if mode == "upsert" else ())
    job = EpochJob(sink, "job-1", chance, failures, batch_rows=2500)
    job.begin()
    for _ in range(8):
        job.run_epoch(rows=12_500)
    job.close()
    assert ids(database) == list(range(100_000))
    job.sink.recover("job-1", job.kept[-1].staged, bounded=False)
    assert staged_rows_left(database) == 0


@pytest.mark.parametrize("failures", [0.0, 0.3])
def test_a_bounded_job_moves_the_parts_of_all_epochs_at_its_end(
    database: str, flaky: Callable[..., None], failures: float
) -> None:
    chance = random.Random(f"bounded {failures}")
    flaky(chance, failures)
    job = EpochJob(postgres(database, "t"), "job-1", chance, failures, bounded=True)
    job.begin()
    for _ in range(10):
        job.run_epoch(rows=1000)
    assert ask(database, "SELECT to_regclass('t')") == [(None,)]
    job._write(77)
    assert job.publish() == 10_077
    assert ids(database) == list(range(10_077))
    assert staged_rows_left(database) == 0


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_job_restored_from_an_older_epoch_loses_nothing(database: str, mode: Any) -> None:
    """Its epochs have numbers that the first job has committed already."""
    sink = postgres(database, "t", mode=mode, key="id" if mode == "upsert" else ())
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
    twice = [] if mode == "upsert" else range(200, 500)
    assert ids(database) == sorted([*range(700), *twice])


def test_two_operators_of_one_job_write_into_one_table(database: str) -> None:
    sinks = [postgres(database, "t").for_operator(name) for name in ("left", "right")]
    jobs = [EpochJob(sink, "job-1", random.Random(1)) for sink in sinks]
    for job in jobs:
        job.begin()
    for _ in range(3):
        for job in jobs:
            job.run_epoch(rows=10)
    for job in jobs:
        job.close()
    assert ids(database) == sorted([*range(30), *range(30)])
    assert sorted(ask(database, "SELECT job, operator, epoch FROM whale_ray_commits")) == [
        ("job-1", "left", 3),
        ("job-1", "right", 3),
    ]


def test_a_second_coordinator_waits_for_the_first_and_does_nothing(database: str) -> None:
    sink = postgres(database, "t")
    sink.prepare("job-1", bounded=False)
    writer = sink.open(instance_context(), "job-1")
    failed: list[BaseException] = []

    def commit(epoch: int, staged: Any) -> None:
        try:
            sink.commit(CommitId("job-1", epoch), staged)
        except BaseException as error:
            failed.append(error)
            raise

    for epoch in range(1, 6):
        writer.write(numbers(epoch))
        staged = [writer.stage_epoch(epoch)]
        pair = [threading.Thread(target=commit, args=(epoch, staged)) for _ in range(3)]
        for thread in pair:
            thread.start()
        for thread in pair:
            thread.join()
    writer.abort()
    assert not failed
    assert ids(database) == [1, 2, 3, 4, 5]


def test_a_commit_waits_for_no_other_once_its_table_is_there(database: str) -> None:
    """One that waits for a locked table held up all others of the database, and new jobs."""
    impatient = f"{database} options='-c lock_timeout=200ms'"
    write_all(postgres(database, "t"), [numbers(1)], token="job-1")
    with psycopg.connect(database) as connection:
        postgres_server_module.lock_for_transaction(connection, 0)
        write_all(postgres(impatient, "t"), [numbers(2)], token="job-2")
        with pytest.raises(OutputError, match="lock timeout"):  # who creates a table waits
            write_all(postgres(impatient, "t2"), [numbers(3)], token="job-3")
    assert ids(database) == [1, 2]


def test_the_last_row_of_a_key_stays_in_the_order_in_which_they_came(database: str) -> None:
    sink = postgres(database, "t", mode="upsert", key=["id", "part"])

    def row(number: int, text: str) -> Batch:
        return Batch.from_rows([{"id": number, "part": 0, "text": text}])

    sink.prepare("job-1", bounded=False)
    writer = sink.open(instance_context(), "job-1")
    staged = []
    for epoch in (1, 2):
        for turn in range(2):
            writer.write(row(7, f"epoch {epoch} turn {turn}"))
        staged.append(writer.stage_epoch(epoch))
    sink.commit(CommitId("job-1", 2), staged)  # those of a forgotten epoch with it
    assert ask(database, "SELECT * FROM t") == [(7, 0, "epoch 2 turn 1")]
    writer.write(row(7, "third"))
    writer.write(row(8, "third"))
    sink.commit(CommitId("job-1", 3), [writer.stage_epoch(3)])
    writer.abort()
    assert sorted(ask(database, "SELECT * FROM t")) == [(7, 0, "third"), (8, 0, "third")]
    assert ask(database, "SELECT indexdef FROM pg_indexes WHERE tablename = 't'")[0][0].endswith(
        "(id, part)"
    )
    write_all(postgres(database, "keys", mode="upsert", key="id"), [numbers(1, 1, 2)])
    assert ask(database, "SELECT * FROM keys ORDER BY id") == [(1,), (2,)]


def test_what_was_staged_survives_a_crash_of_the_server() -> None:
    with postgres_server() as server:
        sink = postgres(server.dsn, "t")
        sink.prepare("job-1", bounded=False)
        writer = sink.open(instance_context(), "job-1")
        writer.write(numbers(1, 2))
        staged = [writer.stage_epoch(1)]
        writer.write(numbers(3))
        server.crash()
        with pytest.raises(OutputError, match="the connection broke|no connection"):
            writer.stage_epoch(2)
        writer.abort()
        with pytest.raises(OutputError, match=r"no connection: .*; start the server"):
            sink.commit(CommitId("job-1", 1), staged)
        server.start()
        sink.recover("job-1", staged, bounded=False)
        sink.commit(CommitId("job-1", 1), staged)
        assert ids(server.dsn) == [1, 2]


def test_rows_that_come_while_an_epoch_is_staged_beside_the_loop_belong_to_the_next(
    database: str,
) -> None:
    """Also so many that they are sent at once: then the epoch before is completed first."""
    sink = postgres(database, "t")
    sink.prepare("job-1", bounded=False)
    writer = sink.open(instance_context(), "job-1")
    many = range(100, 50_100)
    stages = []
    for epoch, rows in enumerate([[1, 2], [3], many, [4]], 1):
        writer.write(numbers(*rows))
        stages.append(writer.cut_epoch(epoch))
    assert writer.cut_epoch(5) is None
    staged: list[Any] = [None] * 4

    def stage(number: int) -> None:
        staged[number] = stages[number]()

    threads = [threading.Thread(target=stage, args=(number,)) for number in (3, 1, 0, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for epoch, part in enumerate(staged, 1):
        sink.commit(CommitId("job-1", epoch), [part])
    writer.abort()
    assert [part.rows for part in staged] == [2, 1, 50_000, 1]
    assert ids(database) == [1, 2, 3, 4, *many]


def test_rows_set_apart_that_the_server_loses_are_read_again() -> None:
    with postgres_server() as server:
        writer = postgres(server.dsn, "t").open(instance_context(), "job-1")
        writer.write(numbers(1, 2))
        stage = writer.cut_epoch(1)
        server.crash()
        with pytest.raises(OutputError, match="the connection broke|no connection"):
            stage()
        with pytest.raises(AttemptLostError, match="rows of a checkpoint could not be written"):
            stage()
        threading.Timer(0, server.start).start()  # the loop waits for it
        with pytest.raises(AttemptLostError, match="rows of a checkpoint could not be written"):
            writer.cut_epoch(2)
        writer.abort()


def test_a_server_that_is_lost_while_rows_are_sent_is_waited_for_and_they_are_read_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was staged before stays."""
    with postgres_server() as server:
        sink = postgres(server.dsn, "t")
        sink.prepare("job-1", bounded=False)
        writer = sink.open(instance_context(operator_id="out"), "job-1")
        writer.write(numbers(1))
        staged = [writer.stage_epoch(1)]
        writer.write(numbers(*range(100, 40_000)))  # more than are kept
        server.crash()
        threading.Timer(0, server.start).start()
        with pytest.raises(AttemptLostError, match="the connection broke"):
            writer.write(numbers(*range(40_000, 80_000)))
        writer.abort()
        assert "sink 'out' waits for the server" in caplog.text
        sink.recover("job-1", staged, bounded=False)
        sink.commit(CommitId("job-1", 1), staged)
        assert ids(server.dsn) == [1]
        writer = sink.open(instance_context(operator_id="out"), "job-1")
        server.crash()
        monkeypatch.setattr(postgres_server_module, "_BACK_WITHIN_S", 0.0)
        with pytest.raises(OutputError, match="not come back within 0 s: once it has, resume"):
            writer.write(numbers(2))


def test_a_job_goes_on_after_a_crash_of_the_server(no_leaks: None) -> None:
    """Also if it has no checkpoints: it begins anew."""
    with postgres_server() as server:
        crashed = threading.Event()

        def passed_on(batch: Batch) -> Batch:
            if not crashed.is_set() and len(ask(server.dsn, _STAGES)) == 2:
                crashed.set()
                server.crash()
                server.start()
            return batch

        topology = whale.Topology("table")
        rows = whale.sources.arrow(pa.table({"id": np.arange(200_000)}))
        numbered = topology.source(rows, id="rows").map(whale.columns(passed_on), id="crash")
        numbered.sink(whale.sinks.postgres(server.dsn, "t"), id="out")
        assert whale.run(topology).results("out").rows == 200_000
        assert crashed.is_set()
        assert ids(server.dsn) == list(range(200_000))


_STAGES = "SELECT tablename FROM pg_tables WHERE tablename LIKE 'whale_stage_%'"


def test_rows_set_apart_are_not_staged_behind_the_end_of_their_attempt(database: str) -> None:
    sink = postgres(database, "t")
    sink.prepare("job-1", bounded=False)
    writer = sink.open(instance_context(), "job-1")
    writer.write(numbers(1, 2))
    stage = writer.cut_epoch(1)
    session = writer._session
    with session.in_use():  # the thread is at work as the loop ends
        writer.abort()
    with pytest.raises(OutputError, match="the attempt is over"):
        stage()
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    assert ask(database, tables) == [("whale_ray_commits",)]


def test_staged_rows_that_are_gone_are_named(database: str) -> None:
    sink = postgres(database, "t")
    sink.prepare("job-1", bounded=False)
    writer = sink.open(instance_context(), "job-1")
    writer.write(numbers(1, 2))
    staged = [writer.stage_epoch(1)]
    ((stage,),) = ask(database, "SELECT tablename FROM pg_tables WHERE tablename ~ 'stage_.*_0$'")
    do(database, f"DELETE FROM {stage} WHERE id = 1")
    message = f"1 of 2 staged rows are gone from {stage}"
    with pytest.raises(OutputError, match=message):
        sink.recover("job-1", staged, bounded=False)
    with pytest.raises(OutputError, match=message):
        sink.commit(CommitId("job-1", 1), staged)
    writer.abort()


def test_forgotten_epochs_and_ended_jobs_leave_nothing(database: str) -> None:
    sink = postgres(database, "t")
    sink.prepare("job-1", bounded=False)
    writer, other = (sink.open(instance_context(), name) for name in ("job-1", "job-2"))
    for one in (writer, other):
        one.write(numbers(1, 2))
        one.stage_epoch(1)
        one.write(numbers(3))
        one.abort()
    assert staged_rows_left(database) == 4
    sink.recover("job-1", (), bounded=False)
    assert staged_rows_left(database) == 2  # the other job's
    sink.discard("job-2")
    sink.prepare("job-3", bounded=False)
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    assert ask(database, tables) == [("whale_ray_commits",)]


@pytest.mark.long
@pytest.mark.parametrize("on", ["inline", "processes"])
def test_a_job_writes_a_table(database: str, on: str, no_leaks: None) -> None:
    topology = whale.Topology("table")
    source = whale.sources.iterable([{"id": n} for n in range(1000)])
    topology.source(source, id="rows").sink(whale.sinks.postgres(database, "t"), id="out")
    if on == "inline":
        job = whale.run(topology)
    else:
        job = whale.submit(topology, on="processes", workers=2)
    result = job.wait(150).results("out")
    assert result.rows == 1000
    assert result.whereabouts == "in the Postgres table t"
    assert result.preview() == []
    with pytest.raises(OutputError, match="read it from there"):
        result.to_arrow()
    assert ids(database) == list(range(1000))
    assert ask(database, "SELECT operator, epoch FROM whale_ray_commits") == [("out", 0)]


_HELD = """
import json, sys
from tests.operators.sinks.postgres_server import postgres_server
with postgres_server() as server:
    print(json.dumps(str(server.folder)), flush=True)
    sys.stdin.read()
"""


def test_the_tests_server_ends_with_the_test_that_is_killed() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _HELD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin and child.stdout
    with child.stdin, child.stdout:
        folder = json.loads(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        while os.path.exists(folder):  # pytest's time limit ends this
            rest()


def test_committed_rows_do_not_stay_in_the_way_of_those_that_follow(database: str) -> None:
    """What is staged is emptied as a whole, also while the writer stages the next epoch."""
    sink = postgres(database, "t")
    sink.prepare("job-1", bounded=False)
    writer = sink.open(instance_context(), "job-1")
    for epoch in range(1, 9):
        writer.write(numbers(*range(epoch * 10_000, (epoch + 1) * 10_000)))
        staged = [writer.stage_epoch(epoch)]
        writer.write(numbers(epoch))
        writer._part.send()  # rows of the next epoch are under way
        sink.commit(CommitId("job-1", epoch), staged)
    writer.abort()
    sizes = "SELECT pg_relation_size(oid) FROM pg_class WHERE relname ~ 'whale_stage'"
    assert sum(size for (size,) in ask(database, sizes)) < 100_000
    assert len(ids(database)) == 80_000 + 7


@pytest.mark.parametrize("fault", ["the server is lost", "a reader"])
def test_what_hinders_the_clean_up_behind_a_publication_does_not_hinder_that(
    database: str,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = postgres(database, "t")
    sink.prepare("job-1", bounded=True)
    writer = sink.open(instance_context(0, 1), "job-1")
    writer.write(numbers(1, 2))
    staged = writer.stage_epoch(1)
    assert staged is not None
    if fault == "a reader":
        with psycopg.connect(database) as reader:
            stage = ask(database, "SELECT tablename FROM pg_tables WHERE tablename ~ 'whale_stage'")
            writer.abort()
            reader.execute(f"SELECT count(*) FROM {stage[0][0]}")
            assert sink.publish("job-1", [staged]).rows == 2  # waits for nobody
        assert caplog.records == []
    else:

        def lose(*_: object) -> None:
            raise OutputError("the server is gone")

        writer.abort()
        monkeypatch.setattr(PostgresTable, "drop_unused", lose)
        assert sink.publish("job-1", [staged]).rows == 2
        assert "the server is gone; tables that staged rows were in" in caplog.text
    assert ids(database) == [1, 2]
