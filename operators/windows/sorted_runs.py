"""`SortedRun`: rows of a slice on the disk, sorted by the hashes of their groups.

Rows that do not fit into memory are written behind one another as runs. To meet all rows of a group
together, runs are merged, as by an external sort: one piece of each is in memory at a time. Only
16 bits of a hash are compared, the *bucket* of a row, and rows of a bucket keep their order: those
of an older run come first. A run never changes, so snapshots and seals refer to it, and its file is
gone with the last one who does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys
from ...state.spill import SpillFile, SpillRecord
from ...transport.wire.batch import Batch

if TYPE_CHECKING:
    from ...state.budget import StateBudget

__all__ = ["RunFile", "SortedRun", "merged", "sorted_pieces"]

Buckets = npt.NDArray[np.uint16]

_PIECE_BYTES = 128 << 10
"""About so many bytes of a run are read at a time."""
_PIECES_PER_PART = 256


class SortedRun:
    """One run: an iterator over its pieces reads them one by one. Several threads may do so.

    Attributes:
        file: where it lies.
        rows: how many rows.
        name: unlike that of any other run.
    """

    def __init__(
        self,
        file: RunFile,
        records: Sequence[SpillRecord],
        rows: int,
        keys: Sequence[str],
        name: str,
    ) -> None:
        self.file, self.rows, self.name = file, rows, name
        self._records, self._keys = records, keys

    @property
    def parts(self) -> int:
        """In how many parts `part` returns all rows."""
        return -(-len(self._records) // _PIECES_PER_PART)

    def part(self, number: int) -> list[Batch]:
        """Return some of the rows, as many as a file of a checkpoint takes."""
        start = number * _PIECES_PER_PART
        return [self.file.look(one) for one in self._records[start : start + _PIECES_PER_PART]]

    def batches(self) -> Iterator[Batch]:
        """Yield the rows in their order."""
        return (self.file.look(record) for record in self._records)

    def __iter__(self) -> Iterator[tuple[Batch, Buckets]]:
        """Yield the pieces, and the bucket of each row."""
        return ((batch, _buckets_of(batch, self._keys)) for batch in self.batches())


class RunFile:
    """A nameless file of runs, which ends with the last object that refers to it.

    Args:
        operator: its id, for messages.
        budget: says where the file is, and how large it may become.

    Raises:
        ResourceError: by `write`, if the disk does not take the rows.
    """

    def __init__(self, operator: str, budget: StateBudget) -> None:
        nbytes = budget.disk_bytes_max
        self._file = SpillFile(operator, nbytes, budget.disk_folder, page_bytes=nbytes + 1)

    @property
    def nbytes(self) -> int:
        """Bytes on the disk."""
        return self._file.size_bytes

    def write(self, pieces: Iterable[Batch], keys: Sequence[str], name: str) -> SortedRun:
        """Write rows in the order of their buckets, a piece at a time, as the run of a name."""
        records, rows = [], 0
        for batch in pieces:
            records.append(self._file.append(batch))
            rows += batch.num_rows
        return SortedRun(self, records, rows, keys, name)

    def look(self, record: SpillRecord) -> Batch:
        """Return a copy of a piece."""
        return self._file.look(record)


def sorted_pieces(batch: Batch, keys: Sequence[str]) -> Iterator[tuple[Batch, Buckets]]:
    """Yield rows by their buckets, as an iterator over a run does; rows of a bucket together."""
    buckets = _buckets_of(batch, keys)
    order = np.argsort(buckets, kind="stable")
    buckets = buckets[order]
    rows_max = max(1, batch.num_rows * _PIECE_BYTES // max(batch.nbytes, 1))
    begins = np.flatnonzero(np.diff(buckets)) + 1
    start = 0
    while start < len(order):
        later = begins[np.searchsorted(begins, start + rows_max, side="left") :]
        stop = int(later[0]) if len(later) else len(order)
        yield batch.take(order[start:stop]), buckets[start:stop]
        start = stop


def merged(runs: Sequence[Iterable[tuple[Batch, Buckets]]]) -> Iterator[Batch]:
    """Yield the rows of runs, the older ones first, in parts of whole buckets."""
    cursors = [iter(run) for run in runs]
    found = [next(cursor, None) for cursor in cursors]
    while any(one is not None for one in found):
        last = min(buckets[-1] for _, buckets in (one for one in found if one is not None))
        taken = []
        for number, one in enumerate(found):
            if one is None:
                continue
            batch, buckets = one
            stop = int(np.searchsorted(buckets, last, side="right"))
            taken.append(batch.slice(0, stop))
            if stop < len(buckets):
                found[number] = batch.slice(stop, len(buckets)), buckets[stop:]
            else:
                found[number] = next(cursors[number], None)
        yield Batch.concat([batch for batch in taken if batch.num_rows])


def _buckets_of(batch: Batch, keys: Sequence[str]) -> Buckets:
    return hash_keys(batch.select(keys), keys)[0].astype(np.uint16)
