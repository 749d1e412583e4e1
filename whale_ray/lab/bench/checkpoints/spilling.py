"""State at four times its memory: read-modify-write of keys, most of them on disk."""

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


def spilling_rows(folder: Path, quick: bool) -> list[BenchRow]:
    """Measure keys drawn by Zipf's law and uniformly."""
    keys, batches = (QUICK_KEYS, QUICK_BATCHES) if quick else (KEYS, BATCHES)
    rows = []
    for name, draw in (("Zipf", _zipf), ("uniform", _uniform)):
        in_memory, taken = _rate(StateBudget(_DISK_BYTES_MAX), keys, batches, draw)
        budget = StateBudget(taken // TIMES_ITS_MEMORY, _DISK_BYTES_MAX, str(folder))
        spilled, _ = _rate(budget, keys, batches, draw)
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
    return rows


def _zipf(generator: np.random.Generator, keys: int) -> np.ndarray[Any, Any]:
    return np.floor(keys ** generator.random(BATCH_ROWS)).astype(np.int64)


def _uniform(generator: np.random.Generator, keys: int) -> np.ndarray[Any, Any]:
    return generator.integers(0, keys, BATCH_ROWS)


def _rate(budget: StateBudget, keys: int, batches: int, draw: Any) -> tuple[float, int]:
    """Return rows per second once all keys are there, and what the state takes."""
    fields = (RecordField("n", np.dtype(np.int64)), RecordField("sum", np.dtype(np.float64)))
    store = KeyedStore(RecordLayout(Schema.of(key="int64"), fields), budget, "bench")
    generator = np.random.default_rng(1)
    order = generator.permutation(keys)
    for first in range(0, keys, BATCH_ROWS):
        _add(store, order[first : first + BATCH_ROWS])
    taken_s = 0.0
    for _ in range(batches):
        drawn = draw(generator, keys)
        begin_s = time.perf_counter()
        _add(store, drawn)
        taken_s += time.perf_counter() - begin_s
    return batches * BATCH_ROWS / taken_s, store.nbytes


def _add(store: KeyedStore, keys: np.ndarray[Any, Any]) -> None:
    words = keys.reshape(-1, 1).view(np.uint64)
    hashes = np.empty(len(words), np.uint64)
    hash_words(words, hashes)
    slots = store.slots_of_words(hashes, words)
    store.records["n"][slots] += 1
