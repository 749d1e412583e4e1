"""`RowLog`: rows by their number, in the order in which they were appended.

Columns are kept as batches. Small ones are concatenated so that each is at least twice as large as
the next one, up to a limit: so a row is copied a few times, and what is kept of many small slices
is not mostly overhead. Rows of all batches are gathered in one pass, wherever they are. The oldest
batches can lie on the disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ...configs.errors import InputError
from ...state.page_file import PageFile
from ...transport.wire.batch import Batch, batch_of_block
from ...transport.wire.block import gather_block_of_pieces
from ...transport.wire.placed_batch import copy_to
from ...transport.wire.types import Schema
from .log_passes import take_in_pass

__all__ = ["RowLog", "take_of_logs"]

Int64s = npt.NDArray[np.int64]

_BATCH_BYTES_MAX = 1 << 20
_SPILLED_BYTES_MIN = 256 << 10
"""Batches grow to so many bytes at least, see `stream_join.SPILLED_BYTES_MIN`."""


class RowLog:
    """Rows of one schema, numbered from 0."""

    def __init__(self) -> None:
        self._batches: list[Batch] = []
        self._sizes: list[int] = []  # bytes of the batches
        self._on_disk = 0  # how many of the oldest batches are there
        self._starts = np.zeros(8, np.int64)  # number of each batch's first row, and of the next
        self._sources = np.empty((7, 0, 0), np.int64)  # where the rows of the batches are
        self.nbytes = 0
        self.spilled_bytes = 0

    def __len__(self) -> int:
        """Return the number of batches."""
        return len(self._batches)

    def append(self, rows: Batch) -> None:
        """Add rows without event times, which the log then owns.

        Raises:
            InputError: their columns cannot be converted to those of the rows before.
        """
        if self._batches and rows.schema != self._batches[0].schema:
            rows = _converted(rows, self._batches[0].schema)
        merged, size = 1, rows.nbytes
        for before in reversed(self._sizes[self._on_disk :]):
            large = before + size > _BATCH_BYTES_MAX and before >= _SPILLED_BYTES_MIN
            if before >= 2 * size or large:
                break
            merged, size = merged + 1, size + before
        at = len(self._batches) + 1 - merged
        batch = Batch.concat([*self._batches[at:], rows]) if merged > 1 else rows
        self.nbytes += batch.nbytes - sum(self._sizes[at:])
        self._batches[at:], self._sizes[at:] = [batch], [batch.nbytes]
        self._note(at)

    def _note(self, at: int) -> None:
        """Note where the rows of the last batch are, which is the one at this position."""
        batch = self._batches[at]
        sources = batch.sources(with_times=False)
        if at + 1 >= len(self._starts) or self._sources.shape[1:] != sources.shape[1:]:
            places, starts = self._sources[:at], self._starts[: at + 1]
            self._sources = np.empty((2 * at + 8, *sources.shape[1:]), np.int64)
            self._starts = np.empty(2 * at + 9, np.int64)
            self._starts[: at + 1] = starts
            if at:
                self._sources[:at] = places
        self._sources[at] = sources[0]
        self._starts[at + 1] = self._starts[at] + batch.num_rows

    def next_to_spill(self, least_bytes: int) -> int:
        """Return the bytes of the oldest batch in memory; 0 if they are fewer than the least."""
        for size in self._sizes[self._on_disk :]:
            return size if size >= least_bytes else 0
        return 0

    def spill(self, pages: PageFile) -> None:
        """Put the oldest batch in memory into a file of its own; raise as `PageFile.back`."""
        at = self._on_disk
        batch = self._batches[at] = copy_to(self._batches[at], pages.holding)
        self._sources[at] = batch.sources(with_times=False)[0]
        self._on_disk += 1
        self.nbytes -= self._sizes[at]
        self.spilled_bytes += self._sizes[at]

    def take(self, numbers: Int64s) -> Batch:
        """Return the rows of these numbers in this order; there is at least one in the log."""
        if self._on_disk and len(numbers):
            return take_in_pass(*self.pieces, self.on_disk, numbers, self.schema)
        if len(self._batches) == 1:
            return self._batches[0].take(numbers)
        block = gather_block_of_pieces(*self.pieces, numbers, self.schema.names)
        return batch_of_block(self.schema, numbers.size, block, 0)

    @property
    def on_disk(self) -> npt.NDArray[np.bool_]:
        """Which batches are on the disk, bool (batches,)."""
        return np.arange(len(self._batches)) < self._on_disk

    @property
    def schema(self) -> Schema:
        """The columns; there is at least one row."""
        return self._batches[0].schema

    @property
    def pieces(self) -> tuple[npt.NDArray[np.int64], Int64s]:
        """Where the rows are: the sources of the batches, the number of each one's first row."""
        count = len(self._batches)
        return self._sources[:count], self._starts[: count + 1]

    def between(self, first: int, stop: int) -> Iterator[Batch]:
        """Yield the rows first … stop − 1, as views of what never changes."""
        start = 0
        for batch in self._batches:
            here, until = max(first - start, 0), min(stop - start, batch.num_rows)
            if here < until:
                yield batch.slice(here, until)
            start += batch.num_rows

    def keep_only(self, numbers: Int64s, pages: PageFile | None = None) -> None:
        """Drop all rows but these, which are numbered anew from 0; in one batch without `pages`.

        With `pages` the numbers ascend, and rows on the disk stay there.
        """
        if pages is not None:
            self._keep_in_pieces(numbers, pages)
            return
        kept = self.take(numbers) if len(numbers) else None
        RowLog.__init__(self)
        if kept is not None:
            self.append(kept)

    def _keep_in_pieces(self, numbers: Int64s, pages: PageFile) -> None:
        """Keep rows batch by batch: together they are more than the memory holds."""
        batches, starts, on_disk = self._batches[::-1], self._starts, self._on_disk
        ends = np.searchsorted(numbers, starts[1 : len(batches) + 1]).tolist()
        RowLog.__init__(self)
        loose: list[Batch] = []
        for at, (first, stop) in enumerate(pairwise((0, *ends))):
            batch = batches.pop()
            is_whole = stop - first == batch.num_rows
            if at == on_disk or is_whole or sum(one.nbytes for one in loose) > _BATCH_BYTES_MAX:
                self._put_on_disk(loose, pages)
            rows = numbers[first:stop] - starts[at]
            if not len(rows):
                continue
            if at >= on_disk:
                self.append(batch if is_whole else batch.take(rows))
            elif is_whole:
                self._add_on_disk(batch)
            else:
                loose.append(_take_on_disk(batch, rows))
        self._put_on_disk(loose, pages)

    def _put_on_disk(self, loose: list[Batch], pages: PageFile) -> None:
        """Put batches, as one, on the disk after all that is there; the list is empty then."""
        if loose:
            self._add_on_disk(copy_to(Batch.concat(loose), pages.holding))
            loose.clear()

    def _add_on_disk(self, batch: Batch) -> None:
        self._batches.append(batch)
        self._sizes.append(batch.nbytes)
        self._on_disk += 1
        self.spilled_bytes += batch.nbytes
        self._note(len(self._batches) - 1)


