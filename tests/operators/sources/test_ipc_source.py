"""The source of Arrow IPC files, against pyarrow's own reader and DuckDB."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given as for_each
from hypothesis import strategies as st
from pyarrow import feather

import whale_ray as whale
from tests.operators.sources.opened import rows_of
from whale_ray.configs.errors import InputError
from whale_ray.operators import sources
from whale_ray.testing import check_source, instance_context, read_all

ROWS = 100
KINDS = {
    "mapped": {},
    "compressed": {"compression": "zstd"},
    "mapped stream": {"stream": True},
    "compressed stream": {"compression": "lz4", "stream": True},
}


def table_of(rows: int = ROWS, start: int = 0) -> pa.Table:
    numbers = range(start, start + rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "name": pa.array([None if i % 3 == 0 else f"né{i}" for i in numbers], pa.string()),
            "flag": pa.array([i % 5 == 0 for i in numbers]),
            "wide": pa.array([f"w{i}" for i in numbers], pa.large_string()),
            "at": pa.array([1000 * i for i in numbers], pa.timestamp("ms", "UTC")),
            "code": pa.array([f"c{i % 4}" for i in numbers]).dictionary_encode(),
            "view": pa.array(
                [f"a text that is not inlined {i}" for i in numbers], pa.string_view()
            ),
        }
    )


def write(
    path: Path,
    table: pa.Table | None = None,
    batch_rows: int = 7,
    *,
    stream: bool = False,
    compression: str | None = None,
) -> pa.Table:
    table = table_of() if table is None else table
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with new(path, table.schema, options=options) as writer:
        for batch in table.combine_chunks().to_batches(batch_rows):
            writer.write_batch(batch)
    return table


def message_of(source: sources.Source) -> str:
    with pytest.raises(InputError) as error:
        list(read_all(source))
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("kind", list(KINDS))
def test_rows_are_pyarrows(tmp_path: Path, kind: str) -> None:
    second = write(tmp_path / "b.arrow", table_of(20, 1000), **KINDS[kind])
    first = write(tmp_path / "a.feather", **KINDS[kind])
    source = sources.ipc(tmp_path)
    assert rows_of(source) == first.to_pylist() + second.to_pylist()
    assert pickle.loads(pickle.dumps(source)) == source
    compressed = ", compressed, so not mapped" if "compressed" in kind else ", mapped"
    stream = ", a stream that every instance passes over" if "stream" in kind else ""
    assert source.describe() == f"ipc {tmp_path}{compressed}{stream}"
    with_columns = sources.ipc(tmp_path, columns=["flag", "id"])
    assert (
        rows_of(with_columns)
        == pa.concat_tables([first, second]).select(["flag", "id"]).to_pylist()
    )
    assert with_columns.describe() == f"ipc {tmp_path} (flag, id){compressed}{stream}"


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("parallelism", [2, 3, 16])
def test_record_batches_are_dealt_out_in_turn(tmp_path: Path, kind: str, parallelism: int) -> None:
    for name, start in (("a", 0), ("b", 10), ("c", 20)):
        write(tmp_path / f"{name}.arrow", table_of(10, start), batch_rows=4, **KINDS[kind])
    source = sources.ipc(tmp_path)
    batches = [range(f + g, min(f + g + 4, f + 10)) for f in (0, 10, 20) for g in (0, 4, 8)]
    for instance in range(parallelism):
        expected = [i for batch in batches[instance::parallelism] for i in batch]
        assert [row["id"] for row in rows_of(source, instance, parallelism)] == expected


def mapping_of(path: Path) -> list[range]:
    """Where the kernel says that a file is mapped."""
    spans = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(path)):
            begin, end = (int(one, 16) for one in line.split()[0].split("-"))
            spans.append(range(begin, end))
    return spans


@pytest.mark.parametrize("stream", [False, True])
def test_columns_are_views_of_the_mapping(tmp_path: Path, stream: bool) -> None:
    path = tmp_path / "a.arrow"
    table = table_of().select(["id", "name", "flag", "wide", "at"])
    write(path, table, batch_rows=64, stream=stream)
    batches = list(read_all(sources.ipc(path), max_rows=10))
    spans = mapping_of(path)
    assert spans

    def is_mapped(array: Any) -> bool:
        return any(array.ctypes.data in span for span in spans)

    for batch in batches:
        assert batch.owned, "nothing copies rows that no ring waits for"
        for name in ("id", "name", "wide", "at"):
            assert is_mapped(batch.column(name).data), name
        assert is_mapped(batch.column("name").offsets)
        assert not is_mapped(batch.column("flag").data)
    assert whale.Batch.concat(batches).to_pylist() == table.to_pylist()


@pytest.mark.parametrize("kind", list(KINDS))
def test_it_keeps_the_promises_of_a_source(tmp_path: Path, kind: str) -> None:
    table = table_of(23).select(["id", "name"])
    write(tmp_path / "a.arrow", table, 5, **KINDS[kind])
    write(tmp_path / "b.arrow", table, 9, **KINDS[kind])
    check_source(lambda: sources.ipc(tmp_path))


def test_a_position_says_record_batch_and_row(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    table = write(path, table_of(40), batch_rows=16)
    context = instance_context()
    reader = sources.ipc(path).open(context)
    for rows in (16, 5):
        reader.read(rows)
    position = reader.position()
    assert position is not None
    ((unit, place),) = position["begun"]
    assert (unit, place["rows"]) == (1, 5)
    rest = sources.ipc(path).open_at(context, [position]).read(99)
    assert rest is not None
    assert rest.to_pylist() == table.slice(21, 11).to_pylist()
    write(path, table_of(41), batch_rows=16)
    with pytest.raises(InputError, match="a part of it was read before the checkpoint, and it has"):
        list(iter(lambda: sources.ipc(path).open_at(context, [position]).read(99), None))


def test_a_file_that_is_written_to_while_it_is_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write(path, batch_rows=10)
    reader = sources.ipc(path).open(instance_context())
    assert reader.read(10) is not None
    os.truncate(path, 50)  # to touch the pages behind would kill the process
    with pytest.raises(InputError) as error:
        reader.read(10)
    assert str(error.value) == (
        f"{path}: the file was written to while it was read; files that are mapped must stay as "
        "they are: write another one, and rename it"
    )
    reader.close()


def test_a_file_that_another_one_replaces_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    table = write(path, batch_rows=10)
    reader = sources.ipc(path).open(instance_context())
    batches = [reader.read(10)]
    write(tmp_path / "b.arrow", table_of(3))
    (tmp_path / "b.arrow").rename(path)
    batches += iter(lambda: reader.read(10), None)
    assert [row for one in batches if one for row in one.to_pylist()] == table.to_pylist()


CUT_OFF = "has no footer, so it is cut off or still being written"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not an Arrow IPC file, for it is empty; write it again or leave it out"),
        (b"x,y\n", r"not an Arrow IPC file, for it begins with b'x,y\\n'; write it again"),
        (b"PAR1PAR1", "it is a Parquet file: read it with sources.parquet"),
        (b"FEA1 and more", "it is a Feather file of version 1: write it again, as version 2"),
        (b"ARROW1", CUT_OFF),
        (b"ARROW1\0\0ARROW1", "not a complete Arrow IPC file"),
    ],
)
def test_a_file_that_is_not_arrow_ipc_is_named(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "a.arrow"
    path.write_bytes(data)
    source = sources.ipc(path)
    for use in (source.schema, lambda: list(read_all(source))):
        with pytest.raises(InputError, match=reason) as error:
            use()
        assert str(error.value).startswith(f"{path}: ")
        assert "\n" not in str(error.value)
    assert source.describe() == f"ipc {path}"


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write(path)
    path.write_bytes(path.read_bytes()[:-20])
    assert CUT_OFF in message_of(sources.ipc(path))
    write(path, stream=True)
    path.write_bytes(path.read_bytes()[:-200])
    assert message_of(sources.ipc(path)).startswith(f"{path}: not a complete Arrow IPC file (")


def test_text_that_is_not_utf8_and_files_that_differ_are_named(tmp_path: Path) -> None:
    a, b = tmp_path / "a.arrow", tmp_path / "b.arrow"
    texts = pa.array([b"a", b"K\xe4se", None]).view(pa.string())
    for column in (texts, texts.dictionary_encode(), texts.cast(pa.large_string())):
        write(a, pa.table({"id": [1, 2, 3], "name": column}))
        assert message_of(sources.ipc(a)).startswith(
            f"{a}: the text column 'name' holds bytes that are not UTF-8 ("
        )
        assert [row["id"] for row in rows_of(sources.ipc(a, columns=["id"]))] == [1, 2, 3]
    write(b, pa.table({"id": pa.array([1], pa.int32()), "name": ["x"]}))
    assert f"{b}: the column 'id' is int32 here but int64 in {a}" in message_of(
        sources.ipc(tmp_path, columns=["id"])
    )
    assert "no column 'nam'; did you mean 'name'?" in message_of(sources.ipc(a, columns=["nam"]))


@for_each(
    seed=st.integers(0, 10**6),
    changes=st.integers(1, 20),
    keep=st.floats(0.1, 1),
    kind=st.sampled_from(list(KINDS)),
)
def test_any_damage_is_one_line_that_names_the_file(
    seed: int, changes: int, keep: float, kind: str, tmp_path_factory: Any
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "a.arrow"
    write(path, table_of(50), batch_rows=20, **KINDS[kind])
    generator = np.random.default_rng(seed)
    data = bytearray(path.read_bytes())
    for place in generator.integers(8, len(data), changes):
        data[place] = generator.integers(256)
    path.write_bytes(data[: int(len(data) * keep)] if keep < 0.5 else data)
    message = f"{path}: undamaged, or damaged so that only a checksum would show it"
    try:
        rows_of(sources.ipc(path))
    except InputError as error:
        message = str(error)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message


def test_feather_files_are_read(tmp_path: Path) -> None:
    table = table_of().drop_columns(["view"])
    feather.write_feather(table, tmp_path / "a.feather")
    assert rows_of(sources.ipc(tmp_path)) == table.to_pylist()


def test_real_rows_are_counted_as_duckdb_counts_them(tmp_path: Path, data_dir: Path) -> None:
    """Event times, watermarks and windows over positions of taxis, mapped."""
    given = pq.read_table(data_dir / "sf_taxi_gps.parquet").slice(0, 100_000).sort_by("event_time")
    path = tmp_path / "gps.arrow"
    write(path, given, batch_rows=10_000)
    topology = whale.Topology("count")
    gps = topology.source(sources.ipc(path), id="gps", event_time="event_time")
    counts = gps.group_by(whale.window("event_time", "1 hour"), "vehicle_id").agg(
        whale.functions.count().alias("rows"), whale.functions.min("lat_e5").alias("south")
    )
    counts.sink(whale.sinks.collect(), id="out")
    found = whale.run(topology).results("out").to_arrow()
    expected = duckdb.sql(
        "SELECT time_bucket(INTERVAL '1 hour', event_time) AS window_start, vehicle_id,"
        " count(*) AS rows, min(lat_e5) AS south FROM given GROUP BY ALL"
    ).to_arrow_table()
    same = duckdb.sql(
        "SELECT epoch_ms(window_start) AS at, vehicle_id, rows, south FROM found"
        " EXCEPT ALL SELECT epoch_ms(window_start), vehicle_id, rows, south FROM expected"
    ).fetchall()
    assert same == []
    assert found.num_rows == expected.num_rows > 100
