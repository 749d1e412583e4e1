"""Stores for state at four times its memory: pages of our own, beside embedded databases.

Each takes the same batches of keys, whose counts and sums it adds to those that it has, and runs
in a process whose memory the kernel limits to the same, but for RocksDB, which gets more: pages of
files, caches and memtables together. None of them logs or syncs: checkpoints are what a state
survives by.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .... import functions
from ....configs.extras import install_command, lacking
from ....operators.windows.aggregate_windows import AggregateWindows
from ....operators.windows.aggregation import Aggregation
from ....state.budget import StateBudget
from ....state.keys import hash_words
from ....state.records import RecordField, RecordLayout
from ....state.store import KeyedStore
from ....testing import instance_context
from ....transport.wire.batch import Batch
from ....transport.wire.column import Column
from ....transport.wire.types import Schema
from ..memory_limit import NoLimitError, run_within
from ..report import BenchRow
from .spilling import BATCH_ROWS, BESIDE_BYTES, TIMES_ITS_MEMORY, disk_bytes, uniform, zipf

__all__ = ["STORES", "rates_of", "store_rows"]

Int64s = npt.NDArray[np.int64]

KEYS = 16_000_000
QUICK_KEYS = 4_000_000
MEASURED_S = 20.0
QUICK_MEASURED_S = 6.0
_STATE_BYTES_PER_KEY = 80
"""A record of ours, and its part of the index, where all is in memory."""
_DISK_BYTES_MAX = 64 << 30
_NO_OUTPUT: Any = None  # nothing is emitted before the end


class _MeasuredStore(Protocol):
    """Counts and sums by key."""

    def add(self, keys: Int64s, counts: Int64s, sums: Int64s) -> None:
        """Add to the values of keys, which ascend and differ: int64 (n,) each."""

    def settle(self) -> None:
        """Do what was put off."""

    def totals(self) -> tuple[int, int]:
        """Return the counts and the sums of all keys, added up; nothing may be added after that."""


class _OwnRecords:
    """Our store: each batch's records are looked up, read and changed at once."""

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        budget = StateBudget(memory_bytes, _DISK_BYTES_MAX, str(folder))
        fields = (RecordField("n", np.dtype(np.int64)), RecordField("sum", np.dtype(np.int64)))
        self._store = KeyedStore(RecordLayout(Schema.of(key="int64"), fields), budget, "bench")

    def add(self, keys: Int64s, counts: Int64s, sums: Int64s) -> None:
        for start in range(0, len(keys), 4096):  # so many pages stay until they are written to
            part = slice(start, start + 4096)
            words = keys[part].reshape(-1, 1).view(np.uint64)
            hashes = np.empty(len(words), np.uint64)
            hash_words(words, hashes)
            slots = self._store.slots_of_words(hashes, words)
            self._store.records["n"][slots] += counts[part]
            self._store.records["sum"][slots] += sums[part]

    def settle(self) -> None:
        return

    def totals(self) -> tuple[int, int]:
        records, slots = self._store.records, np.sort(self._store.scan()[0])  # by their place
        return int(records["n"][slots].sum()), int(records["sum"][slots].sum())


class _OwnAggregates:
    """Our aggregates, which add what waits in passes over all groups."""

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        asked = Aggregation(
            ("key",), None, (functions.sum("n").alias("n"), functions.sum("sum").alias("sum"))
        )
        budget = StateBudget(memory_bytes, _DISK_BYTES_MAX, str(folder))
        self._operator = AggregateWindows(asked)
        self._operator.open(replace(instance_context(operator_id="bench"), state_budget=budget))

    def add(self, keys: Int64s, counts: Int64s, sums: Int64s) -> None:
        schema = Schema.of(key="int64", n="int64", sum="int64")
        batch = Batch(schema, [Column.of(one) for one in (keys, counts, sums)], len(keys))
        self._operator.on_batch(batch, _NO_OUTPUT)

    def settle(self) -> None:
        next(iter(self._operator.dump(np.empty(0, np.int64))))

    def totals(self) -> tuple[int, int]:
        out: Any = _AddedUp()
        self._operator.close(out)
        return out.counts, out.sums


