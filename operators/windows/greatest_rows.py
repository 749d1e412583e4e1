"""`GreatestRows`: an instance of a `TopFilter`.

A row is not among the first n if n rows of its window that are greater came before it, or as great
where ties do not come, too. So an instance needs only the n greatest values that it has seen. It
keeps them of a few slices of time: rows of others are passed on. What it forgets, as when a job
resumes, changes no result either, so it has no state in checkpoints.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...transport.compiling import njit
from .slices import slices_of
from .top_filter import TopFilter
from .top_rows import order_of

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from .top_n import TopN

__all__ = ["GreatestRows", "pass_greatest"]

_SLICES = 16
_TOGETHER = 256
"""So many rows are looked at together first."""
_NO_SLICE = -(1 << 63)


class GreatestRows(TopFilter):
    """Passes rows on that may be among the first, by those that it has seen."""

    def __init__(self, asked: TopN) -> None:
        super().__init__(asked)
        self._slices = slices_of(asked)
        self._known = np.full(_SLICES, _NO_SLICE)
        self._counts = np.zeros(_SLICES, np.int64)
        self._greatest = np.empty((_SLICES, asked.n), np.int64)

    def apply(self, batch: Batch) -> Batch | None:
        """Return the rows that may be among the first."""
        order = order_of(batch.column(self.asked.by))
        if order is None or not batch.num_rows:
            return batch
        passes = np.empty(batch.num_rows, np.bool_)
        seen = (self._known, self._counts, self._greatest)
        slices, ties = self._slices.of(batch), self.asked.with_ties
        left_out = pass_greatest(slices, order, ties, *seen, passes)
        return batch.filter(passes) if left_out else batch


@njit(cache=True, nogil=True)
def pass_greatest(
    slices: Any, order: Any, with_ties: bool, known: Any, counts: Any, greatest: Any, passes: Any
) -> int:
    """Tell which rows may be among the first n of their slice; return how many are not.

    Args:
        slices: of the rows, int64 (m,).
        order: numbers in the order of the rows' values, int64 (m,).
        with_ties: whether rows that are as great as the n-th may be, too.
        known: the slices whose greatest rows are known, int64 (k,).
        counts: how many of them, int64 (k,).
        greatest: their order, the greatest first, int64 (k, n).
        passes: bool (m,), is filled.
    """
    left_out = 0
    place = 0
    for start in range(0, len(slices), _TOGETHER):
        stop = min(start + _TOGETHER, len(slices))
        of, by, passed = slices[start:stop], order[start:stop], passes[start:stop]
        if _are_less(of, by, with_ties, place, known, counts, greatest):
            passed[:] = False
            left_out += stop - start
        else:
            left, place = _pass_each(of, by, with_ties, place, known, counts, greatest, passed)
            left_out += left
    return left_out


@njit(inline="always")
def _are_less(
    slices: Any, order: Any, with_ties: bool, place: int, known: Any, counts: Any, greatest: Any
) -> bool:
    """Whether no row can be among the first, since all are of a place's slice and less than those.

    There is no branch for each row: most rows are told so, many at a time.
    """
    most = greatest.shape[1]
    if counts[place] < most:
        return False
    others, first = 0, order[0]
    for row in range(len(slices)):
        others += slices[row] != known[place]
        first = max(first, order[row])
    last = greatest[place, most - 1]
    return others == 0 and (first < last or (first == last and not with_ties))


@njit(inline="always")
def _pass_each(
    slices: Any,
    order: Any,
    with_ties: bool,
    place: int,
    known: Any,
    counts: Any,
    greatest: Any,
    passes: Any,
) -> Any:
    """Do what `pass_greatest` does, from the place of the row before on; return the last, too."""
    most = greatest.shape[1]
    left_out = 0
    for row in range(len(slices)):
        slice_ = slices[row]
        if known[place] != slice_:
            place = _place_of(slice_, known, counts)
        if place < 0:  # it is older than those that are known
            passes[row] = True
            place = 0
            continue
        value, count = order[row], counts[place]
        if count == most and value <= greatest[place, most - 1]:
            passes[row] = with_ties and value == greatest[place, most - 1]
            left_out += not passes[row]
            continue
        passes[row] = True
        at = min(count, most - 1)
        while at > 0 and greatest[place, at - 1] < value:
            greatest[place, at] = greatest[place, at - 1]
            at -= 1
        greatest[place, at] = value
        counts[place] = min(count + 1, most)
    return left_out, place


@njit(cache=True, nogil=True)
def _place_of(slice_: int, known: Any, counts: Any) -> int:
    """Return the place of a slice, in that of the oldest one if it is new; -1 if it is older."""
    oldest = 0
    for place in range(len(known)):
        if known[place] == slice_:
            return place
        if known[place] < known[oldest]:
            oldest = place
    if slice_ < known[oldest]:
        return -1
    known[oldest] = slice_
    counts[oldest] = 0
    return oldest
