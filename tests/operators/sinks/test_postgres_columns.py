"""The columns of Postgres tables: types as they were, wider ones, rows of random widths."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import whale_ray as whale
from tests.operators.sinks.postgres_server import ask, do
from whale_ray.configs.errors import OutputError
from whale_ray.operators.sinks.postgres_sink import postgres
from whale_ray.plan.preflight import preflight
from whale_ray.testing import write_all
from whale_ray.transport.wire.batch import Batch

EVERY_TYPE = pa.table(
    {
        "bool": [True, None, False],
        "i8": pa.array([-128, None, 127], pa.int8()),
        "u16": pa.array([0, None, 65535], pa.uint16()),
        "i64": pa.array([-(2**63), None, 2**63 - 1]),
        "u64": pa.array([2**64 - 1, None, 10_000], pa.uint64()),
        "f16": pa.array(np.array([1.5, 2, -3], np.float16)),
        "f32": pa.array([0.25, None, float("inf")], pa.float32()),
        "f64": [float("nan"), None, -0.0],
        "price": pa.array([Decimal("-12345.678"), None, Decimal("0.001")], pa.decimal128(8, 3)),
        "small": pa.array([Decimal("1E-9"), None, Decimal("-1E-10")], pa.decimal128(4, 10)),
        "large": pa.array([Decimal("9" * 38), None, Decimal(-(10**37))], pa.decimal128(38, 0)),
        "round": pa.array([Decimal(1200), None, Decimal(-500)], pa.decimal128(4, -2)),
        "text": ["é\\N\t\n", None, ""],
        "bytes": [b"\x00\xff", None, b""],
        "fixed": pa.array([b"ab", None, b"\0\0"], pa.binary(2)),
        "date": [dt.date(1, 1, 1), None, dt.date(9999, 12, 31)],
        "date64": pa.array([dt.date(1969, 12, 31), None, dt.date(2000, 1, 1)], pa.date64()),
        "time": pa.array([dt.time(0, 0, 1), None, dt.time(23, 59)], pa.time32("s")),
        "nanos": pa.array([1000, None, 0], pa.time64("ns")),
        "plain": pa.array([-1000, None, 10**18], pa.timestamp("ns")),
        "zoned": pa.array([-1, None, 10**9], pa.timestamp("s", "Europe/Berlin")),
        "span": pa.array([-1, None, 10**9], pa.duration("ms")),
    }
)


def test_every_type_is_there_as_it_was(database: str) -> None:
    batch = Batch.from_arrow(EVERY_TYPE.to_batches()[0])
    assert write_all(postgres(database, "t"), [batch]).rows == 3
    found = ask(database, "SELECT * FROM t")
    for name, values in zip(EVERY_TYPE.column_names, zip(*found, strict=True), strict=True):
        wanted = _values(EVERY_TYPE[name])
        if pa.types.is_floating(EVERY_TYPE[name].type):  # so that NaN equals itself
            assert str(list(values)) == str(wanted)
        else:
            assert list(values) == wanted, name
    declared = ask(
        database,
        "SELECT format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 't'::regclass"
        " AND attnum > 0 ORDER BY attnum",
    )
    assert " ".join(kind.replace(" ", "_") for (kind,) in declared) == (
        "boolean smallint integer bigint numeric(20,0) real real double_precision numeric(8,3) "
        "numeric(10,10) numeric(38,0) numeric(6,0) text bytea bytea date date "
        "time_without_time_zone time_without_time_zone timestamp_without_time_zone "
        "timestamp_with_time_zone interval"
    )


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return a column's values as psycopg returns them."""
    kind = column.type
    if pa.types.is_uint64(kind):
        return [None if value is None else Decimal(value) for value in column.to_pylist()]
    if pa.types.is_timestamp(kind):
        plain = column.cast(pa.timestamp("us")).to_pylist()
        zone = None if kind.tz is None else dt.UTC
        return [None if value is None else value.replace(tzinfo=zone) for value in plain]
    if pa.types.is_time(kind):
        return column.cast(pa.time64("us")).to_pylist()
    if pa.types.is_date64(kind):
        return column.cast(pa.date32()).to_pylist()
    return column.to_pylist()


def test_a_table_may_have_wider_types_other_order_and_defaults(database: str) -> None:
    do(
        database,
        "CREATE SCHEMA s; CREATE TABLE s.t (serial bigserial, made timestamptz DEFAULT now(),"
        " label varchar(5) NOT NULL, doc jsonb, plain json, id bigint, price numeric(12,4),"
        " key uuid, part real)",
    )
    key = uuid.UUID(int=7)
    batch = pa.record_batch(
        {
            "id": pa.array([1, None], pa.int16()),
            "doc": ['{"a": 1}', None],
            "plain": ["[1]", "2"],
            "label": ["short", "é"],
            "price": pa.array([Decimal("1.25"), None], pa.decimal128(10, 2)),
            "key": pa.array([key.bytes, None], pa.binary(16)),
            "part": pa.array([0.5, None], pa.float32()),
        }
    )
    write_all(postgres(database, "s.t"), [Batch.from_arrow(batch)])
    query = "SELECT serial, made IS NULL, label, doc, plain, id, price, key, part FROM s.t"
    assert ask(database, query) == [
        (1, False, "short", {"a": 1}, [1], 1, Decimal("1.2500"), key, 0.5),
        (2, False, "é", None, 2, None, None, None, None),
    ]
    assert ask(database, "SELECT count(*) FROM s.whale_ray_commits") == [(1,)]


def test_names_may_have_any_characters(database: str) -> None:
    schema, table, column = 'a%s"b', "%(parts)s {}", "growth, %%"
    quoted = '"' + schema.replace('"', '""') + f'"."{table}"'
    do(database, f'CREATE SCHEMA "{schema.replace(chr(34), chr(34) * 2)}"')
    batch = Batch.from_pydict({"id": [1, 2, 1], column: [5, 6, 7]})
    write_all(postgres(database, f"{schema}.{table}", mode="upsert", key="id"), [batch])
    assert ask(database, f'SELECT id, "{column}" FROM {quoted} ORDER BY id') == [(1, 7), (2, 6)]


def test_many_rows_of_random_widths_arrive_as_they_are(database: str) -> None:
    chance = np.random.default_rng(3)
    rows = 200_000
    table = pa.table(
        {
            "id": np.arange(rows),
            "text": pa.array(["x" * int(n) for n in chance.integers(0, 40, rows)]),
            "maybe": pa.array(chance.integers(0, 99, rows), mask=chance.random(rows) < 0.3),
        }
    )
    batches = [Batch.from_arrow(one) for one in table.to_batches(max_chunksize=9000)]
    assert write_all(postgres(database, "t"), batches[:11], batches[11:]).rows == rows
    (found,) = ask(database, "SELECT count(*), sum(id), sum(length(text)), sum(maybe) FROM t")
    wanted = [rows, sum(range(rows)), sum(map(len, table["text"].to_pylist()))]
    assert list(map(int, found)) == [*wanted, sum(filter(None, table["maybe"].to_pylist()))]


def test_a_job_whose_table_has_other_columns_is_refused_before_it_starts(database: str) -> None:
    do(database, "CREATE TABLE t (id text)")
    topology = whale.Topology("table")
    rows = topology.source(whale.sources.arrow(pa.table({"id": [1]})), id="rows")
    rows.sink(postgres(database, "t"), id="out")
    with pytest.raises(OutputError, match="column 'id' is bigint instead of text; rename or"):
        preflight(topology.logical_plan(), checkpoints=True, restores=True)
