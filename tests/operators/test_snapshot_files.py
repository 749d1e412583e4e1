"""Chunks and values of snapshots: random batches of every type come back from their bytes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.operators.snapshot_files import (
    chunk_from_bytes,
    chunk_to_bytes,
    values_from_bytes,
    values_to_bytes,
)
from whale_ray.operators.snapshots import StateChunk
from whale_ray.testing.strategies import batches
from whale_ray.transport.wire.batch import Batch
from whale_ray.transport.wire.types import Schema


@given(
    batch=batches(),
    with_times=st.booleans(),
    waits=st.none() | st.tuples(st.integers(0, 3), st.integers(-1, 99)),
)
def test_a_chunk_comes_back_bit_by_bit(
    batch: Batch, with_times: bool, waits: tuple[int, int] | None
) -> None:
    times = np.arange(-3, batch.num_rows - 3) * 10**18 // 7
    batch = batch.with_times(times if with_times else None)
    found = chunk_from_bytes(chunk_to_bytes(StateChunk(batch, "one", waits)))
    assert found.rows.equals(batch)
    assert found.rows.owned
    assert found.waits == waits


def test_rows_without_columns_keep_their_number_and_times() -> None:
    batch = Batch(Schema(()), [], 3, np.array([5, 6, 7]))
    found = chunk_from_bytes(chunk_to_bytes(StateChunk(batch)))
    assert found.rows.equals(batch)


def test_a_column_may_be_called_like_the_event_times() -> None:
    batch = Batch.from_pydict({"#times": ["a", "b"]}).with_times(np.array([1, 2]))
    assert chunk_from_bytes(chunk_to_bytes(StateChunk(batch))).rows.equals(batch)


def test_other_tools_read_a_chunk() -> None:
    data = chunk_to_bytes(StateChunk(Batch.from_pydict({"key": ["a"], "spent": [1.5]})))
    table = pa.ipc.open_stream(data).read_all()
    assert table.to_pylist() == [{"key": "a", "spent": 1.5}]


def test_reading_a_chunk_does_not_load_pandas() -> None:
    """Which takes half a second of a job's way back from its last checkpoint."""
    script = """
import sys, numpy as np
from whale_ray.operators.snapshot_files import chunk_from_bytes, chunk_to_bytes
from whale_ray.operators.snapshots import StateChunk
from whale_ray.transport.wire.batch import Batch
rows = Batch.from_pydict({"key": np.arange(3)}).with_times(np.arange(3))
assert chunk_from_bytes(chunk_to_bytes(StateChunk(rows))).rows.equals(rows)
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_what_is_no_chunk_is_refused() -> None:
    whole = chunk_to_bytes(StateChunk(Batch.from_pydict({"key": np.arange(100)})))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("key", pa.int64())])):
        pass
    for damaged in (b"", b"abc", whole[: len(whole) // 2], bytes(sink.getvalue())):
        with pytest.raises(ValueError, match=r".+"):
            chunk_from_bytes(damaged)


def test_values_come_back() -> None:
    values = {"learnt": Schema.of(a="int64"), "waiting": [{"x": None, "y": 1}], "at": -(2**63)}
    assert values_from_bytes(values_to_bytes(values)) == values
