"""The file sinks: exact contents, one schema, atomic publication."""

from __future__ import annotations

import datetime as dt
import json
import os
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.operators.sinks.dying import parts_in
from whale_ray.configs.errors import OutputError
from whale_ray.operators import sinks, sources
from whale_ray.operators.expressions.expression import col
from whale_ray.operators.sinks import row_buffer
from whale_ray.operators.sinks.formats import FORMATS
from whale_ray.testing import instance_context, read_all, write_all
from whale_ray.testing.strategies import batches
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema

MAKERS = {"parquet": sinks.parquet, "csv": sinks.csv, "json_lines": sinks.json_lines}
ALL = pytest.mark.parametrize("name", list(MAKERS))
AT = dt.datetime(2008, 5, 31, 7, 0, 0, 250_000, tzinfo=dt.UTC)


SCHEMA = Schema.of(id="int64", name="string")


def batch(*rows: int) -> Batch:
    return Batch.from_rows([{"id": row, "name": f"n{row}"} for row in rows], SCHEMA)


def every_type(binary: bool) -> pa.Table:
    """Return a column of each type, with a null and values that other types would not hold."""
    naive = AT.replace(tzinfo=None)
    columns: dict[str, pa.Array] = {
        "bool": pa.array([True, None, False]),
        "int8": pa.array([-128, None, 127], pa.int8()),
        "int64": pa.array([2**53 + 1, None, -(2**63)], pa.int64()),
        "uint64": pa.array([2**64 - 1, None, 0], pa.uint64()),
        "float16": pa.array(np.array([0.5, 1, 2], np.float16), mask=np.array([False, True, False])),
        "float32": pa.array([0.1, None, float("inf")], pa.float32()),
        "float64": pa.array([0.1, None, float("nan")], pa.float64()),
        "text": ["", None, 'a"b,c\n;ä'],
        "large": pa.array(["NA", None, "null"], pa.large_string()),
        "date32": pa.array([AT.date(), None, dt.date(1969, 12, 31)], pa.date32()),
        "date64": pa.array([AT.date(), None, dt.date(1969, 12, 31)], pa.date64()),
        "time32": pa.array([dt.time(7, 1), None, dt.time(0)], pa.time32("ms")),
        "time64": pa.array([dt.time(7, 1, 2, 3), None, dt.time(0)], pa.time64("us")),
        "seconds": pa.array([naive.replace(microsecond=0), None, naive.min], pa.timestamp("s")),
        "nanos": pa.array([1_212_217_200_250_000_001, None, -1], pa.timestamp("ns")),
        "zoned": pa.array([AT, None, AT], pa.timestamp("ms", "Europe/Paris")),
        "span": pa.array([1, None, -(2**62)], pa.duration("ns")),
        "money": pa.array(
            [Decimal("12345678901234567890.10"), None, Decimal(0)], pa.decimal128(38, 2)
        ),
    }
    if binary:
        columns["raw"] = pa.array([b"\x00\xff", None, b""], pa.binary())
        columns["four"] = pa.array([b"\x00\x01\x02\xff", None, b"    "], pa.binary(4))
    return pa.table(columns)


@ALL
def test_every_type_is_read_back_exactly(tmp_path: Path, name: str) -> None:
    table = every_type(binary=name != "csv")
    result = write_all(MAKERS[name](tmp_path / "out"), [Batch.from_arrow(table)])
    back = result.to_arrow()
    assert back.schema == table.schema
    for column in table.column_names:
        got, wanted = back[column].combine_chunks(), table[column].combine_chunks()
        assert comparable(got) == comparable(wanted), column


@ALL
@given(data=st.data())
def test_any_rows_are_read_back(tmp_path_factory: Any, name: str, data: st.DataObject) -> None:
    rows = data.draw(batches())
    if name == "csv":
        rows = rows.drop([one.name for one in rows.schema if "binary" in one.type.family])
    if not rows.schema.names:
        return
    out = tmp_path_factory.mktemp("any") / "out"
    table = write_all(MAKERS[name](out), [rows]).to_arrow()
    expected = rows.to_arrow()
    assert table.schema.names == expected.schema.names
    assert table.schema.types == expected.schema.types
    for column, wanted in zip(table.columns, expected.columns, strict=True):
        assert comparable(column.combine_chunks()) == comparable(wanted)


