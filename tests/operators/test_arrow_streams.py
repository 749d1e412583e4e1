"""Streams of Arrow IPC are those that Arrow itself writes, byte by byte."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from whale_ray.operators.arrow_streams import stream_of
from whale_ray.testing.strategies import batches
from whale_ray.transport.wire.batch import Batch


@given(batch=batches(), cuts=st.lists(st.integers(0, 50), max_size=4))
def test_a_stream_is_the_one_that_arrow_writes(batch: Batch, cuts: list[int]) -> None:
    rows = batch.to_arrow()
    edges = [0, *sorted(min(cut, rows.num_rows) for cut in cuts), rows.num_rows]
    parts = [rows.slice(at, end - at) for at, end in pairwise(edges)]
    grown = pa.BufferOutputStream()
    with pa.ipc.new_stream(grown, rows.schema) as stream:
        for part in parts:
            stream.write_batch(part)
    assert stream_of(rows.schema, parts) == grown.getvalue().to_pybytes()
