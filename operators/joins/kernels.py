"""Hash chains over the rows of one side of a join, and finding the pairs, compiled.

`heads` has a power of two of chains; a hash belongs to the one of its lower bits, since the upper
ones are alike on a worker. `following` is the next row of a row's chain, newest first.
"""

from __future__ import annotations

from typing import Any

from ...transport.compiling import njit

__all__ = ["END", "NOT_LINKED", "link", "pair_up", "sort_by_number"]

END = -1
NOT_LINKED = -2
"""In `following`: the row is in no chain, since its key is null."""


@njit(cache=True, nogil=True)
def link(hashes: Any, heads: Any, following: Any, first: int, stop: int) -> None:
    """Add rows `first` … `stop` − 1 to their chains, but those that are NOT_LINKED."""
    mask = len(heads) - 1
    for row in range(first, stop):
        if following[row] != NOT_LINKED:
            chain = int(hashes[row]) & mask
            following[row] = heads[chain]
            heads[chain] = row


@njit(cache=True, nogil=True)
def pair_up(
    rows: Any,
    hashes: Any,
    times: Any,
    kept_hashes: Any,
    kept_times: Any,
    matched: Any,
    heads: Any,
    following: Any,
    lower: int,
    upper: int,
    any_distance: bool,
    only_unmatched: bool,
    at: Any,
    new: Any,
    kept: Any,
) -> int:
    """Find pairs of a new row and a kept one with the same hash.

    Args:
        rows: the new rows to look at, int64 (n,); `hashes` and `times` have those of all new rows.
        lower, upper: bounds of kept time − new time, unless `any_distance`.
        only_unmatched: leave out kept rows that are marked in `matched`.
        at: int64 (2,): where to begin, and after the call where to continue: a position in `rows`,
            and a kept row or END.
        new, kept: int64 (m,), are filled with the rows of the pairs.

    Returns:
        the number of pairs; if it is m, there may be more.
    """
    mask = len(heads) - 1
    count = 0
    resumed = at[1]
    for position in range(at[0], len(rows)):
        row = rows[position]
        hashed = hashes[row]
        here = resumed if resumed != END else int(heads[int(hashed) & mask])
        resumed = END
        while here >= 0:
            fits = kept_hashes[here] == hashed
            if fits and not any_distance:
                distance = kept_times[here] - times[row]
                fits = lower <= distance <= upper
            if fits and not (only_unmatched and matched[here]):
                if count == len(new):
                    at[0], at[1] = position, here
                    return count
                new[count], kept[count] = row, here
                count += 1
            here = int(following[here])
    at[0], at[1] = len(rows), END
    return count


@njit(cache=True, nogil=True)
def sort_by_number(numbers: Any, lowest: int, ends: Any, order: Any) -> None:
    """Sort rows by their numbers, those of one number as they are: by counting.

    Args:
        numbers: of the rows, int64 (n,).
        lowest: the least of them.
        ends: int64 (k,), is filled with the place behind the last row of `lowest`, `lowest` + 1, …
        order: int64 (n,), is filled with the rows in their order.
    """
    ends[:] = 0
    for row in range(len(numbers)):
        ends[numbers[row] - lowest] += 1
    place = 0
    for number in range(len(ends)):
        rows = ends[number]
        ends[number] = place
        place += rows
    for row in range(len(numbers)):
        number = numbers[row] - lowest
        order[ends[number]] = row
        ends[number] += 1