def comparable(array: pa.Array) -> list[Any]:
    """Return the values such that any NaN equals any other, and 0.0 differs from -0.0."""
    if pa.types.is_floating(array.type):
        return [repr(value) for value in array.to_pylist()]
    if pa.types.is_temporal(array.type):
        return array.view(pa.int32() if array.type.bit_width == 32 else pa.int64()).to_pylist()
    return array.to_pylist()


@ALL
def test_the_source_of_the_same_name_reads_it_back(tmp_path: Path, name: str) -> None:
    write_all(MAKERS[name](tmp_path / "out"), [batch(1, 2)], [batch(3)])
    source = getattr(sources, name)(tmp_path / "out")
    rows = [row for one in read_all(source) for row in one.to_pylist()]
    assert rows == [{"id": i, "name": f"n{i}"} for i in (1, 2, 3)]


def test_parts_are_named_by_instance_and_have_one_schema(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = write_all(sinks.parquet(out), [batch(1)], [], [batch(), batch(2, 3)])
    assert parts_in(out) == ["part-00000.parquet", "part-00002.parquet"]
    assert result.parts == (f"{out}/part-00000.parquet", f"{out}/part-00002.parquet")
    assert (result.rows, result.path, result.format) == (3, str(out), "parquet")
    assert result.nbytes == sum(os.path.getsize(part) for part in result.parts)
    assert pq.read_schema(result.parts[0]).equals(pq.read_schema(result.parts[1]))
    assert duckdb.sql(f"select sum(id) from '{out}/*.parquet'").fetchall() == [(6,)]
    assert os.listdir(tmp_path) == ["out"]
    assert result.preview(2) == [{"id": 1, "name": "n1"}, {"id": 2, "name": "n2"}]


@ALL
def test_the_load_line_loads(tmp_path: Path, name: str) -> None:
    result = write_all(MAKERS[name](tmp_path / "out"), [batch(1, 2)])
    import pandas
    import pyarrow.dataset

    names = {"pandas": pandas, "pyarrow": pyarrow}
    assert eval(result.load_line, names)["id"].tolist() == [1, 2]  # noqa: S307  # our own line


@ALL
def test_an_empty_result_is_one_empty_part(tmp_path: Path, name: str) -> None:
    result = write_all(MAKERS[name](tmp_path / "out"), [], [batch()])
    assert parts_in(tmp_path / "out") == ["part-00000" + FORMATS[name].suffix]
    assert result.rows == 0
    assert result.to_arrow().schema.names == ["id", "name"]
    assert result.preview() == []


def test_a_result_without_known_columns_is_an_empty_folder(tmp_path: Path) -> None:
    result = write_all(sinks.parquet(tmp_path / "out"), [], [])
    assert parts_in(tmp_path / "out") == []
    assert result.to_arrow().num_rows == 0


def test_text_formats_to_the_letter(tmp_path: Path) -> None:
    rows = [{"id": 1, "name": 'a"ä', "at": AT}, {"id": None, "name": None, "at": None}]
    table = pa.Table.from_pylist(
        rows,
        pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.timestamp("ms", "UTC"))]),
    )
    csv = write_all(sinks.csv(tmp_path / "csv"), [Batch.from_arrow(table)])
    assert Path(csv.parts[0]).read_text() == (
        '"id","name","at"\n1,"a""ä",2008-05-31 07:00:00.250Z\n,,\n'
    )
    lines = write_all(sinks.json_lines(tmp_path / "json"), [Batch.from_arrow(table)])
    text = Path(lines.parts[0]).read_text()
    assert text == (
        '{"id":1,"name":"a\\"ä","at":"2008-05-31T07:00:00.250Z"}\n'
        '{"id":null,"name":null,"at":null}\n'
    )
    assert json.loads(text.splitlines()[0])["name"] == 'a"ä'


def test_many_small_batches_make_few_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_buffer, "_SMALL_BATCHES", 4)
    result = write_all(sinks.parquet(tmp_path / "out"), [batch(i) for i in range(30)])
    file = pq.ParquetFile(result.parts[0])
    assert file.metadata.num_row_groups == 1
    assert file.read()["id"].to_pylist() == list(range(30))


