"""`Volume`: adds up each symbol's trading volume, second by second of event time."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ...operators.process import InstanceContext, Output, Process
from ...state.keys import hash_keys
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import Schema
from ..shared.columns import check_columns, event_times, types_of
from .records import Records
from .schemas import FILLS, VOLUMES
from .texts import frozen, pick_texts
from .volume_kernels import VOLUME, add_fills, close_seconds, reindex_volumes

__all__ = ["Volume"]

_NS_PER_S = 1_000_000_000
_MS_PER_S = 1_000
_SYMBOLS_AT_START = 64
_ID_BYTES_AT_START = 16 * _SYMBOLS_AT_START


class Volume(Process):
    """Reads fills, keyed by symbol, and emits one row per symbol and second with a fill.

    A symbol's fills arrive in the order of execution, from the one instance that owns its book. A
    second is complete when a later fill of the symbol arrives or the watermark has passed; the
    rows are the same in both cases.
    """

    per_worker: ClassVar[bool] = True
    schema: Schema | None = VOLUMES

    def open(self, context: InstanceContext) -> None:
        """Start without symbols, and load the compiled loops before the first row arrives."""
        self._checked: set[Schema] = set()
        self._counts = np.zeros(2, np.int64)
        self._volumes: Records = np.zeros(0, VOLUME)
        self._ids = np.zeros(0, np.uint8)
        self._make_room(_SYMBOLS_AT_START, _ID_BYTES_AT_START)
        self._add(Batch.empty(FILLS).with_times(np.empty(0, np.int64)))
        self._close(0)
        self._batch_of(np.empty(0, VOLUME))

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Add the fills."""
        if batch.schema not in self._checked:
            check_columns("fills", batch, types_of(FILLS))
            self._checked.add(batch.schema)
        self._emit(self._add(batch), batch.origin_ns, out)

    def on_watermark(self, watermark_ns: int, out: Output) -> None:
        """Emit the seconds that are complete."""
        self._emit(self._close((watermark_ns + 1) // _NS_PER_S), 0, out)

    def close(self, out: Output) -> None:
        """Emit the seconds that are open."""
        self._emit(self._close(np.iinfo(np.int64).max), 0, out)

    def _emit(self, closed: Records, origin_ns: int, out: Output) -> None:
        if len(closed):
            out.emit(self._batch_of(closed, origin_ns))

    def _add(self, batch: Batch) -> Records:
        """Add fills; return the seconds that they complete."""
        symbols = batch.column("symbol")
        assert symbols.offsets is not None
        hashes, _ = hash_keys(batch, ("symbol",))
        rows = (
            *(frozen(symbols.data), frozen(symbols.offsets), frozen(hashes)),
            frozen(event_times("fills", batch) // _NS_PER_S),
            *(frozen(batch.column("price_milli").data), frozen(batch.column("qty").data)),
        )
        closed = np.empty(batch.num_rows, VOLUME)
        row = filled = 0
        while True:
            kept = (self._counts, self._index, self._volumes, self._ids)
            row, more = add_fills(*kept, *rows, row, closed[filled:])
            filled += more
            if row == batch.num_rows:
                return closed[:filled]
            id_bytes = int(symbols.offsets[row + 1]) - int(symbols.offsets[row])
            self._make_room(2 * len(self._volumes), 2 * len(self._ids) + id_bytes)

    def _close(self, before: int) -> Records:
        """Close and return the open seconds less than `before`."""
        closed = np.empty(int(self._counts[0]), VOLUME)
        return closed[: close_seconds(self._counts, self._volumes, before, closed)]

    def _make_room(self, symbols: int, id_bytes: int) -> None:
        volumes, ids = np.zeros(symbols, VOLUME), np.zeros(id_bytes, np.uint8)
        volumes[: len(self._volumes)] = self._volumes
        ids[: len(self._ids)] = self._ids
        self._volumes, self._ids = volumes, ids
        self._index = np.zeros(2 * symbols, np.int32)
        reindex_volumes(self._counts, self._index, self._volumes)

    def _batch_of(self, closed: Records, origin_ns: int = 0) -> Batch:
        """Return rows of `VOLUMES`, each at its second's last nanosecond."""
        starts, stops = self._volumes["id_start"], self._volumes["id_stop"]
        offsets = np.append(starts[: self._counts[0]], stops[self._counts[0] - 1])
        pool, picked = pick_texts(
            frozen(self._ids), frozen(offsets.astype(np.int32)), closed["symbol"].copy()
        )
        types = [field.type for field in VOLUMES]
        columns = [
            Column(types[0], closed["second"] * _MS_PER_S),
            Column(types[1], pool, picked),
        ]
        for kind, name in zip(
            types[2:], ("fills", "qty", "value", "last_price", "total_qty"), strict=True
        ):
            columns.append(Column(kind, closed[name].copy()))
        times: npt.NDArray[np.int64] = (closed["second"] + 1) * _NS_PER_S - 1
        return Batch(VOLUMES, columns, len(closed), times, origin_ns)