def take_of_logs(logs: Sequence[RowLog], counts: Int64s, numbers: Int64s) -> Batch:
    """Return rows of several logs, in one pass.

    Args:
        logs: at least one.
        counts: how many rows are taken of each, int64 (logs,).
        numbers: of the rows in their logs, int64 (m,): those of the first log, of the second, …
    """
    if len(logs) == 1:
        return logs[0].take(numbers)
    if any(log.schema != logs[0].schema for log in logs):
        parts = zip(logs, np.split(numbers, np.cumsum(counts)[:-1]), strict=True)
        return Batch.concat([log.take(some) for log, some in parts])
    sources, starts = zip(*(log.pieces for log in logs), strict=True)
    rows = np.array([some[-1] for some in starts])
    begins = np.cumsum(rows) - rows
    ends = [some[1:] + begin for some, begin in zip(starts, begins, strict=True)]
    schema, together = logs[0].schema, np.concatenate(sources)
    bounds = np.concatenate([np.zeros(1, np.int64), *ends])
    numbers = numbers + np.repeat(begins, counts)
    on_disk = np.concatenate([log.on_disk for log in logs])
    if on_disk.any() and len(numbers):
        return take_in_pass(together, bounds, on_disk, numbers, schema)
    block = gather_block_of_pieces(together, bounds, numbers, schema.names)
    return batch_of_block(schema, numbers.size, block, 0)


def _take_on_disk(batch: Batch, rows: Int64s) -> Batch:
    starts = np.array([0, batch.num_rows])
    sources = batch.sources(with_times=False)
    return take_in_pass(sources, starts, np.ones(1, np.bool_), rows, batch.schema)


def _converted(rows: Batch, schema: Schema) -> Batch:
    """Return rows with the types of a schema; raise InputError if it has narrower ones."""
    found = Batch.concat([Batch.empty(schema), rows])
    if found.schema != schema:
        msg = f"rows of a join have columns {rows.schema}, and those before them {schema}"
        raise InputError(msg)
    return found