class _AddedUp:
    """An output that adds up the rows of `_OwnAggregates`."""

    counts = sums = 0

    def emit(self, rows: Batch, times: Int64s | None = None) -> None:
        self.counts += int(rows.column("n").data.sum())
        self.sums += int(rows.column("sum").data.sum())


class _SqliteStore:
    """SQLite: a B-tree by key, changed by upserts, a transaction a batch."""

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        self._connection = sqlite3.connect(folder / "sqlite", isolation_level=None)
        for setting in (
            "journal_mode=OFF",
            "synchronous=OFF",
            "locking_mode=EXCLUSIVE",
            f"cache_size=-{memory_bytes >> 10}",
        ):
            self._connection.execute(f"PRAGMA {setting}")
        self._connection.execute("CREATE TABLE state (key INTEGER PRIMARY KEY, n INT, sum INT)")

    def add(self, keys: Int64s, counts: Int64s, sums: Int64s) -> None:
        self._connection.execute("BEGIN")
        self._connection.executemany(
            "INSERT INTO state VALUES (?, ?, ?) ON CONFLICT (key)"
            " DO UPDATE SET n = n + excluded.n, sum = sum + excluded.sum",
            zip(keys.tolist(), counts.tolist(), sums.tolist(), strict=True),
        )
        self._connection.execute("COMMIT")

    def settle(self) -> None:
        return

    def totals(self) -> tuple[int, int]:
        (found,) = self._connection.execute("SELECT sum(n), sum(sum) FROM state").fetchall()
        return found


