"""Reads the next record batches beside the worker's loop, while it computes with the present one.

Decoding holds no lock of Python's. So where a processor is free it takes no time of the loop's. It
is counted as the work of the thread that takes the batches, for which it is done.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, TypeAlias

from ...transport.thread_time import count_helper

if TYPE_CHECKING:
    import pyarrow as pa

    _Read: TypeAlias = tuple[pa.RecordBatch | BaseException | None, int]
    """A batch, None after the last, or what was raised; and the processor time it took, ns."""

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
    wanted: Queue[bool] = Queue(BATCHES_AHEAD)
    read: Queue[_Read] = Queue(BATCHES_AHEAD)
    thread = Thread(target=_serve, args=(batches, wanted, read), name="read-ahead", daemon=True)
    coming = 0
    try:
        while True:
            if coming:
                found, cpu_ns = read.get()
                coming -= 1
                count_helper(cpu_ns)
                if isinstance(found, BaseException):
                    raise found
            else:
                found = next(batches, None)
            if found is None:
                return
            ahead = min(BATCHES_AHEAD, BYTES_AHEAD // max(found.nbytes, 1))
            if ahead and thread.ident is None:
                thread.start()
            for _ in range(ahead - coming):
                wanted.put(True)
                coming += 1
            yield found
    finally:
        if thread.ident is not None:
            _stop(thread, wanted)


def _serve(batches: Iterator[pa.RecordBatch], wanted: Queue[bool], read: Queue[_Read]) -> None:
    """Put a batch into `read` for each that is wanted: None after the last, or what was raised."""
    while wanted.get():
        began_ns = time.thread_time_ns()
        found: pa.RecordBatch | BaseException | None
        try:
            found = next(batches, None)
        except BaseException as error:  # noqa: BLE001  # raised where it is taken
            found = error
        read.put((found, time.thread_time_ns() - began_ns))


def _stop(thread: Thread, wanted: Queue[bool]) -> None:
    """Take back what is not begun, and wait for the end of what is."""
    with suppress(Empty):
        while True:
            wanted.get_nowait()
    wanted.put(False)
    thread.join()
