"""Jobs of the command line whose sources, sinks or checkpoints are refused by a server.

Each gives one line that names the thing and the remedy, and the exit code. Nothing is lost: what
was wrong is mended, and the job goes on from its checkpoint, or starts. Nothing is half visible.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.operators.kafka.kafka_cluster import PARTITIONS, MockCluster, mock_cluster
from tests.operators.sinks.postgres_server import PostgresServer, ask, do, postgres_server
from tests.s3_server import S3Server, s3_server
from whale_ray.cli.main import main

ROWS = 400
SCRIPT = """
import os, time
import whale_ray as whale

def slow(row):
    if os.path.exists("fail"):
        time.sleep(0.001)
        if os.path.isdir("st/manifests") and len(os.listdir("st/manifests")) > 1:
            raise ValueError("it fails here")
    return {"n": row.n}

TOPOLOGY = whale.Topology("refused")
rows = TOPOLOGY.source(SOURCE, id="rows").map(slow, id="slow")
rows.sink(SINK, id="out")
"""
FILES = 'whale.sources.parquet("in")'
OUT = 'whale.sinks.parquet("out")'
RUN = ["run", "job.py", "--on", "inline", "--checkpoint-interval", "10 milliseconds"]
RUN += ["--set", "runtime.source_batch_rows=10", "--set", "checkpoints.keep=2"]
AT = [*RUN, "--checkpoints", "st"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with the input."""
    monkeypatch.chdir(tmp_path)
    os.mkdir("in")
    pq.write_table(pa.table({"n": range(ROWS)}), "in/rows.parquet", row_group_size=10)
    return tmp_path


def write_job(source: str = FILES, sink: str = OUT) -> None:
    Path("job.py").write_text(SCRIPT.replace("SOURCE", source).replace("SINK", sink))


def refuse(capsys: Any, words: list[str], code: int, said: str) -> None:
    """Run a command line that must end with one line."""
    capsys.readouterr()
    assert main(words) == code
    told = capsys.readouterr().err
    assert re.fullmatch(rf"whale-ray: {said}\n", told), told


def fail_behind_a_checkpoint() -> None:
    Path("fail").touch()
    assert main(AT) == 1
    Path("fail").unlink()
    assert len(os.listdir("st/manifests")) > 1


def in_files() -> list[int]:
    tables = [pq.read_table(part) for part in Path("out").glob("*.parquet")]
    return sorted(n for table in tables for n in table["n"].to_pylist())


# --- Kafka ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kafka() -> Iterator[MockCluster]:
    with mock_cluster() as one:
        yield one


def topic_of(kafka: MockCluster, rows: int = ROWS, partitions: int = PARTITIONS) -> str:
    """Return a topic with rows in some of its partitions."""
    topic = kafka.topic()
    kafka.write(
        topic, [{"value": b'{"n": %d}' % n, "partition": n % partitions} for n in range(rows)]
    )
    return topic


def reads(kafka: MockCluster, topic: str, **options: str) -> str:
    more = "".join(f", {name}={value!r}" for name, value in options.items())
    return (
        f"whale.sources.kafka({topic!r}, {kafka.servers!r}, schema={{'n': 'int64'}}, end='latest'"
        f"{more}, config={{'fetch.wait.max.ms': 10}})"
    )


def test_offsets_that_have_expired_since_the_checkpoint(
    kafka: MockCluster, here: Path, capsys: Any
) -> None:
    rows, first = 10 * ROWS, 10 * ROWS - 10
    topic = topic_of(kafka, rows, partitions=1)  # else the checkpoint may begin behind the expired
    write_job(reads(kafka, topic))
    fail_behind_a_checkpoint()
    kafka.expire(topic, 0, first)
    refuse(
        capsys,
        [*AT, "--restore", "latest"],
        2,
        rf"operator 'rows': topic '{topic}', partition 0: the next message, offset \d+, is not "
        rf"there: the partition holds {first} to {rows}; .* or pass on_expired='earliest' \(or "
        r"'latest'\) to go on without them",
    )
    assert in_files() == []
    write_job(reads(kafka, topic, on_expired="earliest"))
    assert main([*AT, "--restore", "latest"]) == 0
    found = in_files()
    assert len(set(found)) == len(found)
    assert set(range(first, rows)) <= set(found)


def test_a_topic_that_is_gone_since_the_checkpoint(
    kafka: MockCluster, here: Path, capsys: Any
) -> None:
    topic = topic_of(kafka, 10 * ROWS)
    write_job(reads(kafka, topic))
    fail_behind_a_checkpoint()
    before = sorted(os.listdir("st/manifests"))
    kafka.delete(topic)
    refuse(
        capsys,
        [*AT, "--restore", "latest"],
        2,
        rf"cannot read the topic '{topic}' of Kafka at .*UNKNOWN_TOPIC_OR_PART\); it is not there; "
        "create it, or correct its name",
    )
    assert in_files() == []
    assert sorted(os.listdir("st/manifests")) == before


