"""Images: what records were at a seal, kept when they change for the first time after it.

An image is one word, the record's number + 1, and the record. Images lie in chunks of the store's
log, those of one segment (what lies between two seals) behind one another; a word of zero ends a
chunk. What has changed in a segment is known by its images, and going back is to put them back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .history import count_images, image_numbers
from .index import IMAGE_NEXT, IMAGE_STOP, LIVE, SEGMENT
from .log import CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, Chunk, ChunkLog

__all__ = ["RecordImages"]

ImageChunk = tuple[int, Chunk]
"""The segment whose images a chunk has, and the chunk."""


class RecordImages:
    """The images of a store's records, the oldest first.

    Args:
        log: the memory of the store.
        at: where the store stands, see `index`. `IMAGE_NEXT` and `IMAGE_STOP` belong to the images.
        record_bytes: the width of a record.
    """

    def __init__(self, log: ChunkLog, at: npt.NDArray[np.int64], record_bytes: int) -> None:
        self._log, self._at = log, at.data
        self._image_bytes = record_bytes + 8
        self._next_chunk_bytes = CHUNK_BYTES_MIN
        self.chunks: list[ImageChunk] = []

    @property
    def nbytes(self) -> int:
        """Bytes of memory that they take."""
        return sum(chunk.size for _, chunk in self.chunks)

    def open_chunk(self) -> None:
        """Make room for images; raise StateFullError if there is no memory for them."""
        segment = self._at[SEGMENT]
        chunk = self._log.take(max(self._next_chunk_bytes, self._image_bytes), self._at[LIVE])
        self._next_chunk_bytes = min(2 * self._next_chunk_bytes, CHUNK_BYTES_MAX)
        self.chunks.append((segment, chunk))
        self._at[IMAGE_NEXT], self._at[IMAGE_STOP] = chunk.start, chunk.stop

    def close_chunk(self) -> None:
        """End the images of a segment."""
        self._at[IMAGE_NEXT] = self._at[IMAGE_STOP] = 0
        self._next_chunk_bytes = CHUNK_BYTES_MIN

    def release(self, segment: int) -> None:
        """Free the images of the segments up to one."""
        for _, chunk in self.of(0, segment):
            self._log.free(chunk)
        self.chunks = [one for one in self.chunks if one[0] > segment]

    def cut(self, segment: int) -> None:
        """Free the images of the segments behind one."""
        for _, chunk in self.of(segment):
            self._log.free(chunk)
        self.chunks = [one for one in self.chunks if one[0] <= segment]
        self.close_chunk()

    def of(self, after: int, until: int | None = None) -> list[ImageChunk]:
        """Return the chunks of the segments behind `after`, up to `until`, the oldest first."""
        return [one for one in self.chunks if one[0] > after and (until is None or one[0] <= until)]

    def count(self, chunks: Sequence[ImageChunk]) -> int:
        """Return how many images there are in chunks."""
        return sum(count_images(*self.bounds(chunk)) for _, chunk in chunks)

    def numbers(self, chunks: Sequence[ImageChunk]) -> npt.NDArray[np.int64]:
        """Return the records of which there are images, each as often as there are: int64 (n,)."""
        found = [np.empty(0, np.int64)]
        for _, chunk in chunks:
            begin, stop, size = self.bounds(chunk)
            numbers = np.empty(count_images(begin, stop, size), np.int64)
            image_numbers(begin, size, numbers)
            found.append(numbers)
        return np.concatenate(found)

    def bounds(self, chunk: Chunk) -> tuple[int, int, int]:
        """Return the addresses of a chunk's begin and end, and the width of an image."""
        base = self._log.address
        return base + chunk.start, base + chunk.stop, self._image_bytes