class _RocksStore:
    """RocksDB: all keys of a batch are read together, and written together."""

    def __init__(self, folder: Path, memory_bytes: int) -> None:
        self._rocks: Any = import_module("rocksdict")  # of the extra `bench`, and without types
        options = self._rocks.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(memory_bytes // 8)
        options.set_max_write_buffer_number(2)
        tables = self._rocks.BlockBasedOptions()
        tables.set_block_cache(self._rocks.Cache(memory_bytes // 2))
        tables.set_bloom_filter(10, False)
        options.set_block_based_table_factory(tables)
        options.set_max_background_jobs(2)
        self._database = self._rocks.Rdict(str(folder / "rocksdb"), options)
        self._written = self._rocks.WriteOptions()
        self._written.disable_wal = True

    def add(self, keys: Int64s, counts: Int64s, sums: Int64s) -> None:
        raw = keys.astype(">i8").tobytes()
        names = [raw[start : start + 8] for start in range(0, len(raw), 8)]
        found = self._database.get(names)
        zero = bytes(16)
        values = np.frombuffer(b"".join(one or zero for one in found), np.int64).reshape(-1, 2)
        changed = (values + np.stack([counts, sums], axis=1)).tobytes()
        batch = self._rocks.WriteBatch(raw_mode=True)
        for number, name in enumerate(names):
            batch.put(name, changed[16 * number : 16 * number + 16])
        self._database.write(batch, self._written)

    def settle(self) -> None:
        return

    def totals(self) -> tuple[int, int]:
        values = (np.frombuffer(value, np.int64) for _, value in self._database.items())
        counts, sums = np.sum(np.fromiter(values, np.dtype((np.int64, 2))), axis=0).tolist()
        return counts, sums


STORES: dict[str, Callable[[Path, int], _MeasuredStore]] = {
    "our aggregates, which wait": _OwnAggregates,
    "our records, changed at once": _OwnRecords,
    "SQLite": _SqliteStore,
    "RocksDB": _RocksStore,
}
_MORE_BYTES: dict[Callable[[Path, int], _MeasuredStore], int] = {_RocksStore: 100 << 20}
"""What a store takes beyond the others' memory: the kernel ends its process with less."""
_OURS = (_OwnAggregates, _OwnRecords)
_WARM_BYTES, _WARM_KEYS = 8 << 20, 400_000


def store_rows(folder: Path, quick: bool) -> list[BenchRow]:
    """Measure each store with keys drawn by Zipf's law, then uniformly."""
    keys = QUICK_KEYS if quick else KEYS
    memory_bytes = keys * _STATE_BYTES_PER_KEY // TIMES_ITS_MEMORY
    rows = []
    for number, (name, make) in enumerate(STORES.items()):
        limit_bytes = memory_bytes + BESIDE_BYTES + _MORE_BYTES.get(make, 0)
        case = {"keys": keys, "memory MiB": limit_bytes >> 20}
        if make is _RocksStore and "rocksdict" in lacking("bench"):
            missing = f"{name}: not measured, not installed ({install_command('bench')})"
            rows.append(BenchRow(missing, case, 0.0, "M rows/s"))
            continue
        own = folder / str(number)
        own.mkdir()
        if make in _OURS:  # its compiled loops take memory that is no state
            rates_of(make(own, _WARM_BYTES), _WARM_KEYS, 0.0)
        seconds = QUICK_MEASURED_S if quick else MEASURED_S
        work = partial(_limited_rates, make, own, memory_bytes, keys, seconds)
        try:
            rates = run_within(limit_bytes, work)
        except (NoLimitError, RuntimeError) as error:
            rows.append(BenchRow(f"{name}: not measured, {error}", case, 0.0, "M rows/s"))
            continue
        for drawn, (rate, io_bytes_per_s) in rates.items():
            beside = {**case, "disk MB/s": round(io_bytes_per_s / 1e6)}
            rows.append(BenchRow(f"{name}, {drawn} keys", beside, rate / 1e6, "M rows/s"))
    return rows


def _limited_rates(
    make: Callable[[Path, int], _MeasuredStore],
    folder: Path,
    memory_bytes: int,
    keys: int,
    seconds: float,
) -> dict[str, tuple[float, float]]:
    return rates_of(make(folder, memory_bytes), keys, seconds)[0]


def rates_of(
    store: _MeasuredStore, keys: int, seconds: float
) -> tuple[dict[str, tuple[float, float]], tuple[int, int]]:
    """Fill a store, then add to it for some seconds as keys come by Zipf's law, then uniformly.

    Returns: rows per second and bytes of the disk per second, by how keys come; what `totals` must
        return now.
    """
    total = np.array([keys, keys * (keys - 1) // 2])
    for first in range(0, keys, BATCH_ROWS):
        some = np.arange(first, min(first + BATCH_ROWS, keys))
        store.add(some, np.ones(len(some), np.int64), some)
    store.settle()
    found = {}
    generator = np.random.default_rng(2)
    for name, draw in (("Zipf", zipf), ("uniform", uniform)):
        rows, begin_s, begin_bytes = 0, time.perf_counter(), disk_bytes()
        while rows == 0 or time.perf_counter() - begin_s < seconds:
            drawn = _scattered(draw(generator, keys), keys)
            ones, counts = np.unique(drawn, return_counts=True)
            store.add(ones, counts, ones * counts)
            rows += BATCH_ROWS
            total += (BATCH_ROWS, drawn.sum())
        store.settle()
        taken_s = time.perf_counter() - begin_s
        found[name] = (rows / taken_s, (disk_bytes() - begin_bytes) / taken_s)
    counts, sums = total.tolist()
    return found, (counts, sums)


def _scattered(ranks: Int64s, keys: int) -> Int64s:
    """Return a key for each rank, so that frequent ones do not lie beside each other."""
    scattered: Int64s = ranks * 2_654_435_761 % keys  # a prime, so no two ranks have one key
    return scattered
