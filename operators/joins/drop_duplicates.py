"""`DropDuplicates`: passes on the first row of a key within a horizon of event time.

Time is cut into slices as long as the horizon. Two rows that are passed on lie at least the horizon
apart, so a slice has one of a key at most, and a row is compared with those of its own slice and of
the two beside it. A slice is freed once the watermark says that no duplicate of its rows can come.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys
from ...state.node_transfer import column_name, with_columns
from ...state.records import RecordField
from ...state.watermarks import LATEST_NS
from ...transport.compiling import njit
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ..process import Output
from ..windows.group_state import GroupState
from ..windows.grouping import LATE, SLICE
from ..windows.sealed_windows import SealedSlices
from ..windows.slices import TimeSlices
from ..windows.specifications import TimeWindow

if TYPE_CHECKING:
    from ...transport.wire.types import Schema
    from .deduplication import Deduplication

__all__ = ["DropDuplicates"]

Int64s = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

_NONE_NS = -(1 << 63)
_TIME = RecordField("time", np.dtype(np.int64), _NONE_NS)
"""When the row of a key was that was passed on; `_NONE_NS` if none was."""


class DropDuplicates(SealedSlices):
    """Drops the duplicates that a `Deduplication` describes; rows come in any order."""

    remedy = "take a shorter within="

    def __init__(self, asked: Deduplication) -> None:
        super().__init__()
        self._asked = asked
        self._slices = TimeSlices(TimeWindow("", asked.within_ns, asked.within_ns, 0))

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Pass on the rows that are no duplicates."""
        assert batch.times is not None  # checked while the topology was built
        late = batch.times <= self._watermark_ns
        if late.any():
            out.emit_to(LATE, batch.filter(late))
            batch = batch.filter(~late)
        if not batch.num_rows:
            return
        slices = self._slices.of(batch)
        hashes, _ = hash_keys(batch, self._asked.keys)
        keys = batch.select(self._asked.keys)
        fresh = self._fresh(slices, keys, hashes)
        out.emit(batch if fresh.all() and batch.owned else batch.filter(fresh))

    def on_watermark(self, watermark_ns: int, out: Output) -> None:
        """Free the slices whose rows can have no duplicates any more."""
        self._watermark_ns = watermark_ns
        if self._groups is not None:
            for slice_ in self._groups.slices:
                if self._release_ns(slice_) <= watermark_ns:
                    self._groups.free(slice_)

    def close(self, out: Output) -> None:
        """Free all."""
        if self._groups is not None:
            self._groups.clear()

    def dump(self, nodes: Int64s) -> Iterator[Batch]:
        """Return the keys with the times of their rows that were passed on."""
        if self._groups is None:
            return
        for slice_ in self._groups.slices:
            slots = self._groups.scan(slice_, nodes)
            column = {SLICE: Column.of(np.full(len(slots), slice_))}
            yield with_columns(self._groups.keys_of(slots), column | self._groups.dump(slots))

    def load(self, batch: Batch) -> None:
        """See `Process.load`; the memory for state may be used up: StateFullError."""
        keys = batch.select(self._asked.keys)
        groups = self._bound(keys.schema)
        if column_name(_TIME.name) in batch.schema:  # else it tells the columns of the keys alone
            slices = batch.column(SLICE).data
            slots = groups.slots(slices, hash_keys(keys, self._asked.keys)[0], keys)
            groups.load(slots, batch)

    def _release_ns(self, slice_: int) -> int:
        return min(self._slices.end_ns(slice_) - 1 + self._asked.within_ns, LATEST_NS)

    def _fresh(self, slices: Int64s, keys: Batch, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Return which rows are no duplicates, and note these."""
        groups = self._bound(keys.schema)
        present = np.unique(slices).tolist()
        own, before, after = np.full((3, len(slices)), -1, np.int64)
        parts = []
        for slice_ in present:
            rows = slice(None) if len(present) == 1 else np.flatnonzero(slices == slice_)
            some = keys if len(present) == 1 else keys.take(rows)
            own[rows] = _own_records(groups, slice_, hashes[rows], some)
            parts.append((slice_, rows, some))
        for slice_, rows, some in parts:  # all rows have their records by now
            for found, beside in ((before, slice_ - 1), (after, slice_ + 1)):
                found[rows] = groups.find(beside, hashes[rows], some)
        assert keys.times is not None
        fresh = np.zeros(len(own), np.bool_)
        kept: Any = groups.field(_TIME.name)
        _mark_fresh(keys.times, own, before, after, kept, self._asked.within_ns, fresh)
        return fresh

    def _bound(self, keys: Schema) -> GroupState:
        """Return the records; make room for them by the columns of the first rows."""
        if self._groups is None:
            self._keep_in(GroupState(keys, (), self._context, moved=[_TIME]), keys)
        assert self._groups is not None
        return self._groups


def _own_records(groups: GroupState, slice_: int, hashes: Hashes, keys: Batch) -> Int64s:
    """Return the records of keys in a slice; after a seal only those that are new have changed."""
    slices = np.full(len(hashes), slice_)
    if not groups.is_sealed:
        return groups.slots(slices, hashes, keys)
    slots = groups.find(slice_, hashes, keys)
    times = np.where(slots < 0, _NONE_NS, groups.field(_TIME.name)[slots])
    new = np.flatnonzero(times == _NONE_NS)
    slots[new] = groups.slots(slices[new], hashes[new], keys.take(new))
    return slots


@njit(cache=True, nogil=True)
def _mark_fresh(
    times: Any, own: Any, before: Any, after: Any, kept: Any, within: int, fresh: Any
) -> None:
    """Mark rows without a row of their key nearer than `within`; note their times in `kept`.

    `own`, `before` and `after` are the records of a row's key in its slice and in those beside it,
    -1 where there is none.
    """
    for row in range(len(own)):
        if kept[own[row]] != _NONE_NS:
            continue
        time = times[row]
        if before[row] >= 0 and kept[before[row]] != _NONE_NS:
            if time - kept[before[row]] < within:
                continue
        if after[row] >= 0 and kept[after[row]] != _NONE_NS:
            if kept[after[row]] - time < within:
                continue
        kept[own[row]] = time
        fresh[row] = True
