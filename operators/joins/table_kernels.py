"""Which rows of a table have a key, and which rows of a stream they belong to, compiled.

Rows of a table are numbered. A key's record has the numbers of its `first` and `last` row, and how
many `rows` it has; `following` leads from a row to the next one of its key.
"""

from __future__ import annotations

from typing import Any

from ...transport.compiling import njit

__all__ = ["END", "NOT_BEGUN", "append_rows", "pair_with_table", "replace_rows"]

END = -1
NOT_BEGUN = -2


@njit(cache=True, nogil=True)
def append_rows(slots: Any, first: Any, last: Any, rows: Any, following: Any, number: int) -> None:
    """Add rows to those of their keys, after the others.

    Args:
        slots: the record of each row's key, int64 (n,).
        first, last, rows: fields of the records.
        following: int64, is filled from `number` on.
        number: of the first row.
    """
    for row in range(len(slots)):
        slot = slots[row]
        if rows[slot] == 0:
            first[slot] = number + row
        else:
            following[last[slot]] = number + row
        last[slot] = number + row
        rows[slot] += 1
        following[number + row] = END


@njit(cache=True, nogil=True)
def replace_rows(
    slots: Any, deletes: Any, first: Any, last: Any, rows: Any, following: Any, number: int
) -> int:
    """Let each row, one after the other, replace all rows of its key; or delete them.

    Args:
        deletes: which rows do that, bool (n,); these get no number themselves.
        others: as for `append_rows`.

    Returns:
        how many rows were replaced or deleted.
    """
    dead = 0
    for row in range(len(slots)):
        slot = slots[row]
        dead += rows[slot]
        if deletes[row]:
            first[slot] = END
            rows[slot] = 0
        else:
            first[slot] = last[slot] = number
            rows[slot] = 1
            following[number] = END
            number += 1
    return dead


@njit(cache=True, nogil=True)
def pair_with_table(
    slots: Any,
    first: Any,
    last: Any,
    following: Any,
    unmatched: int,
    at: Any,
    left: Any,
    right: Any,
) -> int:
    """Pair rows of the stream with the rows of the table that have their key, in order.

    Args:
        slots: the record of each row's key, int64 (n,); -1 where the table has none.
        first, last, following: see above.
        unmatched: the row of the table to pair with rows without a match; END to leave these out.
        at: int64 (2,): where to begin, and after the call where to continue: a row, and a row of
            the table or NOT_BEGUN.
        left, right: int64 (m,), are filled with the rows of the pairs.

    Returns:
        the number of pairs; there are more if `at[0]` is less than n.
    """
    count = 0
    here = at[1]
    for row in range(at[0], len(slots)):
        if here == NOT_BEGUN:
            here = first[slots[row]] if slots[row] >= 0 else END
            if here == END:
                here = unmatched
        while here != END:
            if count == len(left):
                at[0], at[1] = row, here
                return count
            left[count], right[count] = row, here
            count += 1
            ends = slots[row] < 0 or here == last[slots[row]]
            here = END if ends else following[here]
        here = NOT_BEGUN
    at[0], at[1] = len(slots), NOT_BEGUN
    return count