def test_rows_are_copied_before_the_call_ends(tmp_path: Path) -> None:
    memory = np.arange(5, dtype=np.int64)
    view = Batch.from_arrow(pa.record_batch({"id": pa.array(memory)}))
    writer = sinks.parquet(tmp_path / "out").open(instance_context(), "t")
    writer.write(view)
    memory[:] = -1
    sink = sinks.parquet(tmp_path / "out")
    assert sink.publish("t", [writer.stage()]).to_arrow()["id"].to_pylist() == [0, 1, 2, 3, 4]
    writer.abort()


def test_integers_with_nulls_stay_integers_in_pandas(tmp_path: Path) -> None:
    table = pa.table({"id": pa.array([2**53 + 1, None], pa.int64()), "x": [1, 2]})
    result = write_all(sinks.parquet(tmp_path / "out"), [Batch.from_arrow(table)])
    frame = result.to_pandas()
    assert str(frame["id"].dtype) == "Int64"
    assert frame["id"].iloc[0] == 2**53 + 1
    assert str(frame["x"].dtype) == "int64"


def other(*rows: int) -> Batch:
    return Batch.from_pydict({"id": [float(row) for row in rows], "name": ["n"] * len(rows)})


REMEDY = "declare schema= on the function that makes these rows, so that all its instances agree"


def test_instances_must_agree_on_the_columns(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as error:
        write_all(sinks.parquet(tmp_path / "out"), [batch(1)], [other(2)])
    assert str(error.value) == (
        f"the parts of parquet {tmp_path}/out do not fit together: "
        f"column 'id' is double instead of int64 (instance 1 against instance 0); {REMEDY}"
    )
    assert os.listdir(tmp_path) == []


def test_batches_must_agree_on_the_columns(tmp_path: Path) -> None:
    more = batch(2).with_column("x", [1])
    for later, difference in (
        (other(2), "column 'id' is double instead of int64"),
        (more, "column 'x' is int64 instead of missing"),
        (batch(2).drop(["name"]), "column 'name' is missing instead of string"),
    ):
        with pytest.raises(OutputError) as error:
            write_all(sinks.csv(tmp_path / "out"), [batch(1), later])
        assert (
            str(error.value)
            == f"sink 'operator': {difference} in later rows than the first; {REMEDY}"
        )
        assert os.listdir(tmp_path) == []


def test_columns_in_another_order_are_reordered(tmp_path: Path) -> None:
    turned = batch(2).select(["name", "id"])
    result = write_all(sinks.parquet(tmp_path / "out"), [batch(1), turned])
    assert result.to_arrow().to_pylist() == [{"id": 1, "name": "n1"}, {"id": 2, "name": "n2"}]


def test_csv_refuses_bytes(tmp_path: Path) -> None:
    with pytest.raises(OutputError) as error:
        write_all(sinks.csv(tmp_path / "out"), [Batch.from_pydict({"raw": [b"\xff"]})])
    assert str(error.value) == (
        "CSV cannot hold column 'raw' of type binary; leave it out with select(), or write Parquet"
    )


def test_parquet_refuses_decimals_without_their_last_digits(tmp_path: Path) -> None:
    thousands = pa.table({"cost": pa.array([Decimal(9000)], pa.decimal128(5, -3))})
    with pytest.raises(OutputError) as error:
        write_all(sinks.parquet(tmp_path / "out"), [Batch.from_arrow(thousands)])
    assert str(error.value) == (
        "Parquet cannot hold column 'cost' of type decimal128(5, -3), whose scale is negative;"
        " cast it to 'decimal(8, 0)' before the sink"
    )
    cast = col("cost").cast("decimal(8, 0)").evaluate(Batch.from_arrow(thousands))
    assert cast.to_pylist() == [Decimal(9000)]


def test_values_that_a_format_cannot_hold_are_named(tmp_path: Path) -> None:
    seconds = pa.table({"at": pa.array([2**60], pa.timestamp("s"))})
    with pytest.raises(OutputError) as error:
        write_all(sinks.parquet(tmp_path / "out"), [Batch.from_arrow(seconds)])
    assert str(error.value).startswith(
        f"cannot write the output '{tmp_path}/out': Integer overflow when casting timestamp value "
    )
    assert str(error.value).endswith("; cast the column, or use another format")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["csv", "json_lines"])
