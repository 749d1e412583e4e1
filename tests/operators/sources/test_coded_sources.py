"""Sources whose texts are codes of a dictionary, against what Arrow and DuckDB read."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import whale_ray as whale
from whale_ray.configs.errors import InputError
from whale_ray.operators.compiled.aggregating_chain import AggregatingChain
from whale_ray.operators.sources.base import Source
from whale_ray.operators.transforms import FilterExpression
from whale_ray.operators.windows.aggregation import Aggregation
from whale_ray.operators.windows.partial_windows import PartialWindows
from whale_ray.testing import instance_context
from whale_ray.transport.wire.batch import Batch

F, col = whale.functions, whale.col
ROWS = 21_100


def _read(source: Source) -> list[Batch]:
    reader = source.open(instance_context())
    found = []
    while not reader.finished:
        batch = reader.read(3_000)
        if batch is not None and batch.num_rows:
            found.append(batch)
    reader.close()
    return found


@pytest.fixture
def events(tmp_path: Path) -> Path:
    """Write row groups with dictionaries of their own; each user is another."""
    kinds = [None if n % 11 == 0 else f"kind {n % 3 + n // 7_000}" for n in range(ROWS)]
    users = [f"a user with the number {n * 7919}" for n in range(ROWS)]
    large = pa.array(kinds, pa.large_string())
    ads = [f"ad {n % 400}" for n in range(ROWS)]
    table = pa.table({"kind": kinds, "user": users, "large": large, "ad": ads})
    pq.write_table(table, tmp_path / "events.parquet", row_group_size=7_000)
    return tmp_path / "events.parquet"


def test_parquet_gives_codes_where_the_dictionary_is_small(events: Path) -> None:
    batches = _read(whale.sources.parquet(events))
    names = [[batch.schema.names[at] for at in batch.coded] for batch in batches]
    assert names == [["kind", "ad"]] * 10
    assert len({id(batch.coded[0].dictionary) for batch in batches}) == 4
    found = pa.Table.from_batches([batch.to_arrow() for batch in batches])
    assert found.equals(pq.read_table(events).cast(found.schema))


def test_small_row_groups_are_read_together(tmp_path: Path) -> None:
    table = pa.table({"kind": [f"kind {n % 3}" for n in range(ROWS)]})
    pq.write_table(table, tmp_path / "small.parquet", row_group_size=100)
    batches = _read(whale.sources.parquet(tmp_path / "small.parquet"))
    assert not any(batch.coded for batch in batches)
    assert max(batch.num_rows for batch in batches) == 3_000


def test_groups_by_codes_are_those_of_duckdb(events: Path) -> None:
    asked = Aggregation(("kind",), None, (F.count().alias("rows"),))
    partial = PartialWindows(asked, None)
    partial.open(instance_context(operator_id="partial"), "sums")
    likely = FilterExpression(col("kind").is_null() | ~col("kind").endswith("2"))
    chain = AggregatingChain((likely,), partial, "compiled")
    for batch in _read(whale.sources.parquet(events)):
        assert chain.aggregate(batch) is not None
    (groups,) = partial.flush("end")
    query = f"FROM '{events}' WHERE kind IS NULL OR NOT kind LIKE '%2'"
    expected = duckdb.sql(f"SELECT kind, count(*) {query} GROUP BY kind").fetchall()
    found = zip(groups.column("kind").to_pylist(), groups.columns[-1].to_pylist(), strict=True)
    assert sorted(found, key=repr) == sorted(expected, key=repr)


@pytest.mark.parametrize("deltas", [True, False])
def test_dictionaries_of_ipc_streams_may_grow_or_be_replaced(tmp_path: Path, deltas: bool) -> None:
    path = tmp_path / "events.arrows"
    texts = ["a", "b", "c", "d"] if deltas else ["d", "c", "b", "a"]
    parts = []
    for count in range(1, 5):
        codes = pa.array([None if n == 2 else n % count for n in range(10)], pa.int8())
        known = texts[:count] if deltas else texts[-count:]
        parts.append(pa.DictionaryArray.from_arrays(codes, pa.array(known)))
    schema = pa.schema([("kind", parts[0].type)])
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
    with pa.ipc.new_stream(path, schema, options=options) as stream:
        for part in parts:
            stream.write_batch(pa.record_batch([part], schema=schema))
    batches = _read(whale.sources.ipc(path))
    assert all(list(batch.coded) == [0] for batch in batches)
    expected = [text for part in parts for text in part.to_pylist()]
    assert [text for batch in batches for text in batch.columns[0].to_pylist()] == expected


@pytest.mark.parametrize("codes", [[0, 2, 1], [0, -1, None], [None, 2, 1]])
def test_a_code_that_is_none_of_the_dictionary_is_refused(codes: list[int | None]) -> None:
    array = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int8()), ["a", "b"], safe=False)
    with pytest.raises(InputError, match=r"'kind' holds the code (2|-1), .* has 2 texts"):
        _read(whale.sources.arrow(pa.table({"kind": array})))
