"""Large batches are kept as they are, small ones are packed, and their order stays."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from whale_ray.operators.sinks.row_buffer import RowBuffer


def batch(first: int, rows: int) -> pa.RecordBatch:
    return pa.record_batch({"id": pa.array(np.arange(first, first + rows, dtype=np.int64))})


def addresses(table: pa.Table) -> list[int]:
    return [chunk.buffers()[1].address for chunk in table["id"].chunks]


def test_large_batches_are_not_copied_and_small_ones_before_them_come_before_them() -> None:
    sizes = [1, 2, 8_192, 3, 20_000, 30_000, 8_191, 4]  # 8,192 rows are 64 KiB
    batches = [batch(sum(sizes[:at]), rows) for at, rows in enumerate(sizes)]
    buffer = RowBuffer(batches[0].schema)
    for one in batches:
        buffer.add(one)
    table = buffer.table()
    assert table["id"].to_pylist() == list(range(sum(sizes)))
    assert [len(chunk) for chunk in table["id"].chunks] == [3, 8_192, 3, 20_000, 30_000, 8_195]
    kept = addresses(table)
    large = [batches[at].column(0).buffers()[1].address for at in (2, 4, 5)]
    assert [kept[1], kept[3], kept[4]] == large
    assert (buffer.rows, buffer.nbytes) == (sum(sizes), 8 * sum(sizes))


def test_looking_at_the_rows_changes_nothing() -> None:
    """What stages rows may end at any point, and do it again."""
    batches = [batch(first, 1) for first in range(3)]
    buffer = RowBuffer(batches[0].schema)
    for one in batches:
        buffer.add(one)
    before = dict(vars(buffer), _small=list(buffer._small), _packed=list(buffer._packed))
    for _ in range(2):
        assert buffer.table()["id"].to_pylist() == [0, 1, 2]
        assert vars(buffer) == before
    assert buffer.take()["id"].to_pylist() == [0, 1, 2]
    assert buffer.take()["id"].to_pylist() == []
