"""Rows of a log on the disk, in one pass over its pages, whatever the order that is asked for.

As with records (`page_fetching`): a loop that meets a page on the disk waits for it alone, while
those that are asked for in their order come at the disk's bandwidth, and each is read once for all
of its rows. So rows are gathered by where they lie, the next batch's pages are read meanwhile, and
rows get their order last, in memory. Pages of more batches would not wait in memory for their rows:
the budget is used up, so the kernel has little for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ...state.page_advice import (
    GAP_PAGES_MAX,
    MADV_WILLNEED,
    PAGE_SHIFT,
    advise_pages,
)
from ...transport.compiling import njit
from ...transport.wire.batch import Batch, batch_of_block
from ...transport.wire.block import block_of_located, locate
from ...transport.wire.kernels import DATA, OFFSETS, VALIDITY, WIDTH, offsets_at
from ...transport.wire.types import Schema

__all__ = ["take_in_pass"]

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def take_in_pass(
    sources: npt.NDArray[np.int64],
    starts: Int64s,
    on_disk: Bools,
    numbers: Int64s,
    schema: Schema,
) -> Batch:
    """Return rows of several pieces, some of which are on the disk.

    Args:
        sources: where the pieces' rows are, int64 (pieces, columns, 5).
        starts: the number of each piece's first row, then that of all rows, int64 (pieces + 1,).
        on_disk: which pieces are there, bool (pieces,).
        numbers: the rows, numbered over all pieces, int64 (m,).
        schema: of all pieces.

    Raises:
        InputError: a row does not exist, or a column would hold more than 2 GiB of text.
    """
    order = np.argsort(numbers, kind="stable")
    pieces, rows = locate(numbers[order], starts)
    ends = [*(np.flatnonzero(np.diff(pieces)) + 1).tolist(), len(rows)]
    parts = [(pieces[start:stop], rows[start:stop]) for start, stop in pairwise((0, *ends))]
    _ask_rows(sources, on_disk, *parts[0])
    taken = []
    for number, part in enumerate(parts):
        for following in parts[number + 1 : number + 2]:
            _ask_rows(sources, on_disk, *following)
        block = block_of_located(sources, *part, schema.names)
        taken.append(batch_of_block(schema, len(part[0]), block, 0))
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    return _joined(taken).take(places)


def _joined(batches: Sequence[Batch]) -> Batch:
    return batches[0] if len(batches) == 1 else Batch.concat(batches)


@njit(cache=True, nogil=True)
def _ask_rows(sources: Any, on_disk: Any, pieces: Any, rows: Any) -> None:
    """Ask the kernel for the pages on the disk of rows, which ascend: texts after all others."""
    for column in range(sources.shape[1]):
        width = sources[0, column, WIDTH]
        _ask_values(sources, column, VALIDITY, 1, 1, on_disk, pieces, rows)
        if width == 0:
            _ask_values(sources, column, OFFSETS, 4, 8, on_disk, pieces, rows)
        else:
            _ask_values(sources, column, DATA, abs(width), abs(width), on_disk, pieces, rows)
    for column in range(sources.shape[1]):
        if sources[0, column, WIDTH] == 0:
            _ask_values(sources, column, DATA, 0, 0, on_disk, pieces, rows)


@njit(cache=True, nogil=True)
def _ask_values(
    sources: Any,
    column: int,
    entry: int,
    width: int,
    nbytes: int,
    on_disk: Any,
    pieces: Any,
    rows: Any,
) -> None:
    """Ask for `nbytes` of each row, which are `width` apart; for its text if this is 0."""
    before, first, last = -1, np.int64(0), np.int64(-1)
    for i in range(rows.size):
        place = sources[pieces[i], column, entry]
        if not on_disk[pieces[i]] or place == 0:
            continue
        if width == 0:
            ends = offsets_at(sources[pieces[i], column, OFFSETS] + 4 * rows[i], 1)
            start, stop = place + np.int64(ends[0]), place + np.int64(ends[1])
        else:
            start = place + width * rows[i]
            stop = start + nbytes
        page, last_page = start >> PAGE_SHIFT, (stop - 1) >> PAGE_SHIFT
        if pieces[i] == before and page - last <= GAP_PAGES_MAX:
            last = max(last, last_page)
            continue
        if last >= first:
            advise_pages(first, last, MADV_WILLNEED)
        before, first, last = pieces[i], page, last_page
    if last >= first:
        advise_pages(first, last, MADV_WILLNEED)
