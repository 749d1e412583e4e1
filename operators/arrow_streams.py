"""Rows as the bytes of an Arrow IPC stream, in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["stream_of"]


def stream_of(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> bytes:
    """Return record batches of a schema as one stream of Arrow IPC.

    Arrow's own sinks in memory copy the rows, and bytes are made of those in another copy. Memory
    that is new to the process costs more than the copy into it.
    """
    import pyarrow as pa

    parts = _Views()
    with pa.PythonFile(parts, mode="w") as sink, pa.ipc.new_stream(sink, schema) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return b"".join(parts.written)


class _Views:
    """A file for Arrow that keeps what is written to it, columns as views of the rows' memory."""

    closed = False

    def __init__(self) -> None:
        self.written: list[bytes | pa.Buffer] = []

    def write(self, data: bytes | pa.Buffer) -> int:
        self.written.append(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is left to write."""

    def close(self) -> None:
        """Keep what was written."""
