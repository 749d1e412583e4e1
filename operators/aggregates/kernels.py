"""Compiled loops that add rows to the fields of groups.

`slots` names the group of each row. Fields are strided views of records; `validity` has shape (0,)
where no value is null.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...state.field_updates import float_sum, integer_sum
from ...transport.compiling import njit

__all__ = [
    "add_decimals",
    "add_floats",
    "add_integers",
    "add_moments",
    "add_registers",
    "count_rows",
    "merge_counts",
    "merge_floats",
    "merge_moments",
    "merge_registers",
    "merge_totals",
    "pick_rows",
]

_SIGN = np.uint64(63)


@njit(inline="always")
def _is_null(validity: Any, row: Any) -> Any:
    return len(validity) > 0 and not validity[row]


@njit(cache=True, nogil=True)
def count_rows(counts: Any, slots: Any, validity: Any) -> None:
    """Count the rows that are valid."""
    if len(validity) == 0:
        for row in range(len(slots)):
            counts[slots[row]] += 1
    else:
        for row in range(len(slots)):
            counts[slots[row]] += validity[row]


@njit(cache=True, nogil=True)
def merge_counts(counts: Any, slots: Any, counts_of: Any, others: Any) -> None:
    """Add the counts of other groups."""
    for row in range(len(slots)):
        counts[slots[row]] += counts_of[others[row]]


@njit(cache=True, nogil=True)
def add_integers(low: Any, high: Any, count: Any, slots: Any, values: Any, validity: Any) -> None:
    """Add integers to 128-bit totals, low uint64 and high int64."""
    for row in range(len(slots)):
        if _is_null(validity, row):
            continue
        slot = slots[row]
        low[slot], high[slot] = integer_sum(low[slot], high[slot], np.int64(values[row]))
        count[slot] += 1


@njit(cache=True, nogil=True)
def add_decimals(
    low: Any, high: Any, left: Any, count: Any, slots: Any, halves: Any, validity: Any
) -> None:
    """Add 128-bit integers, `halves` int64 (n, 2) low and high; `left` marks totals beyond."""
    for row in range(len(slots)):
        if _is_null(validity, row):
            continue
        slot = slots[row]
        _add_wide(low, high, left, slot, np.uint64(halves[row, 0]), halves[row, 1])
        count[slot] += 1


@njit(cache=True, nogil=True)
def merge_totals(
    low: Any, high: Any, left: Any, count: Any, slots: Any, low_of: Any, high_of: Any,
    left_of: Any, count_of: Any, others: Any,
) -> None:  # fmt: skip
    """Add the 128-bit totals of other groups."""
    for row in range(len(slots)):
        slot, other = slots[row], others[row]
        _add_wide(low, high, left, slot, low_of[other], high_of[other])
        left[slot] |= left_of[other]
        count[slot] += count_of[other]


@njit(inline="always")
def _add_wide(low: Any, high: Any, left: Any, slot: Any, low_part: Any, high_part: Any) -> None:
    total = low[slot] + low_part
    before = high[slot]
    # As unsigned: of signed integers LLVM is told that their sum never wraps.
    after = np.int64(np.uint64(before) + np.uint64(high_part) + np.uint64(total < low_part))
    # The sum has left 128 bits if both parts have one sign and the sum another.
    if ((before ^ after) & (high_part ^ after)) < 0:
        left[slot] = 1
    low[slot] = total
    high[slot] = after


@njit(cache=True, nogil=True)
def add_floats(total: Any, lost: Any, count: Any, slots: Any, values: Any, validity: Any) -> None:
    """Add floats; `lost` collects the rounding errors (Neumaier 1974)."""
    for row in range(len(slots)):
        if _is_null(validity, row):
            continue
        slot = slots[row]
        _add_float(total, lost, slot, np.float64(values[row]))
        count[slot] += 1


@njit(cache=True, nogil=True)
def merge_floats(
    total: Any, lost: Any, count: Any, slots: Any, total_of: Any, lost_of: Any, count_of: Any,
    others: Any,
) -> None:  # fmt: skip
    """Add the totals of other groups."""
    for row in range(len(slots)):
        slot, other = slots[row], others[row]
        _add_float(total, lost, slot, total_of[other])
        lost[slot] += lost_of[other]
        count[slot] += count_of[other]


@njit(inline="always")
def _add_float(total: Any, lost: Any, slot: Any, value: Any) -> None:
    total[slot], lost[slot] = float_sum(total[slot], lost[slot], value)


@njit(cache=True, nogil=True)
def add_moments(
    count: Any, mean: Any, squares: Any, slots: Any, values: Any, validity: Any
) -> None:
    """Add values to a mean and a sum of squared deviations (Welford 1962)."""
    for row in range(len(slots)):
        if _is_null(validity, row):
            continue
        slot = slots[row]
        value = np.float64(values[row])
        count[slot] += 1
        deviation = value - mean[slot]
        mean[slot] += deviation / count[slot]
        squares[slot] += deviation * (value - mean[slot])


@njit(cache=True, nogil=True)
def merge_moments(
    count: Any, mean: Any, squares: Any, slots: Any, count_of: Any, mean_of: Any, squares_of: Any,
    others: Any,
) -> None:  # fmt: skip
    """Add the moments of other groups (Chan, Golub and LeVeque 1979)."""
    for row in range(len(slots)):
        slot, other = slots[row], others[row]
        mine, theirs = count[slot], count_of[other]
        if theirs == 0:
            continue
        if mine == 0:  # so that merging into an empty group is exact
            count[slot], mean[slot] = theirs, mean_of[other]
            squares[slot] = squares_of[other]
            continue
        both = mine + theirs
        apart = mean_of[other] - mean[slot]
        mean[slot] += apart * theirs / both
        squares[slot] += squares_of[other] + apart * apart * mine * theirs / both
        count[slot] = both


@njit(inline="always")
def _is_nan(value: Any) -> Any:
    return value != value  # noqa: PLR0124  # true of NaN alone, and compiled for integers, too


@njit(cache=True, nogil=True)
def pick_rows(
    order: Any, known: Any, slots: Any, values: Any, validity: Any, greatest: Any, later: Any,
    rows: Any,
) -> int:  # fmt: skip
    """Keep the least or greatest value of each group; NaN is greater than all numbers.

    Args:
        order, known: fields: the value kept, and whether there is one.
        slots, values, validity: the rows.
        greatest: whether the greatest is kept, not the least.
        later: whether of equal values the later row counts, not the earlier.
        rows: int64 (n,): receives the rows that were kept when their turn came, in order, so that
            the last one of a group is the one that counts; shape (0,) if not needed.

    Returns:
        How many rows were written.
    """
    asked = len(rows) > 0
    picked = 0
    for row in range(len(slots)):
        if _is_null(validity, row):
            continue
        slot, value = slots[row], values[row]
        if known[slot]:
            kept = order[slot]
            less = value < kept or (_is_nan(kept) and not _is_nan(value))
            more = value > kept or (_is_nan(value) and not _is_nan(kept))
            better = more if greatest else less
            if not better and not (later and not less and not more):
                continue
        order[slot] = value
        known[slot] = 1
        if asked:
            rows[picked] = row
            picked += 1
    return picked


@njit(cache=True, nogil=True)
def add_registers(registers: Any, slots: Any, hashes: Any, validity: Any, index_bits: Any) -> None:
    """Keep in each register the most leading zeros + 1 of the hashes that fall into it.

    Args:
        registers: a field, uint8 (slots, 2^index_bits).
        slots, hashes, validity: the rows; hashes uint64.
        index_bits: how many of a hash's top bits name the register.
    """
    top = np.uint64(64 - index_bits)
    for row in range(len(slots)):
        if _is_null(validity, row):
            continue
        hashed = hashes[row]
        register = np.int64(hashed >> top)
        rest = hashed << np.uint64(index_bits)
        rank = 1
        while rank <= 64 - index_bits and not rest >> _SIGN:
            rest <<= np.uint64(1)
            rank += 1
        registers[slots[row], register] = max(registers[slots[row], register], rank)


@njit(cache=True, nogil=True)
def merge_registers(registers: Any, slots: Any, registers_of: Any, others: Any) -> None:
    """Keep the greater of each pair of registers."""
    for row in range(len(slots)):
        for register in range(registers.shape[1]):
            rank = registers_of[others[row], register]
            registers[slots[row], register] = max(registers[slots[row], register], rank)