def test_years_that_texts_do_not_have_are_refused(tmp_path: Path, name: str) -> None:
    first, last = -719_528, 2_932_896  # 0000-01-01 and 9999-12-31
    zone = pa.timestamp("us", "Asia/Tokyo")
    day_us = 86_400_000_000
    columns = {
        "day": pa.array([first, last, None], pa.date32()),
        "at": pa.array([first * day_us, (last + 1) * day_us - 1, None], pa.timestamp("us")),
        "zoned": pa.array([first * day_us, (last + 1) * day_us - 1, None], zone),
    }
    rows = pa.table(columns)
    found = write_all(MAKERS[name](tmp_path / "whole"), [Batch.from_arrow(rows)]).to_arrow()
    assert found.equals(rows)
    for column, values in columns.items():
        per_day = 1 if column == "day" else day_us
        for beyond in (first * per_day - 1, (last + 1) * per_day):
            array = pa.array([beyond, None], values.type)
            with pytest.raises(OutputError, match=f"hold column '{column}': .* of {beyond} lies"):
                write_all(
                    MAKERS[name](tmp_path / "out"), [Batch.from_arrow(pa.table({column: array}))]
                )


def test_offsets_with_seconds_are_not_cut(tmp_path: Path) -> None:
    """Berlin was 53 minutes and 28 seconds ahead of Greenwich until 1893."""
    at = pa.table({"at": pa.array([-5_364_662_400, 0], pa.timestamp("s", "Europe/Berlin"))})
    result = write_all(sinks.csv(tmp_path / "out"), [Batch.from_arrow(at)])
    assert result.to_arrow().equals(at)
    assert Path(result.parts[0]).read_text().split("\n")[1] == "1800-01-01 00:00:00Z"


def test_descriptions_can_be_pickled(tmp_path: Path) -> None:
    for name, make in MAKERS.items():
        sink = make(tmp_path / "out", overwrite=True)
        assert pickle.loads(pickle.dumps(sink)) == sink
        assert sink.describe() == f"{name} {tmp_path}/out"


def test_paths_are_resolved_where_the_topology_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sink = sinks.parquet("deep/er/out")
    monkeypatch.chdir("/")
    assert write_all(sink, [batch(1)]).path == f"{tmp_path}/deep/er/out"
    assert sink.describe() == "parquet deep/er/out"
    with pytest.raises(OutputError) as error:
        sinks.parquet("s3://bucket/out")
    assert str(error.value) == (
        "the output path 's3://bucket/out' must be a folder on a local or mounted file system"
    )


def test_an_unbounded_job_adds_complete_parts(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = sinks.parquet(out)
    sink.prepare("t", bounded=False)
    writers = [sink.open(instance_context(i, 2), "t") for i in range(2)]
    assert writers[0].publish_part() is None
    writers[0].write(batch(1))
    assert not out.exists()
    receipt = writers[0].publish_part()
    assert receipt is not None
    assert receipt.rows == 1
    writers[0].write(batch(2, 3))
    writers[1].write(batch(4))
    for writer in writers:
        writer.publish_part()
    writers[1].write(batch(99))
    for writer in writers:
        writer.abort()
    # A new attempt continues the numbers, so nothing is overwritten.
    again = sink.open(instance_context(), "u")
    again.write(batch(5))
    again.publish_part()
    assert parts_in(out) == [
        "part-00000-000000.parquet",
        "part-00000-000001.parquet",
        "part-00000-000002.parquet",
        "part-00001-000000.parquet",
    ]
    assert sorted(pq.read_table(out)["id"].to_pylist()) == [1, 2, 3, 4, 5]
    assert os.listdir(tmp_path) == ["out"]


def test_an_unbounded_job_overwrites_at_its_start(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_all(sinks.parquet(out), [batch(1)])
    with pytest.raises(OutputError, match="exists"):
        sinks.parquet(out).prepare("t", bounded=False)
    sinks.parquet(out, overwrite=True).prepare("t", bounded=False)
    assert os.listdir(tmp_path) == []


@ALL
def test_a_full_disk_is_named(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    out = tmp_path / "out"
    with pytest.raises(OutputError) as error:
        write_all(MAKERS[name](out), [batch(1)])
    assert str(error.value) == (
        f"cannot write the output '{out}': No space left on device; "
        "make room or mend the folder, or name another output"
    )
    assert os.listdir(tmp_path) == []
