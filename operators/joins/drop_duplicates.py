"""`DropDuplicates`: passes on the first row of a key within a horizon of event time.

Time is cut into slices as long as the horizon. Two rows that are passed on lie at least the horizon
apart, so a slice has one of a key at most, and a row is compared with those of its own slice and of
the two beside it. A slice is freed once the watermark says that no duplicate of its rows can come.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys
from ...state.node_transfer import with_columns
from ...state.records import RecordField, RecordLayout
from ...state.store import KeyedStore
from ...transport.compiling import njit
from ...transport.wire.column import Column
from ..process import InputOrder, InstanceContext, Output, Process
from ..sealing import SealingByDump
from ..windows.grouping import LATE, OUTPUTS, SLICE
from ..windows.slices import TimeSlices
from ..windows.specifications import TimeWindow

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema
    from .deduplication import Deduplication

__all__ = ["DropDuplicates"]

Int64s = npt.NDArray[np.int64]

_NONE_NS = -(1 << 63)
_LATEST_NS = (1 << 63) - 1


class DropDuplicates(Process, SealingByDump):
    """Drops the duplicates that a `Deduplication` describes; rows come in any order."""

    per_worker: ClassVar[bool] = True
    outputs: ClassVar[tuple[str, ...]] = OUTPUTS
    takes_late_rows: ClassVar[bool] = True
    late_outputs: ClassVar[tuple[str, ...]] = (LATE,)
    input_order: ClassVar[InputOrder | None] = "arrival"

    def __init__(self, asked: Deduplication) -> None:
        self._asked = asked
        self._slices = TimeSlices(TimeWindow("", asked.within_ns, asked.within_ns, 0))
        self._spare: KeyedStore | None = None
        self._stores: dict[int, KeyedStore] = {}
        self._cleared: list[KeyedStore] = []
        self._watermark_ns = _NONE_NS

    def open(self, context: InstanceContext) -> None:
        """Take the operator's name and memory; the columns are known with the first rows."""
        self._context = context
        self._watermark_ns = context.watermark_ns
        context.state_budget.advise(context.operator_id, "take a shorter within=")

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
        for slice_ in [one for one in self._stores if self._release_ns(one) <= watermark_ns]:
            store = self._stores.pop(slice_)
            store.clear()
            self._cleared.append(store)

    def close(self, out: Output) -> None:
        """Free all."""
        self._forget()

    def dump(self, nodes: Int64s) -> Iterator[Batch]:
        """Return the keys with the times of their rows that were passed on."""
        for slice_, store in self._stores.items():
            batch = store.export_nodes(nodes)
            yield with_columns(batch, {SLICE: Column.of(np.full(batch.num_rows, slice_))})

    def load(self, batch: Batch) -> None:
        """See `Process.load`; the memory for state may be used up: StateFullError."""
        slices = batch.column(SLICE).data
        for slice_ in np.unique(slices).tolist():
            store = self._store(slice_, batch.schema.select(self._asked.keys))
            store.import_nodes(batch.filter(slices == slice_))

    def _forget(self) -> None:
        for store in self._stores.values():
            store.clear()
        self._cleared += self._stores.values()
        self._stores.clear()

    @property
    def state_bytes(self) -> int:
        """Bytes that the keys take."""
        return sum(store.nbytes for store in self._stores.values())

    def _release_ns(self, slice_: int) -> int:
        return min(self._slices.end_ns(slice_) - 1 + self._asked.within_ns, _LATEST_NS)

    def _fresh(
        self, slices: Int64s, keys: Batch, hashes: npt.NDArray[np.uint64]
    ) -> npt.NDArray[np.bool_]:
        """Return which rows are no duplicates, and note these."""
        present = np.unique(slices).tolist()
        own, before, after = np.full((3, len(slices)), -1, np.int64)
        parts = []
        for slice_ in present:
            rows = slice(None) if len(present) == 1 else np.flatnonzero(slices == slice_)
            some = keys if len(present) == 1 else keys.take(rows)
            own[rows] = self._store(slice_, keys.schema).slots(hashes[rows], some)
            parts.append((slice_, rows, some))
        for slice_, rows, some in parts:  # all rows have their records by now
            for found, beside in ((before, slice_ - 1), (after, slice_ + 1)):
                if (store := self._stores.get(beside)) is not None:
                    found[rows] = store.find(hashes[rows], some)
        assert keys.times is not None and self._spare is not None
        fresh = np.zeros(len(own), np.bool_)
        kept: Any = self._spare.records
        _mark_fresh(keys.times, own, before, after, kept["time"], self._asked.within_ns, fresh)
        return fresh

    def _store(self, slice_: int, keys: Schema) -> KeyedStore:
        if self._spare is None:
            self._spare = KeyedStore(
                RecordLayout(keys, [RecordField("time", np.dtype(np.int64), _NONE_NS)]),
                self._context.state_budget,
                self._context.operator_id,
                virtual_nodes=self._context.virtual_nodes,
            )
        store = self._stores.get(slice_)
        if store is None:
            store = self._cleared.pop() if self._cleared else self._spare.sibling()
            self._stores[slice_] = store
        return store


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
