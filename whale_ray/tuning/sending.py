"""What a byte costs that is sent (s of Aeolus): encoded into a ring's memory, on this machine."""

from __future__ import annotations

import time

import numpy as np

from ..transport.wire import codec
from ..transport.wire.batch import Batch

__all__ = ["measure_byte_ns"]

_FEW_ROWS, _MANY_ROWS = 1_000, 32_000
_REPETITIONS = 30


def measure_byte_ns() -> float:
    """Return what a byte costs its sender, in nanoseconds of processor time.

    That is what a large message takes longer than a small one, by its additional bytes: the least
    of many times of each, since whatever interferes makes them longer.
    """
    sizes, times = [], []
    for rows in (_FEW_ROWS, _MANY_ROWS):
        batch = Batch.from_pydict({"a": np.arange(rows), "b": np.arange(rows) * 0.5})
        size = codec.message_size(batch)
        buffer = np.zeros(size, np.uint8)
        sizes.append(size)
        times.append(_least_ns(buffer, batch))
    return max(0.0, (times[1] - times[0]) / (sizes[1] - sizes[0]))


def _least_ns(buffer: np.ndarray, batch: Batch) -> int:
    least = 1 << 62
    for _ in range(_REPETITIONS):
        start_ns = time.thread_time_ns()
        codec.encode_into(
            buffer,
            batch,
            stream=0,
            source=0,
            attempt=0,
            sequence=0,
            watermark_ns=0,
            with_times=False,
            checksum=False,
        )
        least = min(least, time.thread_time_ns() - start_ns)
    return least
