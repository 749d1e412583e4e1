"""Chains of filters, projections and table joins: interpreted, as the generated loop, and by hand.

All three take the same batches and return the same columns; the loops by hand are what a programmer
would write with numba over the raw arrays, branch-free and with unsigned indexes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ....operators.compiled.compiled_chain import CompiledChain
from ....operators.expressions.expression import col
from ....operators.joins.broadcast_table import BroadcastTable
from ....operators.joins.table_join import TableJoin
from ....operators.transforms import FilterExpression, MapExpressions
from ....tasks.read_size import ROWS_MAX
from ....testing import instance_context
from ....transport.compiling import njit
from ....transport.wire.batch import Batch
from ....transport.wire.column import Column
from ....transport.wire.types import DataType, Schema
from ..report import Aim, BenchRow, median

if TYPE_CHECKING:
    from ....operators.transforms import Transform

__all__ = ["CAMPAIGNS", "CHAINS", "Chain", "loop_rows"]

ROWS = 4_000_000
QUICK_ROWS = 1_000_000
REPETITIONS = 7
BATCH_ROWS = ROWS_MAX
"""As sources read rows that are computed with in columns."""
BY_HAND_LEAST = 0.85

_SCHEMA = Schema.of(auction="int64", bidder="int64", price="int64", event_type="string", ad="int32")
_EVENT_TYPES = ("view", "click", "purchase")
CAMPAIGNS = np.arange(1000, dtype=np.int32) // 10
"""Of each advertisement."""


@dataclass(frozen=True)
class Chain:
    """A chain of operators, and the same by hand: it takes a batch and returns the columns."""

    name: str
    operators: Sequence[Transform | BroadcastTable]
    by_hand: Callable[[Batch], list[npt.NDArray[Any]]]


@njit(cache=True, nogil=True)
def _dear_bids(auction: Any, bidder: Any, price: Any, times: Any, out: Any) -> int:
    auctions, bidders, euros, out_times = out
    kept = np.uint64(0)
    for row in range(np.uint64(len(auction))):
        auctions[kept] = auction[row]
        bidders[kept] = bidder[row]
        euros[kept] = price[row] * 0.908
        out_times[kept] = times[row]
        kept += np.uint64(price[row] > 5000)
    return int(kept)


@njit(cache=True, nogil=True)
def _views(pool: Any, offsets: Any, ad: Any, times: Any, out: Any) -> int:
    ads, out_times = out
    kept = np.uint64(0)
    for row in range(np.uint64(len(ad))):
        begin = np.uint64(offsets[row])
        fits = np.uint64(offsets[row + np.uint64(1)]) - begin == np.uint64(4)
        at = begin if fits else np.uint64(0)
        is_view = (pool[at] == 118) & (pool[at + np.uint64(1)] == 105)
        is_view &= (pool[at + np.uint64(2)] == 101) & (pool[at + np.uint64(3)] == 119)
        ads[kept] = ad[row]
        out_times[kept] = times[row]
        kept += np.uint64(fits & is_view)
    return int(kept)


@njit(cache=True, nogil=True)
def _campaigns(pool: Any, offsets: Any, ad: Any, campaigns: Any, times: Any, out: Any) -> int:
    found, out_times = out
    kept = np.uint64(0)
    for row in range(np.uint64(len(ad))):
        begin = np.uint64(offsets[row])
        fits = np.uint64(offsets[row + np.uint64(1)]) - begin == np.uint64(4)
        at = begin if fits else np.uint64(0)
        is_view = (pool[at] == 118) & (pool[at + np.uint64(1)] == 105)
        is_view &= (pool[at + np.uint64(2)] == 101) & (pool[at + np.uint64(3)] == 119)
        found[kept] = campaigns[np.uint64(ad[row])]
        out_times[kept] = times[row]
        kept += np.uint64(fits & is_view)
    return int(kept)


def _dear_bids_of(batch: Batch) -> list[npt.NDArray[Any]]:
    auction, bidder, price = (batch.column(name).data for name in ("auction", "bidder", "price"))
    types = (np.int64, np.int64, np.float64, np.int64)
    out = tuple(np.empty(batch.num_rows, one) for one in types)
    kept = _dear_bids(auction, bidder, price, batch.times, out)
    return [one[:kept] for one in out]


def _views_of(batch: Batch) -> list[npt.NDArray[Any]]:
    kinds, ad = batch.column("event_type"), batch.column("ad").data
    out = np.empty(batch.num_rows, np.int32), np.empty(batch.num_rows, np.int64)
    kept = _views(kinds.data, kinds.offsets, ad, batch.times, out)
    return [one[:kept] for one in out]


def _campaigns_of(batch: Batch) -> list[npt.NDArray[Any]]:
    kinds, ad = batch.column("event_type"), batch.column("ad").data
    out = np.empty(batch.num_rows, np.int32), np.empty(batch.num_rows, np.int64)
    kept = _campaigns(kinds.data, kinds.offsets, ad, CAMPAIGNS, batch.times, out)
    return [one[:kept] for one in out]


def _table_of_campaigns() -> BroadcastTable:
    table = BroadcastTable(TableJoin((("ad", "ad"),)), instance_context())
    schema = Schema.of(ad="int32", campaign="int32")
    ads = np.arange(len(CAMPAIGNS), dtype=np.int32)
    columns = [Column(field.type, one) for field, one in zip(schema, (ads, CAMPAIGNS), strict=True)]
    table.add(Batch(schema, columns, len(ads)))
    table.finish()
    return table


CHAINS = (
    Chain(
        "dear bids in euros",
        (
            FilterExpression(col("price") > 5000),
            MapExpressions.select(
                [col("auction"), col("bidder"), (col("price") * 0.908).alias("euros")]
            ),
        ),
        _dear_bids_of,
    ),
    Chain(
        "views, by text",
        (FilterExpression(col("event_type") == "view"), MapExpressions.select([col("ad")])),
        _views_of,
    ),
    Chain(
        "campaigns of views",
        (
            FilterExpression(col("event_type") == "view"),
            MapExpressions.select([col("ad")]),
            _table_of_campaigns(),
            MapExpressions.select([col("campaign")]),
        ),
        _campaigns_of,
    ),
)


def batches_of(rows: int) -> list[Batch]:
    """Return rows drawn from a seed, in batches, all of them different."""
    random = np.random.default_rng(1)
    pool = np.frombuffer("".join(_EVENT_TYPES).encode(), np.uint8)
    sizes = np.array([len(one) for one in _EVENT_TYPES])
    begins = np.cumsum(sizes) - sizes
    made = []
    for first in range(0, rows, BATCH_ROWS):
        count = min(BATCH_ROWS, rows - first)
        numbers = [
            Column(DataType.parse("int64"), random.integers(0, most, count))
            for most in (1000, 10_000, 10_000)
        ]
        drawn = random.integers(0, len(_EVENT_TYPES), count)
        ends = np.cumsum(sizes[drawn])
        within = np.arange(ends[-1]) - np.repeat(ends - sizes[drawn], sizes[drawn])
        text = pool[np.repeat(begins[drawn], sizes[drawn]) + within]
        kinds = Column(DataType.parse("string"), text, np.concatenate([[0], ends]).astype(np.int32))
        ads = Column(DataType.parse("int32"), random.integers(0, 1000, count, dtype=np.int32))
        times = np.arange(first, first + count, dtype=np.int64) * 10_000_000
        made.append(Batch(_SCHEMA, [*numbers, kinds, ads], count, times))
    return made


def loop_rows(quick: bool) -> list[BenchRow]:
    """Measure each chain in the three ways, in turns."""
    rows = QUICK_ROWS if quick else ROWS
    batches = batches_of(rows)
    return [_row(chain, batches, rows) for chain in CHAINS]


def _row(chain: Chain, batches: Sequence[Batch], rows: int) -> BenchRow:
    compiled = CompiledChain(chain.operators, "compiled")
    ways: dict[str, Callable[[Batch], object]] = {
        "compiled": compiled.pass_through,
        "by hand": chain.by_hand,
        "interpreted": lambda batch: one_by_one(chain.operators, batch),
    }
    for way in ways.values():  # compiled and loaded before it is measured
        way(batches[0])
    taken_s: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPETITIONS):
        for name, way in ways.items():
            begin_ns = time.process_time_ns()
            for batch in batches:
                way(batch)
            taken_s[name].append((time.process_time_ns() - begin_ns) / 1e9)
    seconds = {name: median(each) for name, each in taken_s.items()}
    return BenchRow(
        f"loop: {chain.name}",
        {"rows": rows, "rows per batch": BATCH_ROWS},
        rows / seconds["compiled"] / 1e6,
        "M rows/s of CPU",
        ratio=seconds["by hand"] / seconds["compiled"],
        against="a numba loop by hand",
        aim=Aim("ratio", "at least", BY_HAND_LEAST),
        also={
            "by hand M rows/s": rows / seconds["by hand"] / 1e6,
            "interpreted M rows/s": rows / seconds["interpreted"] / 1e6,
            "x interpreted": seconds["interpreted"] / seconds["compiled"],
        },
    )


def one_by_one(operators: Sequence[Transform | BroadcastTable], batch: Batch) -> Batch | None:
    """Return what the operators make of a batch, one after another; a table has each key once."""
    passed: Batch | None = batch
    for operator in operators:
        if passed is None:
            return None
        if isinstance(operator, BroadcastTable):
            passed = next(operator.join(passed), None)
        else:
            passed = operator.apply(passed)
    return passed
