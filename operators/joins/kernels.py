"""Hash chains over the rows of one side of a join, and sorting by number, compiled.

`heads` has a power of two of chains; a hash belongs to the one of its lower bits, since the upper
ones are alike on a worker. `following` is the next row of a row's chain, newest first.
"""

from __future__ import annotations

from typing import Any

from ...transport.compiling import njit

__all__ = ["END", "NOT_LINKED", "link", "sort_by_number"]

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