def test_a_topic_to_write_into_that_is_not_there(
    kafka: MockCluster, here: Path, capsys: Any
) -> None:
    """It is found out before rows are read for it."""
    write_job(sink=f"whale.sinks.kafka('nowhere', {kafka.servers!r})")
    Path("fail").touch()
    refuse(
        capsys,
        AT,
        1,
        r"cannot write into the topic 'nowhere' of Kafka at .*UNKNOWN_TOPIC_OR_PART\); it is not "
        "there; create it, or correct its name",
    )


# --- Postgres -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        do(server.dsn, "CREATE ROLE guest NOLOGIN")
        do(server.dsn, "CREATE ROLE poor LOGIN")
        yield server


@pytest.mark.parametrize(
    ("user", "said"),
    [
        (
            "guest",
            r'no connection: .*FATAL:  role "guest" is not permitted to log in; correct user, '
            "password and database of the dsn, or let the server permit them",
        ),
        (
            "poor",
            "the server refuses: permission denied for schema public; let the role read and write "
            "the table, and create tables in its schema",
        ),
    ],
)
def test_a_postgres_role_that_is_refused(
    user: str, said: str, postgres: PostgresServer, here: Path, capsys: Any
) -> None:
    dsn = postgres.dsn.replace("user=postgres", f"user={user} password=secret")
    table = f"for_{user}"
    write_job(sink=f"whale.sinks.postgres({dsn!r}, {table!r})")
    refuse(capsys, AT, 1, rf"the Postgres table {table}: {said}")
    write_job(sink=f"whale.sinks.postgres({postgres.dsn!r}, {table!r})")
    assert main([*RUN, "--checkpoints", "other"]) == 0
    assert ask(postgres.dsn, f"SELECT count(*), count(DISTINCT n) FROM {table}") == [(ROWS, ROWS)]


def test_a_postgres_table_of_other_columns(
    postgres: PostgresServer, here: Path, capsys: Any
) -> None:
    do(postgres.dsn, "CREATE TABLE others (n text, more int); INSERT INTO others VALUES ('a', 1)")
    write_job(sink=f"whale.sinks.postgres({postgres.dsn!r}, 'others')")
    refuse(
        capsys,
        AT,
        1,
        r"the Postgres table others has other columns than these rows: column 'n' is bigint instead"
        r" of text and column 'more' is missing instead of integer; rename or cast them with "
        r"select\(\), alter the table, or name another",
    )
    assert ask(postgres.dsn, "SELECT * FROM others") == [("a", 1)]
    do(postgres.dsn, "DROP TABLE others")
    shutil.rmtree("st")
    assert main(AT) == 0
    assert ask(postgres.dsn, "SELECT count(*), count(DISTINCT n) FROM others") == [(ROWS, ROWS)]


# --- Delta Lake, and checkpoints in S3 ------------------------------------------------------------


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server("bucket") as server:
        yield server


def in_delta(place: str, options: dict[str, str] | None = None) -> list[int]:
    found = DeltaTable(place, storage_options=options).to_pyarrow_table()
    return sorted(found["n"].to_pylist())


def test_a_delta_table_of_other_columns(here: Path, capsys: Any) -> None:
    write_deltalake("table", pa.table({"n": ["a"], "more": [1]}))
    write_job(sink='whale.sinks.delta("table")')
    refuse(
        capsys,
        AT,
        1,
        r"the Delta table '.*/table' has other columns than these rows: column 'n' is long instead "
        r"of string and column 'more' is missing instead of long; rename or cast them with "
        r"select\(\), or name another table",
    )
    assert DeltaTable("table").to_pyarrow_table().to_pylist() == [{"n": "a", "more": 1}]
    shutil.rmtree("table")
    shutil.rmtree("st")
    assert main(AT) == 0
    assert in_delta("table") == list(range(ROWS))


def test_credentials_that_a_delta_table_in_s3_refuses(
    s3: S3Server, here: Path, capsys: Any
) -> None:
    options = s3.delta_options
    write_job(sink=f"whale.sinks.delta('s3://bucket/table', storage_options={options!r})")
    with s3.strict():
        refuse(
            capsys,
            AT,
            1,
            r"the Delta table 's3://bucket/table' cannot be read or written: The AWS Access Key Id "
            r"you provided does not exist in our records; check the credentials, and what they "
            r"permit there \(storage_options\)",
        )
    assert main(AT) == 0
    assert in_delta("s3://bucket/table", options) == list(range(ROWS))


@pytest.mark.parametrize("words", [["resume"], ["state"], [*RUN, "--restore", "latest"]])
def test_credentials_that_a_folder_of_checkpoints_in_s3_refuses(
    words: list[str], s3: S3Server, here: Path, capsys: Any
) -> None:
    write_job()
    place = f"s3://bucket/{words[0]}"
    words = [*words, "--checkpoints", place] if words[0] == "run" else [*words, place]
    said = (
        f"the checkpoint folder '{place}' cannot be read: The AWS Access Key Id you provided does "
        r"not exist in our records \(.*\); check the credentials, and what they permit there"
    )
    with s3.strict():
        refuse(capsys, words, 2, said)
    assert in_files() == []
