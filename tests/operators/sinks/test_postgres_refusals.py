"""What a Postgres sink refuses: one clear line, nothing half there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.operators.sinks.postgres_server import ask, do, staged_rows_left
from whale_ray.configs.errors import OutputError, UsageError
from whale_ray.operators.sinks import postgres_sink
from whale_ray.operators.sinks.postgres_server import connect
from whale_ray.operators.sinks.postgres_sink import PostgresSink, postgres
from whale_ray.testing import write_all
from whale_ray.transport.wire.batch import Batch


def numbers(*values: int) -> Batch:
    return Batch.from_pydict({"id": np.array(values, np.int64)})


def _first_rows(dsn: str, table: str, batch: Batch, **options: Any) -> None:
    do(dsn, table)
    write_all(postgres(dsn, "t", **options), [batch])


def _null_where_none_may_be(dsn: str) -> None:
    _first_rows(dsn, "CREATE TABLE t (id bigint NOT NULL)", Batch.from_pydict({"id": [1, None]}))


def _broken_while_it_commits(dsn: str) -> None:
    """Let the server end the connection in the middle of a commit."""
    do(
        dsn,
        "CREATE TABLE t (id bigint); CREATE FUNCTION bye() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;"
        " CREATE TRIGGER bye BEFORE INSERT ON t EXECUTE FUNCTION bye()",
    )
    write_all(postgres(dsn, "t"), [numbers(1)])


def _refused_login(dsn: str) -> None:
    do(dsn, "CREATE ROLE guest NOLOGIN")
    postgres(dsn.replace("user=postgres", "user=guest password=secret"), "t").prepare(
        "job-1", bounded=True
    )


FIRST = 10_957 - 2**31
"""In days since 1970: the least number of days since 2000."""

REFUSED: dict[str, tuple[Callable[[str], object], str]] = {
    "a server that is not there": (
        lambda dsn: postgres("host=/nowhere password=secret", "t").prepare("t", bounded=True),
        "the Postgres table t: no connection: connection is bad",
    ),
    "a dsn that is none": (
        lambda dsn: postgres("nonsense=word password=secret", "t").prepare("t", bounded=True),
        "the Postgres table t: no connection: the dsn is none of libpq's; write ",
    ),
    "a wait without end": (
        lambda dsn: postgres(f"{dsn} connect_timeout=0", "t").prepare("t", bounded=True),
        "no connection: connect_timeout=0 would wait without end, or is no number: name seconds",
    ),
    "a schema that is not there": (
        lambda dsn: postgres(dsn, "nowhere.t").prepare("t", bounded=True),
        'the Postgres table nowhere.t: the server refuses: schema "nowhere" does not exist; create '
        "it (CREATE SCHEMA), or correct the schema in the table's name",
    ),
    "a server that only reads": (
        lambda dsn: write_all(
            postgres(f"{dsn} options='-c default_transaction_read_only=on'", "t"), [numbers(1)]
        ),
        "cannot execute CREATE TABLE in a read-only transaction; name a server, database and role "
        "in the dsn that may write: no standby",
    ),
    "a login that is refused": (_refused_login, 'role "guest" is not permitted to log in'),
    "a table of other columns": (
        lambda dsn: _first_rows(dsn, "CREATE TABLE t (id text, more int)", numbers(1)),
        "the Postgres table t has other columns than these rows: column 'id' is bigint instead of "
        "text and column 'more' is missing instead of integer; rename or cast them with select()",
    ),
    "a column whose name is cut": (
        lambda dsn: write_all(postgres(dsn, "t"), [Batch.from_pydict({"é" * 32: [1]})]),
        f"the server keeps only '{'é' * 31}' of the name '{'é' * 32}'; shorten it",
    ),
    "a table whose name is cut": (
        lambda dsn: write_all(postgres(dsn, "t" * 64), [numbers(1)]),
        f"the server keeps only '{'t' * 63}' of the name '{'t' * 64}'; shorten it",
    ),
    "a column too many": (
        lambda dsn: _first_rows(dsn, "CREATE TABLE t (x int DEFAULT 1)", numbers(1)),
        "column 'id' is bigint instead of missing",
    ),
    "a column too small": (
        lambda dsn: _first_rows(
            dsn,
            "CREATE TABLE t (n numeric(5,2))",
            Batch.from_arrow(pa.record_batch({"n": pa.array([None], pa.decimal128(8, 3))})),
        ),
        "column 'n' is numeric(8,3) instead of numeric(5,2)",
    ),
    "null where none may be": (
        _null_where_none_may_be,
        'the server refuses: null value in column "id"',
    ),
    "a text with a zero": (
        lambda dsn: write_all(postgres(dsn, "t"), [Batch.from_rows([{"x": "a\0"}])]),
        "the server refuses: invalid byte sequence",
    ),
    "single nanoseconds": (
        lambda dsn: write_all(
            postgres(dsn, "t"),
            [Batch.from_arrow(pa.record_batch({"x": pa.array([1], pa.timestamp("ns"))}))],
        ),
        "column 'x' is timestamp[ns], in Postgres it is timestamp[us], where not every value fits",
    ),
    "a time that Postgres does not have": (
        lambda dsn: write_all(
            postgres(dsn, "t"),
            [Batch.from_arrow(pa.record_batch({"x": pa.array([-(2**63)], pa.timestamp("us"))}))],
        ),
        "column 'x' has a time that Postgres does not have",
    ),
    "a day that Postgres takes for -infinity": (
        lambda dsn: write_all(
            postgres(dsn, "t"),
            [
                Batch.from_arrow(
                    pa.record_batch({"x": pa.array([FIRST], pa.int32()).view("date32")})
                )
            ],
        ),
        "column 'x' has a time that Postgres does not have",
    ),
    "a key without an index": (
        lambda dsn: _first_rows(
            dsn, "CREATE TABLE t (id bigint)", numbers(1), mode="upsert", key="id"
        ),
        "the Postgres table t has no unique index on (id), by which rows could replace each other: "
        "CREATE UNIQUE INDEX ON t (id)",
    ),
    "a key that no row has": (
        lambda dsn: write_all(postgres(dsn, "t", mode="upsert", key="x"), [numbers(1)]),
        "the rows have no column 'x', which the key names",
    ),
    "a row that is there": (
        lambda dsn: _first_rows(dsn, "CREATE TABLE t (id bigint UNIQUE)", numbers(1, 1)),
        'the server refuses: duplicate key value violates unique constraint "t_id_key" (Key '
        "(id)=(1) already exists.); correct the table or the rows",
    ),
    "what the server alone writes": (
        lambda dsn: _first_rows(
            dsn, "CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY)", numbers(1)
        ),
        "the Postgres table t: the server alone says what is in 'id', GENERATED ALWAYS; leave out",
    ),
    "a column that staged rows have": (
        lambda dsn: write_all(postgres(dsn, "t"), [Batch.from_rows([{"whale_part": 1}])]),
        "the Postgres table t: staged rows have a column 'whale_part' of their own: give this one",
    ),
    "a view that cannot be written": (
        lambda dsn: _first_rows(
            dsn, "CREATE VIEW t AS SELECT max(1)::bigint AS id HAVING false", numbers(1)
        ),
        'the Postgres table t: the server refuses: cannot insert into view "t" (',
    ),
    "a statement that takes too long": (
        lambda dsn: _first_rows(
            f"{dsn} options='-c statement_timeout=100ms'",
            "CREATE TABLE t (id bigint); CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_sleep(9); RETURN NULL; END $$;"
            " CREATE TRIGGER wait BEFORE INSERT ON t EXECUTE FUNCTION wait()",
            numbers(1),
        ),
        "the server refuses: canceling statement due to statement timeout; give statements more ",
    ),
    "a connection that breaks in a commit": (
        _broken_while_it_commits,
        "the connection broke, or the server had no room: terminating connection due to "
        "administrator command; what was being committed may be there or not, and is asked for",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_in_one_line(database: str, case: str) -> None:
    refuse, told = REFUSED[case]
    with pytest.raises(OutputError) as error:
        refuse(database)
    assert told in str(error.value)
    assert len(str(error.value).splitlines()) == 1
    assert "secret" not in str(error.value)
    if ask(database, "SELECT to_regclass('t') IS NOT NULL")[0][0]:
        assert ask(database, "SELECT count(*) FROM t") == [(0,)]
    assert staged_rows_left(database) == 0
    do(server_of(database), "DROP ROLE IF EXISTS guest")


@pytest.mark.parametrize(
    "dsn",
    [
        "postgres//user:secret@127.0.0.1:1/db",
        "postgresql://user:secret%@127.0.0.1:1/db",
        "postgresql://user:a@secret@127.0.0.1:1/db",
        "postgresql://user:secret/a@127.0.0.1:1/db",
        "host=127.0.0.1 port=1 password=a secret",
        "host=127.0.0.1 port=secret",
    ],
)
def test_a_password_with_signs_that_are_not_escaped_stays_out_of_the_error(dsn: str) -> None:
    with pytest.raises(OutputError, match=r"the Postgres table t: no connection: .*%40") as error:
        postgres(dsn, "t").prepare("t", bounded=True)
    assert "secret" not in str(error.value)


def server_of(dsn: str) -> str:
    return " ".join("dbname=postgres" if "dbname" in one else one for one in dsn.split())


def test_a_host_that_is_gone_is_noticed(database: str) -> None:
    """Without these, Linux asks after two hours whether the other side still lives."""
    with closing(connect(database, "t")) as connection:
        assert int(connection.info.get_parameters()["keepalives_idle"]) <= 60
    with closing(connect(f"{database} keepalives_idle=7", "t")) as connection:
        assert connection.info.get_parameters()["keepalives_idle"] == "7"


def test_timeouts_for_queries_do_not_end_a_copy(database: str) -> None:
    """It lasts as long as an epoch; what the dsn itself asks for stays."""
    name = database.split("dbname=")[1].split(maxsplit=1)[0]
    do(database, f"ALTER DATABASE {name} SET statement_timeout = '9s'")
    do(database, f"ALTER DATABASE {name} SET idle_session_timeout = '9s'")
    for dsn, wanted in ((database, "0"), (f"{database} options='-c statement_timeout=7s'", "7s")):
        with closing(connect(dsn, "t")) as connection:
            assert connection.execute("SHOW statement_timeout").fetchone() == (wanted,)
            assert connection.execute("SHOW idle_session_timeout").fetchone() == ("0",)


def test_arguments_are_checked() -> None:
    with pytest.raises(UsageError, match="it is 'append' or 'upsert'"):
        postgres("dsn", "t", mode="merge")
    for wrong in ({"mode": "upsert"}, {"key": "id"}):
        with pytest.raises(UsageError, match="an upsert has a key, and nothing else has one"):
            postgres("dsn", "t", **wrong)
    with pytest.raises(UsageError, match="name the database and a table"):
        postgres("dsn", "schema.")
    sink = postgres("password=secret", "s.t", mode="upsert", key=["a", "b"])
    assert isinstance(sink, PostgresSink)
    assert sink.describe() == "postgres s.t by a, b"
    assert "secret" not in repr(sink)


@pytest.mark.parametrize("is_released", [True, False])
def test_a_commit_into_a_locked_table_is_told_and_waits_up_to_a_limit(
    is_released: bool,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(postgres_sink, "LOCK_TIMEOUT_MS", 40)
    monkeypatch.setattr(postgres_sink, "LOCK_ATTEMPTS", 3)
    do(database, "CREATE TABLE t (id bigint)")
    with closing(connect(database, "t")) as other:
        other.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")

        class Release(logging.Filter):
            def filter(self, _: logging.LogRecord) -> bool:
                if is_released:
                    other.rollback()
                return True

        with caplog.filtering(Release()):
            if is_released:
                write_all(postgres(database, "t"), [numbers(1, 2)])
            else:
                with pytest.raises(OutputError, match=r"lock timeout; end the transaction"):
                    write_all(postgres(database, "t"), [numbers(1, 2)])
    told = [one.getMessage() for one in caplog.records if "has waited" in one.getMessage()]
    assert len(told) == (1 if is_released else 2)
    assert "the Postgres table t: the server refuses: canceling statement due to lock" in told[0]
    assert ask(database, "SELECT count(*) FROM t") == [(2 if is_released else 0,)]
