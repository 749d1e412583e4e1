"""Rows aggregated by millions of keys, each of which misses the caches, beside a loop by hand.

All keys are there before; then rows of uniform keys come. The loop has a table of its own, with key
and state of a group beside each other, and fetches them ahead. It can do nothing else: no further
key, no checkpoint, no disk, no virtual nodes. CPU time of this thread, the two in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from ....operators.aggregates.aggregate import Aggregate
from ....operators.process import Output
from ....operators.windows.aggregate_windows import AggregateWindows
from ....operators.windows.aggregation import Aggregation
from ....state.budget import StateBudget
from ....testing import instance_context
from ....transport.atomics import kernel, prefetch
from ....transport.wire.batch import Batch
from ....transport.wire.column import Column
from ....transport.wire.types import Schema
from ..report import Aim, BenchRow, median

__all__ = ["many_keys_rows"]

KEYS = 10_000_000
QUICK_KEYS = 1 << 20
_BATCH_ROWS = 1 << 16
"""Of the largest slice."""
_BATCHES, _ROUNDS = 4, 15
_AIM_M_ROWS_PER_S = 50.0
_BUDGET_BYTES = 8 << 30
_AHEAD = 32
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROWS = Schema.of(key="int64", value="int64")
_GROUP = np.dtype([("key", "<i8"), ("count", "<i8"), ("total", "<i8"), ("unused", "<i8")])

Int64s = npt.NDArray[np.int64]


def many_keys_rows(quick: bool) -> list[BenchRow]:
    """Measure a count, and a count and a sum."""
    from .... import functions

    count, total = functions.count().alias("rows"), functions.sum("value").alias("total")
    keys = QUICK_KEYS if quick else KEYS
    return [_row("count", [count], keys), _row("count and sum", [count, total], keys)]


class _Nowhere(Output):
    """No result is asked for while rows come."""

    def emit(self, batch: Any, times: Any = None) -> None:
        """Refuse rows."""
        raise AssertionError

    def emit_to(self, output: str, rows: Any, times: Any = None) -> None:
        """Refuse rows."""
        raise AssertionError

    def emit_rows(self, rows: Any) -> None:
        """Refuse rows."""
        raise AssertionError


def _row(name: str, aggregates: Sequence[Aggregate], keys: int) -> BenchRow:
    operator = AggregateWindows(Aggregation(("key",), None, tuple(aggregates)))
    context = instance_context(operator_id="bench")
    operator.open(replace(context, state_budget=StateBudget(_BUDGET_BYTES)))
    bits = (8 * keys // 5).bit_length()
    by_hand = np.zeros(1 << bits, _GROUP)
    out = _Nowhere()
    ways: dict[str, Callable[[Int64s], None]] = {
        "operator": lambda chosen: operator.on_batch(_batch(chosen), out),
        "by hand": lambda chosen: _add(by_hand, chosen, chosen),
    }
    taken_ns: dict[str, list[float]] = {way: [] for way in ways}
    for start in range(0, keys, _BATCH_ROWS):
        for add in ways.values():
            add(np.arange(start, min(start + _BATCH_ROWS, keys)))
    random = np.random.default_rng(1)
    for _ in range(_ROUNDS):
        for way, add in ways.items():
            chosen = [random.integers(0, keys, _BATCH_ROWS) for _ in range(_BATCHES)]
            begin_ns = time.thread_time_ns()
            for one in chosen:
                add(one)
            taken_ns[way].append((time.thread_time_ns() - begin_ns) / _BATCHES / _BATCH_ROWS)
    row_ns, by_hand_ns = (median(taken_ns[way]) for way in ways)
    return BenchRow(
        f"{name} by many keys",
        {"keys": keys, "rows per batch": _BATCH_ROWS},
        1e3 / row_ns,
        "M rows/CPU s",
        ratio=by_hand_ns / row_ns,
        against="loop by hand over a table of groups",
        aim=Aim("value", "at least", _AIM_M_ROWS_PER_S),
        also={"ns/row": row_ns, "by hand ns/row": by_hand_ns},
    )


def _batch(keys: Int64s) -> Batch:
    columns = [Column(field.type, keys) for field in _ROWS]
    return Batch(_ROWS, columns, len(keys))


@kernel(
    numba.void(numba.from_dtype(_GROUP)[::1], numba.int64[::1], numba.int64[::1]), releases_gil=True
)
def _add(groups: Any, keys: Any, values: Any) -> None:
    """Count rows and add values; a group's key is one more, so that 0 is none."""
    base, width, mask = groups.ctypes.data, groups.itemsize, np.uint64(len(groups) - 1)
    shift = np.uint64(64)
    while (np.uint64(1) << (np.uint64(64) - shift)) <= mask:
        shift -= np.uint64(1)
    places = np.empty(len(keys), np.uint64)
    for row in range(len(keys)):
        places[row] = (np.uint64(keys[row]) * _GOLDEN) >> shift
    for row in range(len(keys)):
        if row + _AHEAD < len(keys):
            prefetch(base + np.int64(places[row + _AHEAD]) * width)
        place, key = places[row], keys[row] + 1
        while groups[place].key != key and groups[place].key != 0:
            place = (place + np.uint64(1)) & mask
        groups[place].key = key
        groups[place].count += 1
        groups[place].total += values[row]
