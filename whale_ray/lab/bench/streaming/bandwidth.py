"""How fast this machine reads memory, by one thread and by one a core: the bound of a scan."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ....transport.clock import SystemClock
from ....transport.compiling import njit
from ..report import BenchRow

__all__ = ["bandwidth_rows"]

_BYTES, _QUICK_BYTES = 1 << 30, 1 << 28
_ROUNDS = 5


@njit("int64(int64[::1])", cache=True, nogil=True)
def _total(words: Any) -> Any:
    """Add up all words; as a reduction of integers, it is compiled to vector instructions."""
    total = 0
    for place in range(words.shape[0]):
        total += words[place]
    return total


def bandwidth_rows(cores: int, quick: bool) -> list[BenchRow]:
    """Measure the best of some rounds, each over memory that exceeds the caches by far."""
    words = np.ones((_QUICK_BYTES if quick else _BYTES) // 8, np.int64)
    return [
        BenchRow("read bandwidth", {"threads": threads}, _bytes_per_s(words, threads) / 1e9, "GB/s")
        for threads in sorted({1, cores})
    ]


def _bytes_per_s(words: Any, threads: int) -> float:
    parts = np.array_split(words, threads)
    clock, best_s = SystemClock(), float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_ROUNDS):
            begin_ns = clock.monotonic_ns()
            found = sum(pool.map(_total, parts))
            best_s = min(best_s, (clock.monotonic_ns() - begin_ns) / 1e9)
            assert found == len(words)
    return float(words.nbytes / best_s)
