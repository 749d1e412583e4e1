"""Rows as the bytes of an Arrow IPC stream, in as few copies as it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["stream_of"]


def stream_of(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> bytes:
    """Return record batches of a schema as one stream of Arrow IPC.

    Its size is found out before any row is copied. A stream that grows while it is written copies
    them again each time, into pages that are new to the process, which cost more than the copy.
    """
    import pyarrow as pa

    counted = pa.MockOutputStream()
    _write(counted, schema, batches)
    whole = pa.allocate_buffer(counted.size())
    _write(pa.FixedSizeBufferWriter(whole), schema, batches)
    data: bytes = whole.to_pybytes()
    return data


def _write(sink: pa.NativeFile, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> None:
    import pyarrow as pa

    with pa.ipc.new_stream(sink, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
