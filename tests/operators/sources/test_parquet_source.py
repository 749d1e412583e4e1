"""The Parquet source, against pyarrow's own reader."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import feather

from tests.operators.sources.opened import rows_of
from whale_ray.configs.errors import InputError
from whale_ray.operators import sources
from whale_ray.testing import read_all

ROWS = 10


def write(path: Path, start: int = 0, rows: int = ROWS, group: int = 4) -> pa.Table:
    table = pa.table(
        {
            "id": pa.array(range(start, start + rows), pa.int64()),
            "name": pa.array([None if i % 3 == 0 else f"n{i}" for i in range(rows)], pa.string()),
            "at": pa.array(
                [datetime(2008, 5, 31, 7, 0, i, tzinfo=UTC) for i in range(rows)],
                pa.timestamp("ms", "UTC"),
            ),
        }
    )
    pq.write_table(table, path, row_group_size=group)
    return table


def test_files_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    second = write(tmp_path / "b.parquet", start=100)
    first = write(tmp_path / "a.parquet")
    source = sources.parquet(tmp_path)
    assert rows_of(source) == first.to_pylist() + second.to_pylist()
    assert pickle.loads(pickle.dumps(source)) == source
    assert source.replayable
    assert source.bounded


@pytest.mark.parametrize("parallelism", [2, 3, 16])
def test_row_groups_are_assigned_round_robin(tmp_path: Path, parallelism: int) -> None:
    for name, start in (("a", 0), ("b", 10), ("c", 20)):
        write(tmp_path / f"{name}.parquet", start)
    source = sources.parquet(tmp_path)
    groups = [range(f + g, min(f + g + 4, f + 10)) for f in (0, 10, 20) for g in (0, 4, 8)]
    for instance in range(parallelism):
        expected = [i for group in groups[instance::parallelism] for i in group]
        assert [row["id"] for row in rows_of(source, instance, parallelism)] == expected


def test_read_returns_at_most_what_was_asked_for(tmp_path: Path) -> None:
    table = write(tmp_path / "a.parquet", rows=25, group=10)
    batches = list(read_all(sources.parquet(tmp_path), max_rows=7))
    assert max(batch.num_rows for batch in batches) <= 7
    assert [row for batch in batches for row in batch.to_pylist()] == table.to_pylist()


def test_only_the_wanted_columns_in_the_wanted_order(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    source = sources.parquet(tmp_path, columns=["at", "id"])
    schema = source.schema()
    assert schema is not None
    assert str(schema) == "at: timestamp[ms, tz=UTC], id: int64"
    assert list(rows_of(source)[0]) == ["at", "id"]


def test_only_the_columns_that_are_read_limit_how_many_rows_are_decoded_at_once(
    tmp_path: Path,
) -> None:
    rows = 40_000
    texts = np.random.default_rng(7).bytes(500 * rows)
    table = pa.table(
        {
            "wide": pa.array([texts[at : at + 500] for at in range(0, 500 * rows, 500)]),
            "id": pa.array(range(rows), pa.int64()),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")

    def first_of(columns: list[str]) -> int:
        source = sources.parquet(tmp_path, columns)
        return next(iter(read_all(source, max_rows=rows))).num_rows

    assert first_of(["id"]) == rows
    assert first_of(["id", "wide"]) < rows / 2


def test_dictionaries_and_views_come_as_their_values(tmp_path: Path) -> None:
    table = pa.table(
        {
            "d": pa.array(["x", "y", None, "x"]).dictionary_encode(),
            "v": pa.array(["a", None, "c", "d"], pa.string_view()),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    source = sources.parquet(tmp_path)
    assert str(source.schema()) == "d: string, v: large_string"
    assert rows_of(source) == table.to_pylist()


def test_files_may_differ_in_the_offsets_of_their_texts(tmp_path: Path) -> None:
    """As pandas, Polars and Spark write the same column."""
    first = pa.table({"t": ["x", None], "b": pa.array([b"1", b"2"], pa.large_binary())})
    wide = pa.table({"t": pa.array(["y"], pa.large_string()), "b": [b"3"]})
    pq.write_table(first, tmp_path / "a.parquet")
    pq.write_table(wide, tmp_path / "b.parquet")
    source = sources.parquet(tmp_path)
    assert str(source.schema()) == "t: string, b: large_binary"
    assert rows_of(source) == first.to_pylist() + wide.to_pylist()


TYPES = [
    pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float64(), pa.date32(), pa.date64(),
    pa.time32("s"), pa.time64("ns"), pa.timestamp("us"), pa.timestamp("ms", "UTC"),
    pa.duration("ns"), pa.decimal128(10, 2), pa.string(), pa.large_string(), pa.binary(),
    pa.binary(3), pa.dictionary(pa.int32(), pa.string()),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["parquet", "ipc"])
@pytest.mark.parametrize("order", ["nv", "vn", "nvn"])
def test_a_column_without_values_has_the_type_of_the_other_files(
    kind: str, order: str, tmp_path: Path
) -> None:
    """`n` is a file whose columns have the type null, as pandas writes them."""
    names = [f"c{number}" for number in range(len(TYPES))]
    expected = []
    for at, what in enumerate(order):
        ids = pa.array([2 * at, 2 * at + 1])
        nulls = [pa.nulls(2, one if what == "v" else None) for one in TYPES]
        table = pa.table([ids, *nulls], ["id", *names])
        path = tmp_path / f"{at}.{'arrow' if kind == 'ipc' else kind}"
        (feather.write_feather if kind == "ipc" else pq.write_table)(table, path)
        expected += table.to_pylist()
    source = getattr(sources, kind)(tmp_path)
    assert rows_of(source) == expected
    typed = next(path for path in tmp_path.iterdir() if path.name[0] == str(order.index("v")))
    assert source.schema() == getattr(sources, kind)(typed).schema()


def test_a_column_without_values_in_all_files_is_refused(tmp_path: Path) -> None:
    for name in "ab":
        pq.write_table(pa.table({"x": pa.nulls(1)}), tmp_path / f"{name}.parquet")
    with pytest.raises(InputError, match=r"a\.parquet: column 'x' has type null, .* declare the"):
        sources.parquet(tmp_path).schema()


def test_required_columns_are_read_as_nullable(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    pq.write_table(pa.table({"id": [1]}, schema=schema), tmp_path / "a.parquet")
    write_b = pa.table({"id": pa.array([2], pa.int64())})
    pq.write_table(write_b, tmp_path / "b.parquet")
    assert rows_of(sources.parquet(tmp_path)) == [{"id": 1}, {"id": 2}]


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", rows=0)
    assert rows_of(sources.parquet(tmp_path)) == []


def message_of(source: sources.Source) -> str:
    with pytest.raises(InputError) as error:
        list(read_all(source))
    return str(error.value)


def test_a_missing_column_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet")
    path = tmp_path / "a.parquet"
    source = sources.parquet(path, columns=["nam"])
    assert message_of(source) == f"{path}: no column 'nam'; did you mean 'name'?"
    source = sources.parquet(path, columns=["vehicle"])
    assert message_of(source) == f"{path}: no column 'vehicle'; it has 'id', 'name', 'at'"
    with pytest.raises(InputError, match="no column"):
        source.schema()


def test_an_unsupported_type_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": [1], "tags": [["x"]]}), path)
    assert message_of(sources.parquet(path)) == (
        f"{path}: column 'tags' has type list<element: string>, which whale-ray does not support; "
        "make its parts columns of their own, or turn it into a string, or leave it out by columns="
    )
    assert rows_of(sources.parquet(path, columns=["id"])) == [{"id": 1}]


def test_files_that_differ_are_named(tmp_path: Path) -> None:
    a, b = tmp_path / "a.parquet", tmp_path / "b.parquet"
    pq.write_table(pa.table({"id": pa.array([1], pa.int64())}), a)
    pq.write_table(pa.table({"id": pa.array([1], pa.int32())}), b)
    assert message_of(sources.parquet(tmp_path)) == (
        f"{b}: the column 'id' is int32 here but int64 in {a}; "
        "name the columns= wanted, or write all files with the same types"
    )
    pq.write_table(pa.table({"id": pa.array([1], pa.int64()), "x": [1]}), b)
    assert message_of(sources.parquet(tmp_path)) == (
        f"{b}: the column 'x' is int64 here but missing in {a}; "
        "name the columns= wanted, or write all files with the same types"
    )
    assert rows_of(sources.parquet(tmp_path, columns=["id"])) == [{"id": 1}, {"id": 1}]


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(path)
    path.write_bytes(path.read_bytes()[:-20])
    assert message_of(sources.parquet(path)) == (
        f"{path}: not a complete Parquet file (Parquet magic bytes not found in footer); "
        "write it again or leave it out"
    )


def test_damaged_data_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write(path)
    data = bytearray(path.read_bytes())
    data[4:60] = b"\xff" * 56
    path.write_bytes(data)
    message = message_of(sources.parquet(path))
    assert message.startswith(f"{path}: the Parquet file is damaged (")
    assert message.endswith("); write it again")
    assert "\n" not in message


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"PAR1PAR1", b"PAR1" + bytes(20) + b"PAR1", b"x,y\n"]
)
def test_a_file_that_is_not_parquet_is_named(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(data)
    source = sources.parquet(path)
    for use in (source.schema, lambda: list(read_all(source))):
        with pytest.raises(InputError) as error:
            use()
        assert str(error.value).startswith(f"{path}: not a complete Parquet file (")
        assert str(error.value).endswith("); write it again or leave it out")
        assert "\n" not in str(error.value)


@given(seed=st.integers(0, 10**6), changes=st.integers(1, 20), keep=st.floats(0.1, 1))
def test_any_damage_is_one_line_that_names_the_file(
    seed: int, changes: int, keep: float, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "a.parquet"
    write(path, rows=50, group=20)
    generator = np.random.default_rng(seed)
    data = bytearray(path.read_bytes())
    # Most places are in the footer, where thrift's structures and the columns' names are.
    for place in generator.integers(len(data) // 3, len(data), changes):
        data[place] = generator.integers(256)
    path.write_bytes(data[: int(len(data) * keep)] if keep < 0.5 else data)
    message = f"{path}: undamaged, or damaged so that only a checksum would show it"
    try:
        rows_of(sources.parquet(path))
    except InputError as error:
        message = str(error)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message


def test_a_time_zone_that_is_not_known_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    for zone in ("+02:00", "Europe/Berlin", "UvC"):
        pq.write_table(pa.table({"at": pa.array([0], pa.timestamp("s", zone))}), path)
        if zone != "UvC":
            assert rows_of(sources.parquet(path))[0]["at"].timestamp() == 0
    with pytest.raises(InputError) as error:
        sources.parquet(path).schema()
    assert str(error.value) == (
        f"{path}: the time zone 'UvC' of the column 'at' is not known here; "
        "install tzdata, or write the column in UTC"
    )


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = pa.array([b"a", b"K\xe4se", None]).view(pa.string())
    for column in (texts, texts.dictionary_encode()):
        pq.write_table(pa.table({"id": [1, 2, 3], "name": column}), path)
        assert message_of(sources.parquet(path)) == (
            f"{path}: the text column 'name' holds bytes that are not UTF-8 "
            "(Invalid UTF8 sequence at string index 1); write it as binary, or in UTF-8"
        )
        assert [row["id"] for row in rows_of(sources.parquet(path, columns=["id"]))] == [1, 2, 3]


def test_checksums_are_verified_where_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"id": pa.array(range(1000), pa.int64())})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    data = path.read_bytes()
    value = (777).to_bytes(8, "little")
    assert data.count(value) == 1
    path.write_bytes(data.replace(value, (778).to_bytes(8, "little")))
    assert message_of(sources.parquet(path)) == (
        f"{path}: the Parquet file is damaged (could not verify page integrity, CRC checksum "
        "verification failed for page_ordinal 0); write it again"
    )


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_timestamps_of_every_unit_are_read(tmp_path: Path, unit: str, zone: str | None) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"at": pa.array([0, 1_234_567_890, None], pa.timestamp(unit, zone))})
    pq.write_table(table, path)
    source = sources.parquet(path)
    stored = "ms" if unit == "s" else unit  # Parquet has no seconds
    assert str(source.schema()) == f"at: {pa.timestamp(stored, zone)}"
    expected = table.column("at").cast(pa.timestamp(stored, zone))
    (batch,) = read_all(source)
    assert batch.to_arrow().column("at").equals(expected.combine_chunks())


def test_sparks_old_timestamps_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"at": pa.array([0, 1_234_567_890, None], pa.timestamp("ns"))})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    (batch,) = read_all(sources.parquet(path))
    assert batch.to_arrow().column("at").equals(table.column("at").combine_chunks())


def test_a_missing_file_is_found_by_check(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        sources.parquet(tmp_path / "gone.parquet").check()
    assert str(error.value) == f"no file or folder '{tmp_path}/gone.parquet'; correct the path"
