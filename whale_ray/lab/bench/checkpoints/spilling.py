"""State at four times its memory: read-modify-write of keys, most of them on disk.

First the kernel has memory for the pages of the file; then it has not, by a control group.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from ....state.budget import StateBudget
from ....state.keys import hash_words
from ....state.records import RecordField, RecordLayout
from ....state.store import KeyedStore
from ....transport.wire.types import Schema
from ..memory_limit import NoLimitError, run_within
from ..report import Aim, BenchRow

__all__ = ["spilling_rows"]

KEYS = 16_000_000
QUICK_KEYS = 2_000_000
BATCH_ROWS = 65_536
BATCHES = 400
QUICK_BATCHES = 100
TIMES_ITS_MEMORY = 4
ZIPF_AIM = 0.2
_DISK_BYTES_MAX = 64 << 30
LIMITED_S = 20.0
"""For so long at most keys are drawn where the kernel limits memory."""
LIMITED_BATCH_ROWS = 4096
"""The pages of a batch must stay in memory from the search of its records to their update."""
BESIDE_BYTES = 48 << 20
"""What the limited process may take beside its state: batches, pages on their way to the disk."""


def spilling_rows(folder: Path, quick: bool) -> list[BenchRow]:
    """Measure keys drawn by Zipf's law and uniformly."""
    keys, batches = (QUICK_KEYS, QUICK_BATCHES) if quick else (KEYS, BATCHES)
    order = np.random.default_rng(1).permutation(keys)
    rows = []
    for name, draw in (("Zipf", _zipf), ("uniform", _uniform)):
        in_memory, taken = _rate(StateBudget(_DISK_BYTES_MAX), order, batches, draw)
        budget = StateBudget(taken // TIMES_ITS_MEMORY, _DISK_BYTES_MAX, str(folder))
        spilled, _ = _rate(budget, order, batches, draw)
        rows.append(
            BenchRow(
                f"state at {TIMES_ITS_MEMORY} times its memory, {name} keys",
                {"keys": keys, "state MiB": taken >> 20},
                spilled / 1e6,
                "M rows/s",
                ratio=spilled / in_memory,
                against="all in memory",
                aim=Aim("ratio", "at least", ZIPF_AIM) if name == "Zipf" else None,
            )
        )
        rows.append(_limited_row(name, draw, in_memory, taken, folder, order, batches))
    return rows


def _limited_row(
    name: str,
    draw: Any,
    in_memory: float,
    taken: int,
    folder: Path,
    order: np.ndarray[Any, Any],
    batches: int,
) -> BenchRow:
    """Measure where the kernel has no memory beyond the budget."""
    budget = StateBudget(taken // TIMES_ITS_MEMORY, _DISK_BYTES_MAX, str(folder))
    title = f"the same with a hard limit of memory, {name} keys"
    case: dict[str, Any] = {"keys": len(order), "state MiB": taken >> 20}

    def work() -> tuple[float, float]:
        return _limited_rate(budget, order, batches, draw)

    try:
        rate, io_bytes_per_s = run_within(budget.limit_bytes + BESIDE_BYTES, work)
    except NoLimitError as error:
        return BenchRow(f"{title}: not measured, {error}", case, 0.0, "M rows/s")
    case["disk MB/s"] = round(io_bytes_per_s / 1e6)
    return BenchRow(title, case, rate / 1e6, "M rows/s", ratio=rate / in_memory, against="memory")


def _limited_rate(
    budget: StateBudget, order: np.ndarray[Any, Any], batches: int, draw: Any
) -> tuple[float, float]:
    """Return rows per second, and the bytes that the disk reads and writes for them."""
    store, generator = _filled(budget, order), np.random.default_rng(2)
    rows = 0
    begin_s, begin_bytes = time.perf_counter(), _disk_bytes()
    for _ in range(batches):
        drawn = draw(generator, len(order))
        for first in range(0, BATCH_ROWS, LIMITED_BATCH_ROWS):
            _add(store, drawn[first : first + LIMITED_BATCH_ROWS])
        rows += BATCH_ROWS
        if time.perf_counter() - begin_s > LIMITED_S:
            break
    taken_s = time.perf_counter() - begin_s
    return rows / taken_s, (_disk_bytes() - begin_bytes) / taken_s


def _disk_bytes() -> int:
    """Return the bytes that this process has made the disk read or write."""
    lines = (line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    counters = {name: int(value) for name, value in lines}
    return counters["read_bytes"] + counters["write_bytes"]


def _zipf(generator: np.random.Generator, keys: int) -> np.ndarray[Any, Any]:
    return np.floor(keys ** generator.random(BATCH_ROWS)).astype(np.int64)


def _uniform(generator: np.random.Generator, keys: int) -> np.ndarray[Any, Any]:
    return generator.integers(0, keys, BATCH_ROWS)


def _rate(
    budget: StateBudget, order: np.ndarray[Any, Any], batches: int, draw: Any
) -> tuple[float, int]:
    """Return rows per second once all keys are there, and what the state takes."""
    store, generator = _filled(budget, order), np.random.default_rng(2)
    taken_s = 0.0
    for _ in range(batches):
        drawn = draw(generator, len(order))
        begin_s = time.perf_counter()
        _add(store, drawn)
        taken_s += time.perf_counter() - begin_s
    return batches * BATCH_ROWS / taken_s, store.nbytes


def _filled(budget: StateBudget, order: np.ndarray[Any, Any]) -> KeyedStore:
    """Return a store with all keys, that came in an order."""
    fields = (RecordField("n", np.dtype(np.int64)), RecordField("sum", np.dtype(np.float64)))
    store = KeyedStore(RecordLayout(Schema.of(key="int64"), fields), budget, "bench")
    for first in range(0, len(order), BATCH_ROWS):
        _add(store, order[first : first + BATCH_ROWS])
    return store


def _add(store: KeyedStore, keys: np.ndarray[Any, Any]) -> None:
    words = keys.reshape(-1, 1).view(np.uint64)
    hashes = np.empty(len(words), np.uint64)
    hash_words(words, hashes)
    slots = store.slots_of_words(hashes, words)
    store.records["n"][slots] += 1
