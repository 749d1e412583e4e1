"""What a source reads, as a table."""

from __future__ import annotations

import pyarrow as pa

from whale_ray.operators.sources import Source
from whale_ray.testing import read_all


def table_of(source: Source, instance: int = 0, parallelism: int = 1) -> pa.Table:
    batches = [batch.to_arrow() for batch in read_all(source, instance, parallelism)]
    schema = source.schema()
    assert schema is not None
    return pa.Table.from_batches(batches, schema.to_arrow())
