"""A seeded generator of records: a key and the time of its creation (thesis, 4.7.1.2).

Keys are drawn uniformly from a range of 100 million, or by Zipf's distribution (4.7.3.2); the key
of rank r is r.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from ..shared.generated_file import write_stream
from ..shared.zipf import zipf_ranks
from .settings import ReadOnlySettings

__all__ = ["SCHEMA", "generate", "tables"]

SCHEMA = pa.schema({"key": pa.int64(), "created": pa.timestamp("us")})

_CHUNK_RECORDS = 500_000
_START_US = 1_436_918_400_000_000  # 2015-07-15 00:00:00 UTC


def tables(settings: ReadOnlySettings) -> Iterator[pa.Table]:
    """Yield the records, `SCHEMA`, in parts."""
    for chunk, start in enumerate(range(0, settings.records, _CHUNK_RECORDS)):
        count = min(_CHUNK_RECORDS, settings.records - start)
        random = np.random.default_rng((settings.seed, chunk))
        keys = zipf_ranks(random, count, settings.keys, settings.zipf)
        times = _START_US + np.arange(start, start + count, dtype=np.int64)
        yield pa.table([keys, times], schema=SCHEMA)


def generate(folder: str | Path, settings: ReadOnlySettings | None = None) -> Path:
    """Write records.parquet into a folder, which is made if need be; return the file's path.

    Memory: 500,000 records. A file of that name is replaced.
    """
    return write_stream(folder, "records", SCHEMA, tables(settings or ReadOnlySettings()))
