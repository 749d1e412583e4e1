"""Reads the next record batches beside the worker's loop, while it computes with the present one.

Decoding holds no lock of Python's. So where a processor is free it takes no time of the loop's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Future

    import pyarrow as pa

__all__ = ["BATCHES_AHEAD", "BYTES_AHEAD", "read_ahead"]

BATCHES_AHEAD = 2
"""At most so many batches are read before they are asked for."""

BYTES_AHEAD = 16 << 20
"""So large may they be together; of wider rows fewer batches are read ahead, or none."""


def read_ahead(batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
    """Yield the batches of an iterator, which a thread asks for the next ones meanwhile.

    How many follows from the size of the batch before; without one the caller's thread reads. What
    the iterator raises is raised after the batches before it. When the generator ends or is closed,
    no thread uses the iterator any more.
    """
    thread = ThreadPoolExecutor(1, "read-ahead")
    try:
        coming: deque[Future[pa.RecordBatch | None]] = deque(maxlen=BATCHES_AHEAD)
        while True:
            batch = coming.popleft().result() if coming else next(batches, None)
            if batch is None:
                return
            ahead = min(BATCHES_AHEAD, BYTES_AHEAD // max(batch.nbytes, 1))
            while len(coming) < ahead:
                coming.append(thread.submit(next, batches, None))
            yield batch
    finally:
        thread.shutdown(cancel_futures=True)
