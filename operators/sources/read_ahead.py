"""Reads the next record batches beside the worker's loop, while it computes with the present one.

Decoding holds no lock of Python's. So where a processor is free it takes no time of the loop's. It
is counted as the work of the thread that takes the batches, for which it is done.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ...transport.thread_time import count_helper

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
        coming: deque[Future[tuple[pa.RecordBatch | None, int]]] = deque(maxlen=BATCHES_AHEAD)
        while True:
            if coming:
                batch, cpu_ns = coming.popleft().result()
                count_helper(cpu_ns)
            else:
                batch = next(batches, None)
            if batch is None:
                return
            ahead = min(BATCHES_AHEAD, BYTES_AHEAD // max(batch.nbytes, 1))
            while len(coming) < ahead:
                coming.append(thread.submit(_next, batches))
            yield batch
    finally:
        thread.shutdown(cancel_futures=True)


def _next(batches: Iterator[pa.RecordBatch]) -> tuple[pa.RecordBatch | None, int]:
    """Return the next batch, None after the last, and the processor time that it took, ns."""
    began_ns = time.thread_time_ns()
    return next(batches, None), time.thread_time_ns() - began_ns
