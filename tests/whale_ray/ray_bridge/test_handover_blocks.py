"""Reading handed-over blocks where Ray answers late, loses them, or has never been started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
from ray.exceptions import ObjectLostError

from whale_ray.errors import InputError, ResourceError
from whale_ray.ray_bridge.blocks import FileSource, ObjectRefs, ObjectSource
from whale_ray.testing import VirtualClock, instance_context, read_all
from whale_ray.transport.wire.types import Schema

COLUMNS = Schema.of(n="int64")
ORIGIN = "Spark DataFrame (n)"


class Store:
    """Stands for Ray's object store: what is in `here` has arrived on this node."""

    def __init__(self, tables: dict[str, pa.Table]) -> None:
        self.tables = tables
        self.here: set[str] = set()
        self.fetched: list[list[str]] = []

    def wait(self, refs: list[str], *, num_returns: int, timeout: float) -> Any:
        assert (num_returns, timeout) == (len(refs), 0)  # the reader never waits
        self.fetched.append(refs)
        return [ref for ref in refs if ref in self.here], []

    def get(self, ref: str) -> pa.Table:
        assert ref in self.here
        if ref not in self.tables:
            raise ObjectLostError("ab" * 28, owner_address=None, call_site="")
        return self.tables[ref]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store({name: pa.table({"n": [i]}) for i, name in enumerate("abcd")})
    monkeypatch.setattr(ray, "wait", made.wait)
    monkeypatch.setattr(ray, "get", made.get)
    return made


def test_a_reader_waits_for_no_object_and_keeps_their_order(store: Store) -> None:
    clock = VirtualClock()
    reader = ObjectSource(ObjectRefs("abcd"), COLUMNS, ORIGIN).open(instance_context(clock=clock))
    assert reader.next_ready_ns() is None
    store.here = {"b", "c"}
    assert reader.read(10) is None
    assert reader.next_ready_ns() == clock.monotonic_ns() + 1_000_000
    store.here = set("abcd")
    numbers = []
    while not reader.finished:
        batch = reader.read(10)
        numbers += [] if batch is None else batch["n"].tolist()
    assert numbers == [0, 1, 2, 3]
    assert reader.next_ready_ns() is None
    assert store.fetched[0] == ["a", "b", "c"]  # the first block and two more


def test_a_lost_object_is_named(store: Store) -> None:
    store.here = {"a", "lost"}
    with pytest.raises(ResourceError) as raised:
        list(read_all(ObjectSource(ObjectRefs(["a", "lost"]), COLUMNS, ORIGIN)))
    message = str(raised.value)
    assert message.startswith("Spark DataFrame (n): block 1 of 2 is lost (")
    assert message.endswith("); the process that submitted the job must live until it ends")


def test_columns_of_an_object_are_found_by_their_names(store: Store) -> None:
    columns = Schema.of(n="int64", m="int64")
    store.tables = {
        "a": pa.table({"n": [1], "m": [10]}),
        "b": pa.table({"m": [20], "n": [2]}),
        "c": pa.table({}),  # a block of which a filter left no row
        "other": pa.table({"n": [3], "k": [30]}),
    }
    store.here = set(store.tables)
    batches = read_all(ObjectSource(ObjectRefs("abc"), columns, ORIGIN))
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert rows == [{"n": 1, "m": 10}, {"n": 2, "m": 20}]
    with pytest.raises(InputError, match=r"a block has the columns \['n', 'k'\] instead of"):
        list(read_all(ObjectSource(ObjectRefs(["other"]), columns, ORIGIN)))


def test_files_are_read_by_position_and_cast(tmp_path: Path) -> None:
    for name, numbers in {"one": [1, 2], "two": [3]}.items():
        pq.write_table(pa.table({"c0": pa.array(numbers, pa.int32())}), tmp_path / name)
    source = FileSource(str(tmp_path), ("two", "one"), COLUMNS, ORIGIN)
    assert [batch.to_pylist() for batch in read_all(source)] == [[{"n": 3}], [{"n": 1}, {"n": 2}]]
    source.release()
    assert not tmp_path.exists()


def test_a_file_that_is_gone_or_damaged(tmp_path: Path) -> None:
    source = FileSource(str(tmp_path), ("rows",), COLUMNS, ORIGIN)
    for content in (None, b"no parquet"):
        if content is not None:
            (tmp_path / "rows").write_bytes(content)
        with pytest.raises(InputError) as raised:
            list(read_all(source))
        message = str(raised.value)
        assert message.startswith(f"{ORIGIN}: its hand-over file {tmp_path}/rows cannot be read (")
        assert message.endswith("); submit the job again")


def test_a_file_with_other_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"c0": [1], "c1": [2]}), tmp_path / "rows")
    with pytest.raises(InputError) as raised:
        list(read_all(FileSource(str(tmp_path), ("rows",), COLUMNS, ORIGIN)))
    assert str(raised.value) == (
        "Spark DataFrame (n): a block has the columns ['c0', 'c1'] instead of ['n']; "
        "select the same columns in all of it"
    )
