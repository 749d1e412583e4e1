"""Spill files: nameless temporary files for batches that do not fit into memory.

The kernel frees nameless files when the process ends, even if it is killed. Batches are stored in
the wire format.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from typing import IO

import numpy as np

from ..configs.errors import ResourceError, system_reason
from ..configs.temporary_folder import spill_folder, temporary_folder
from ..transport.wire.batch import Batch
from ..transport.wire.codec import decode, encode_into, message_size
from ..transport.wire.messages import WorkerMessage
from ..transport.wire.types import Schema
from .page_file import start_writing

PAGE_BYTES = 64 << 20
"""About the size of one file, which is freed when all of its batches have been read."""


@dataclass(frozen=True)
class SpillRecord:
    """The position of a spilled batch."""

    page: int
    offset: int
    length: int


@dataclass
class _Page:
    """One nameless file; `live` is the number of its batches that were not read back."""

    file: IO[bytes]
    end: int = 0
    live: int = 0


class SpillFile:
    """The spilled batches of one operator instance, in nameless files of about `page_bytes`.

    `bytes_max` bounds their total size; `owner` is the operator's id, for messages.
    """

    def __init__(
        self, owner: str, bytes_max: int, directory: str = "", page_bytes: int = PAGE_BYTES
    ) -> None:
        self._owner = owner
        self._bytes_max = bytes_max
        self._directory = directory
        self._page_bytes = page_bytes
        self._schemas: dict[int, Schema] = {}
        self._pages: dict[int, _Page] = {}
        self._newest = 0

    def append(self, batch: Batch) -> SpillRecord:
        """Write `batch`.

        Raises:
            ResourceError: the files would exceed `bytes_max`, or cannot be written.
        """
        with_times = batch.times is not None
        buffer = np.empty(message_size(batch, 0, with_times), dtype=np.uint8)
        length = encode_into(
            buffer, batch, stream=0, source=0, attempt=0, sequence=0, with_times=with_times
        )
        if self.size_bytes + length > self._bytes_max:
            msg = (
                f"operator {self._owner!r} would spill more than {self._bytes_max:,} bytes waiting "
                "for event time to advance; raise runtime.spill_bytes_max or lower "
                "runtime.max_drift_ms"
            )
            raise ResourceError(msg)
        try:
            page = self._page()
            page.file.seek(page.end)
            page.file.write(buffer[:length].data)
            page.file.flush()
        except OSError as error:
            msg = (
                f"operator {self._owner!r} cannot spill to {temporary_folder(self._directory)}: "
                f"{system_reason(error)}; make room or correct that, or name another folder in "
                "runtime.spill_directory"
            )
            raise ResourceError(msg) from None
        self._schemas[batch.schema.schema_id] = batch.schema
        record = SpillRecord(self._newest, page.end, length)
        page.end += length
        page.live += 1
        return record

    def start_writing(self) -> None:
        """Let the kernel begin to write the newest file to the disk; nothing waits for it."""
        page = self._pages.get(self._newest)
        if page is not None:
            start_writing(page.file.fileno(), 0, page.end)

    def start_reading(self, record: SpillRecord) -> None:
        """Let the kernel begin to read a batch; nothing waits for it."""
        file = self._pages[record.page].file
        os.posix_fadvise(file.fileno(), record.offset, record.length, os.POSIX_FADV_WILLNEED)

    def look(self, record: SpillRecord) -> Batch:
        """Return a copy of a batch, which stays here; another thread may append meanwhile."""
        page = self._pages[record.page]
        buffer = np.empty(record.length, dtype=np.uint8)
        os.preadv(page.file.fileno(), [buffer.data], record.offset)
        message = decode(buffer, self._schemas)
        assert isinstance(message, WorkerMessage)
        return message.batch

    def read(self, record: SpillRecord) -> Batch:
        """Read a batch back, once."""
        batch = self.look(record)
        page = self._pages[record.page]
        page.live -= 1
        if page.live == 0:
            page.file.close()
            del self._pages[record.page]
        return batch

    @property
    def size_bytes(self) -> int:
        """Bytes on disk now."""
        return sum(page.end for page in self._pages.values())

    def close(self) -> None:
        """Free all files."""
        for page in self._pages.values():
            with suppress(OSError):  # there may be no room for buffered bytes, dropped anyway
                page.file.close()
        self._pages.clear()

    def __del__(self) -> None:
        """Free all files: state is dropped, not closed."""
        self.close()

    def _page(self) -> _Page:
        """Return the page to write to: the newest, or a new one if that is full or freed."""
        page = self._pages.get(self._newest)
        if page is None or page.end >= self._page_bytes:
            self._newest += 1
            folder = spill_folder(self._directory)
            page = _Page(
                tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - until it is read
            )
            self._pages[self._newest] = page
        return page
