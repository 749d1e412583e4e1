"""A file for batches that do not fit into memory for now.

The file has no name: the kernel frees it when the process ends, however it ends. Batches are kept
in the wire format and read back as owned copies.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

import numpy as np

from ..configs.errors import ResourceError
from ..transport.wire.batch import Batch
from ..transport.wire.codec import decode, encode_into, message_size
from ..transport.wire.messages import WorkerMessage
from ..transport.wire.types import Schema


@dataclass(frozen=True)
class SpillRecord:
    """Where a spilled batch lies in the file."""

    offset: int
    length: int


class SpillFile:
    """An unnamed temporary file of batches: append, read back, and start again once all are read.

    `bytes_max` bounds the file; `owner` is the operator's id, for the message.
    """

    def __init__(self, owner: str, bytes_max: int, directory: str = "") -> None:
        self._owner = owner
        self._bytes_max = bytes_max
        self._file = tempfile.TemporaryFile(  # noqa: SIM115 - it lives until `close`
            dir=directory or None, prefix="whale-ray-"
        )
        self._schemas: dict[int, Schema] = {}
        self._end = 0
        self._live_records = 0

    def append(self, batch: Batch) -> SpillRecord:
        """Write `batch` to the file.

        Raises:
            ResourceError: the file would exceed `bytes_max`, or the disk is full.
        """
        with_times = batch.times is not None
        buffer = np.empty(message_size(batch, 0, with_times), dtype=np.uint8)
        length = encode_into(
            buffer, batch, stream=0, source=0, attempt=0, sequence=0, with_times=with_times
        )
        if self._end + length > self._bytes_max:
            msg = (
                f"operator {self._owner!r} would spill more than {self._bytes_max:,} bytes waiting "
                "for event time to advance; raise runtime.spill_bytes_max or lower "
                "runtime.max_drift_ms"
            )
            raise ResourceError(msg)
        try:
            self._file.seek(self._end)
            self._file.write(buffer[:length].data)
        except OSError as error:
            msg = (
                f"operator {self._owner!r} cannot spill to {tempfile.gettempdir()}: "
                f"{error.strerror}; free space there or set runtime.spill_directory"
            )
            raise ResourceError(msg) from error
        self._schemas[batch.schema.schema_id] = batch.schema
        record = SpillRecord(self._end, length)
        self._end += length
        self._live_records += 1
        return record

    def read(self, record: SpillRecord) -> Batch:
        """Read a batch back, once: its place in the file may be reused afterwards."""
        buffer = np.empty(record.length, dtype=np.uint8)
        self._file.seek(record.offset)
        self._file.readinto(buffer.data)
        message = decode(buffer, self._schemas)
        assert isinstance(message, WorkerMessage)
        self._live_records -= 1
        if self._live_records == 0:
            self._file.truncate(0)
            self._end = 0
        return message.batch

    @property
    def size_bytes(self) -> int:
        """Bytes that the file holds now."""
        return self._end

    def close(self) -> None:
        """Give the file back to the kernel."""
        self._file.close()
