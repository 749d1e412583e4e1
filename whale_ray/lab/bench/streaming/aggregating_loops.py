"""Yahoo's count of views per campaign and window: the generated loop, and two loops by hand.

All take the same batches. By hand, counts lie in an array by window and campaign, whose ids are
dense; or in a hash table, as it must be where ids are not known before. The generated loop finds
its groups by a hash of window and campaign, too, and campaigns by the codes of a table's column.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ....operators.aggregates.functions import count
from ....operators.compiled.aggregating_chain import AggregatingChain
from ....operators.windows.aggregation import Aggregation
from ....operators.windows.partial_windows import PartialWindows
from ....operators.windows.specifications import TimeWindow
from ....testing import instance_context
from ....transport.compiling import njit
from ....transport.wire.batch import Batch
from ..report import Aim, BenchRow, median
from .loops import (
    BATCH_ROWS,
    BY_HAND_LEAST,
    CAMPAIGNS,
    CHAINS,
    QUICK_ROWS,
    REPETITIONS,
    ROWS,
    batches_of,
    one_by_one,
)

__all__ = ["WAYS", "ViewCounts", "aggregating_loop_rows", "events_of"]

_WINDOW_NS = 10_000_000_000
_ROW_NS = 10_000
"""Between events: a window has a million."""
_WINDOWS = 64
_SLOTS = 1 << 14


Counted: TypeAlias = "dict[tuple[int, int], int]"


@dataclass(frozen=True)
class ViewCounts:
    """One way to count: it takes batches, then tells the views by start of window and campaign."""

    take: Callable[[Batch], object]
    counted: Callable[[], Counted]


@njit(inline="always")
def _is_view(pool: Any, offsets: Any, row: Any) -> bool:
    begin = np.uint64(offsets[row])
    fits = np.uint64(offsets[row + np.uint64(1)]) - begin == np.uint64(4)
    at = begin if fits else np.uint64(0)
    same = (pool[at] == 118) & (pool[at + np.uint64(1)] == 105)
    same &= (pool[at + np.uint64(2)] == 101) & (pool[at + np.uint64(3)] == 119)
    return fits & same


@njit(cache=True, nogil=True)
def _count_dense(pool: Any, offsets: Any, ad: Any, campaigns: Any, times: Any, counts: Any) -> None:
    window, begin, end = np.uint64(0), np.int64(1), np.int64(0)
    for row in range(np.uint64(len(ad))):
        is_view = _is_view(pool, offsets, row)
        moment = times[row]
        if moment < begin or moment >= end:
            window = np.uint64(moment // _WINDOW_NS)
            begin = np.int64(window) * _WINDOW_NS
            end = begin + _WINDOW_NS
        counts[window, np.uint64(campaigns[np.uint64(ad[row])])] += np.int64(is_view)


@njit(cache=True, nogil=True)
def _count_hashed(
    pool: Any, offsets: Any, ad: Any, campaigns: Any, times: Any, keys: Any, counts: Any
) -> None:
    mask = np.uint64(len(counts) - 1)
    window, begin, end = np.uint64(0), np.int64(1), np.int64(0)
    for row in range(np.uint64(len(ad))):
        if not _is_view(pool, offsets, row):
            continue
        moment = times[row]
        if moment < begin or moment >= end:
            window = np.uint64(moment // _WINDOW_NS)
            begin = np.int64(window) * _WINDOW_NS
            end = begin + _WINDOW_NS
        key = (window << np.uint64(32)) | np.uint64(campaigns[np.uint64(ad[row])])
        hashed = key * np.uint64(0x9E3779B97F4A7C15)
        place = (hashed ^ (hashed >> np.uint64(32))) & mask
        while counts[place] and keys[place] != key:
            place = (place + np.uint64(1)) & mask
        keys[place] = key
        counts[place] += 1


def _arrays(batch: Batch) -> tuple[Any, ...]:
    kinds, ad = batch.column("event_type"), batch.column("ad")
    return kinds.data, kinds.offsets, ad.data, CAMPAIGNS, batch.times


def _dense() -> ViewCounts:
    counts = np.zeros((_WINDOWS, int(CAMPAIGNS.max()) + 1), np.int64)

    def counted() -> Counted:
        windows, campaigns = np.nonzero(counts)
        return _by_start(windows, campaigns, counts[windows, campaigns])

    return ViewCounts(lambda batch: _count_dense(*_arrays(batch), counts), counted)


def _hashed() -> ViewCounts:
    keys, counts = np.zeros(_SLOTS, np.uint64), np.zeros(_SLOTS, np.int64)

    def counted() -> Counted:
        places = np.flatnonzero(counts)
        found = keys[places].astype(np.int64)
        return _by_start(found >> 32, found & 0xFFFFFFFF, counts[places])

    return ViewCounts(lambda batch: _count_hashed(*_arrays(batch), keys, counts), counted)


def _by_start(windows: Any, campaigns: Any, counts: Any) -> Counted:
    starts = windows * _WINDOW_NS
    pairs = zip(starts.tolist(), campaigns.tolist(), strict=True)
    return dict(zip(pairs, counts.tolist(), strict=True))


def _generated(*, compiled: bool) -> ViewCounts:
    window = TimeWindow("time", _WINDOW_NS, _WINDOW_NS, 0)
    asked = Aggregation(("campaign",), window, (count().alias("views"),))
    partial = PartialWindows(asked, None)
    partial.open(instance_context(), "views")
    (chain,) = (one for one in CHAINS if one.name == "campaigns of views")
    loop = AggregatingChain(chain.operators, partial, "compiled")

    def add(batch: Batch) -> None:
        passed = one_by_one(chain.operators, batch)
        if passed is not None:
            partial.add(passed)

    def counted() -> Counted:
        found: Counted = {}
        for deltas in partial.flush("end"):
            campaigns, windows, *_, counts = (column.data for column in deltas.columns)
            found |= _by_start(windows, campaigns, counts)
        return found

    return ViewCounts(loop.aggregate if compiled else add, counted)


WAYS: Mapping[str, Callable[[], ViewCounts]] = {
    "compiled": lambda: _generated(compiled=True),
    "by hand, dense": _dense,
    "by hand, hashed": _hashed,
    "interpreted": lambda: _generated(compiled=False),
}


def events_of(rows: int) -> list[Batch]:
    """Return events in batches, with a million in each window."""
    batches = batches_of(rows)
    firsts = range(0, rows, BATCH_ROWS)
    return [
        batch.with_times(np.arange(first, first + batch.num_rows) * _ROW_NS)
        for first, batch in zip(firsts, batches, strict=True)
    ]


def aggregating_loop_rows(quick: bool) -> list[BenchRow]:
    """Measure each way, in turns."""
    rows = QUICK_ROWS if quick else ROWS
    batches = events_of(rows)
    ways = {name: made() for name, made in WAYS.items()}
    for way in ways.values():  # compiled and loaded before it is measured
        way.take(batches[0])
    taken_s: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPETITIONS):
        for name, way in ways.items():
            begin_ns = time.process_time_ns()
            for batch in batches:
                way.take(batch)
            taken_s[name].append((time.process_time_ns() - begin_ns) / 1e9)
    seconds = {name: median(each) for name, each in taken_s.items()}
    also = {f"{name} M rows/s": rows / taken / 1e6 for name, taken in seconds.items()}
    return [
        BenchRow(
            "loop: views per campaign and window",
            {"rows": rows, "rows per batch": BATCH_ROWS},
            also.pop("compiled M rows/s"),
            "M rows/s of CPU",
            ratio=seconds["by hand, dense"] / seconds["compiled"],
            against="a numba loop by hand, with dense ids",
            aim=Aim("ratio", "at least", BY_HAND_LEAST),
            also={**also, "x hashed": seconds["by hand, hashed"] / seconds["compiled"]},
        )
    ]
