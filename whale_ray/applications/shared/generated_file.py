"""Writes a generated stream as one Parquet file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["write_stream"]


def write_stream(
    folder: str | Path, stream: str, schema: pa.Schema, tables: Iterable[pa.Table]
) -> Path:
    """Write the tables of a stream as STREAM.parquet; return the file's path.

    One table is in memory at a time. The file is there once it is whole, and takes the place of one
    of that name.

    Args:
        folder: receives the file; made if need be.
        stream: its name.
        schema: of all tables.
        tables: its rows, in parts.
    """
    path = Path(folder) / f"{stream}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with pq.ParquetWriter(partial, schema, compression="lz4") as writer:
        for table in tables:
            writer.write_table(table)
    os.replace(partial, path)
    return path
