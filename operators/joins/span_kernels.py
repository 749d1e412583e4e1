"""The build and the probe of a join for the rows of one batch, in whatever spans: one loop.

A *visit* is the part of a batch's rows that lie in one slice, in one of its spans: they are joined
with the rows that the spans of the other side keep, the visit's *partners*, then kept themselves.
What a span keeps is a *table*: the arrays of `kernels`, by their addresses, so that one call serves
all spans. Pairs come visit by visit, partner by partner, row by row, newest kept row first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from ...transport.compiling import njit
from ...transport.wire.kernels import pointer
from .kernels import END, NOT_LINKED

__all__ = [
    "ANY_DISTANCE",
    "BEGIN",
    "EMITS",
    "FIRST",
    "FIRST_OF_KEY",
    "KEPT",
    "MARKS",
    "ONCE_KEPT",
    "ONCE_NEW",
    "OWN",
    "STOP",
    "TABLE_ENTRIES",
    "UNTIL",
    "VISIT",
    "VISIT_ENTRIES",
    "WAITS",
    "join_rows",
]

HEADS, CHAINS, HASHES, TIMES, FOLLOWING, MATCHED, ENDS, POOL, ROOM, COUNT = range(10)
TABLE_ENTRIES = 10
"""Of a table: addresses of arrays, CHAINS and ROOM the lengths of those before them, and how many
rows it has."""

FIRST, STOP, OWN, BEGIN, UNTIL, KEPT = range(6)
VISIT_ENTRIES = 6
"""Of a visit: its rows in `order`, its table, its partners, and how many rows were kept of it."""

VISIT, PARTNER, PLACE, CHAINED, CHOSEN = range(5)
WAITS = -1
"""Where to continue: visit, partner (WAITS: the visit is not begun), place in `order`, kept row;
behind them how many rows have been kept."""

ANY_DISTANCE, ONCE_NEW, ONCE_KEPT, MARKS, EMITS, FIRST_OF_KEY = (1 << bit for bit in range(6))
"""Rules: all rows of spans join; a new row joins once, and is not kept then; a kept one does; kept
rows of pairs are marked; pairs are written (an anti join needs the marks alone); of each key only
the first row is kept, as any of them serves."""


@njit(cache=True, nogil=True)
def join_rows(
    visits: Any,
    partners: Any,
    tables: Any,
    order: Any,
    hashes: Any,
    times: Any,
    nulls: Any,
    ends: Any,
    pool: Any,
    lower: int,
    upper: int,
    rules: int,
    at: Any,
    matched: Any,
    chosen: Any,
    found: Any,
    pairs: Any,
) -> int:
    """Join rows with those kept by the other side, and keep them.

    Args:
        visits: int64 (visits, VISIT_ENTRIES); their KEPT is filled.
        partners: tables of the other side, int64 (partners,): those of a visit are BEGIN … UNTIL.
        tables: int64 (tables, TABLE_ENTRIES), with room for the rows; their COUNT grows.
        order: the rows, int64 (n,), those of a visit from FIRST to STOP.
        hashes, times: of the batch's rows, uint64 and int64 (m,).
        nulls: which keys are null, and so join with none, bool (m,); (0,) if none is.
        ends, pool: of their keys, see `KeyBytes`.
        lower, upper: bounds of kept time − new time, unless ANY_DISTANCE.
        rules: see there.
        at: int64 (5,), where to begin, and after the call where to continue.
        matched: bool (n,), is used for the rows of `order`.
        chosen: int64, as many as the visits have rows; is filled with the rows that are kept, those
            of each visit behind those of the one before.
        found: int64 (partners,), is filled with the number of pairs with each.
        pairs: int64 (3, p), is filled: new row, kept row, the later of both times.

    Returns:
        the number of pairs. There may be more unless `at` is behind the last visit.
    """
    count = 0
    found[:] = 0
    for visit in range(at[VISIT], len(visits)):
        first, stop = visits[visit, FIRST], visits[visit, STOP]
        if at[PARTNER] == WAITS:
            at[PARTNER], at[PLACE], at[CHAINED] = visits[visit, BEGIN], first, END
            matched[first:stop] = False
        for partner in range(at[PARTNER], visits[visit, UNTIL]):
            before = count
            count = _probe(
                *(tables[partners[partner]], order, stop, hashes, times, nulls, ends, pool),
                *(lower, upper, rules, at, matched, pairs, count),
            )
            found[partner] = count - before
            if at[PLACE] < stop:
                at[VISIT], at[PARTNER] = visit, partner
                return count
            at[PLACE] = first
        at[PARTNER] = WAITS
        visits[visit, KEPT] = _build(
            *(tables[visits[visit, OWN]], order, first, stop, hashes, times, nulls, ends, pool),
            *(rules, matched, chosen[at[CHOSEN] :]),
        )
        at[CHOSEN] += visits[visit, KEPT]
    at[VISIT] = len(visits)
    return count


@njit(nogil=True)
def _arrays(table: Any, rows: int) -> Any:
    """Return a table's arrays, for so many rows: heads, hashes, times, following, matched."""
    return (
        carray(pointer(table[HEADS]), table[CHAINS], np.int32),
        carray(pointer(table[HASHES]), rows, np.uint64),
        carray(pointer(table[TIMES]), rows, np.int64),
        carray(pointer(table[FOLLOWING]), rows, np.int32),
        carray(pointer(table[MATCHED]), rows, np.bool_),
    )


@njit(nogil=True)
def _keys(table: Any, rows: int) -> Any:
    """Return the keys of a table with room for so many rows: ends, pool."""
    return (
        carray(pointer(table[ENDS]), rows + 1, np.int64),
        carray(pointer(table[POOL]), table[ROOM], np.uint8),
    )


@njit(nogil=True)
def _is_same(ends: Any, pool: Any, row: Any, kept_ends: Any, kept_pool: Any, kept: Any) -> bool:
    """Whether a row has the key of a kept one."""
    at, there = np.uint64(ends[row]), np.uint64(kept_ends[kept])
    size = np.uint64(ends[row + np.uint64(1)]) - at
    if np.uint64(kept_ends[kept + np.uint64(1)]) - there != size:
        return False
    different = np.uint8(0)
    for byte in range(size):  # without a branch, so that several are compared at once
        different |= pool[at + byte] ^ kept_pool[there + byte]
    return different == 0


@njit(nogil=True)
def _probe(
    table: Any,
    order: Any,
    stop: int,
    hashes: Any,
    times: Any,
    nulls: Any,
    ends: Any,
    pool: Any,
    lower: int,
    upper: int,
    rules: int,
    at: Any,
    matched: Any,
    pairs: Any,
    count: int,
) -> int:
    """Find the pairs of a visit's rows with one table, from `at` on; return how many there are."""
    heads, kept_hashes, kept_times, following, kept_matched = _arrays(table, table[COUNT])
    kept_ends, kept_pool = _keys(table, table[COUNT])
    mask = np.uint64(table[CHAINS] - 1)
    once_new, once_kept = bool(rules & ONCE_NEW), bool(rules & ONCE_KEPT)
    resumed = at[CHAINED]
    at[CHAINED] = END
    for place in range(at[PLACE], stop):
        row = np.uint64(order[place])
        if (once_new and matched[place]) or (nulls.size and nulls[row]):
            continue
        hashed = hashes[row]
        here = resumed if resumed != END else np.int64(heads[hashed & mask])
        resumed = END
        while here >= 0:
            kept = np.uint64(here)
            fits = kept_hashes[kept] == hashed and not (once_kept and kept_matched[kept])
            if fits and not rules & ANY_DISTANCE:
                fits = lower <= kept_times[kept] - times[row] <= upper
            if fits and ends.size:
                fits = _is_same(ends, pool, row, kept_ends, kept_pool, kept)
            if fits:
                if rules & EMITS:
                    if count == pairs.shape[1]:
                        at[PLACE], at[CHAINED] = place, here
                        return count
                    pairs[0, count], pairs[1, count] = row, here
                    pairs[2, count] = max(times[row], kept_times[kept])
                    count += 1
                matched[place] = True
                if rules & MARKS:
                    kept_matched[kept] = True
                if once_new:
                    break
            here = np.int64(following[kept])
    at[PLACE] = stop
    return count


@njit(nogil=True)
def _build(
    table: Any,
    order: Any,
    first: int,
    stop: int,
    hashes: Any,
    times: Any,
    nulls: Any,
    ends: Any,
    pool: Any,
    rules: int,
    matched: Any,
    chosen: Any,
) -> int:
    """Add a visit's rows to their table, behind those that it has; return how many are kept."""
    begin = table[COUNT]
    heads, kept_hashes, kept_times, following, kept_matched = _arrays(table, begin + stop - first)
    kept_ends, kept_pool = _keys(table, begin + stop - first)
    mask = np.uint64(table[CHAINS] - 1)
    once_new, first_of_key = bool(rules & ONCE_NEW), bool(rules & FIRST_OF_KEY)
    count = np.uint64(0)
    for place in range(first, stop):
        if once_new and matched[place]:
            continue
        row = np.uint64(order[place])
        hashed = hashes[row]
        chain = hashed & mask
        if first_of_key:
            there = np.int64(heads[chain])
            while there >= 0:
                kept = np.uint64(there)
                if kept_hashes[kept] == hashed and (
                    not ends.size or _is_same(ends, pool, row, kept_ends, kept_pool, kept)
                ):
                    break
                there = np.int64(following[kept])
            if there >= 0:
                continue
        here = np.uint64(begin) + count
        kept_hashes[here], kept_times[here] = hashed, times[row]
        kept_matched[here] = matched[place]
        if ends.size:
            _keep_key(row, here, ends, pool, kept_ends, kept_pool)
        if nulls.size and nulls[row]:
            following[here] = NOT_LINKED
        else:
            following[here] = heads[chain]
            heads[chain] = here
        chosen[count] = row
        count += np.uint64(1)
    table[COUNT] += np.int64(count)
    return table[COUNT] - begin


@njit(nogil=True)
def _keep_key(row: Any, here: Any, ends: Any, pool: Any, kept_ends: Any, kept_pool: Any) -> None:
    """Add the key of a row to those of a table, which has rows up to this one."""
    place, begin = np.uint64(kept_ends[here]), np.uint64(ends[row])
    size = np.uint64(ends[row + np.uint64(1)]) - begin
    for byte in range(size):
        kept_pool[place + byte] = pool[begin + byte]
    kept_ends[here + np.uint64(1)] = place + size
