"""`WindowPool`: windows whose bounds depend on their rows, sessions and counts of rows.

A key has a chain of open windows, the newest first: its record in the index of keys holds the first
one, each window the next. Compiled loops take new windows from those that `spare` holds ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys
from ...state.node_transfer import column_name, with_columns
from ...state.records import RecordField, RecordLayout
from ...state.store import KeyedStore
from ...transport.compiling import njit
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import Schema
from .group_state import GroupState

if TYPE_CHECKING:
    from ..aggregates.accumulator import Accumulator
    from ..process import InstanceContext

__all__ = ["NONE", "WindowPool"]

Int64s = npt.NDArray[np.int64]

NONE = -1
"""In the place of a window: there is none."""

_NUMBERS = Schema.of(window="int64")
_BOUNDS = ("start", "last")
_FIELDS = (*_BOUNDS, "next", "group")
_SPARE_MIN = 256


class WindowPool:
    """The open windows of all keys of one operator on one worker, and what they aggregate.

    Args:
        keys: the key columns.
        accumulators: what is computed for each window.
        context: whose memory for state it takes, and which name messages have.
        more: names of fields of windows for the caller to use, int64, `NONE` at first.

    Attributes:
        groups: the accumulators of the windows, by slot.
        spare: slots of windows that are not in use, int64 (n,); loops take them from the front.
    """

    def __init__(
        self,
        keys: Schema,
        accumulators: Sequence[Accumulator],
        context: InstanceContext,
        more: Sequence[str] = (),
    ) -> None:
        names = (*_FIELDS, *more)
        fields = [RecordField(name, np.dtype(np.int64), NONE) for name in names]
        self.groups = GroupState(_NUMBERS, accumulators, context, fields, notes_changes=True)
        layout = RecordLayout(
            keys,
            [
                RecordField("first", np.dtype(np.int64), NONE),
                RecordField("rows", np.dtype(np.int64)),
            ],
        )
        self._keys = KeyedStore(
            layout,
            context.state_budget,
            context.operator_id,
            virtual_nodes=context.virtual_nodes,
        )
        self.spare: Int64s = np.empty(0, np.int64)
        self._opened = 0

    def __len__(self) -> int:
        """Return the number of keys that have a window."""
        return len(self._keys)

    @property
    def nbytes(self) -> int:
        """Bytes of memory for keys and windows."""
        return self._keys.nbytes + self.groups.nbytes

    @property
    def record_bytes(self) -> int:
        """Bytes of the records that are of use: those of keys and of windows in use."""
        windows = len(self.groups) - len(self.spare)
        return len(self._keys) * self._keys.layout.dtype.itemsize + windows * (
            self.groups.record_bytes
        )

    def key_slots(self, hashes: npt.NDArray[np.uint64], keys: Batch) -> Int64s:
        """Return the slot of each row's key, int64 (n,)."""
        return self._keys.slots(hashes, keys)

    def key_field(self, name: str) -> Int64s:
        """Return a field of the keys, by slot: `first`, a window or `NONE`, or `rows`, a count."""
        return self._keys.records[name]

    def field(self, name: str) -> Int64s:
        """Return a field of the windows: `start` and `last`, ns; `next`; `group`, their key."""
        return self.groups.field(name)

    def take_spare(self, used: int) -> None:
        """Take the first `used` of the spare windows out, and provide more if there are none."""
        self.spare = self.spare[used:]
        if len(self.spare):
            return
        count = max(_SPARE_MIN, len(self.groups) // 8)
        numbers = np.arange(self._opened, self._opened + count)
        self._opened += count
        batch = Batch(_NUMBERS, [Column(_NUMBERS.fields[0].type, numbers)])
        hashes, _ = hash_keys(batch, _NUMBERS.names)
        self.spare = self.groups.slots(np.zeros(count, np.int64), hashes, batch)

    def keys_of(self, windows: Int64s) -> Batch:
        """Return the key columns of windows."""
        return self._keys.keys_of(self.field("group")[windows])

    def clear(self) -> None:
        """Drop all windows and keys."""
        self.groups.clear()
        self._keys.clear()
        self.spare = np.empty(0, np.int64)

    def dump(self, nodes: Int64s) -> Batch:
        """Return the windows of the keys of some virtual nodes, in the order of their opening."""
        windows = self.groups.scan(0)
        windows = windows[self.field("group")[windows] != NONE]
        owners, _ = self._keys.scan(nodes)
        windows = windows[np.isin(self.field("group")[windows], owners)]
        numbers = self.groups.keys_of(windows).column("window").data
        windows = windows[np.argsort(numbers)]
        data = {name: self.field(name)[windows] for name in _BOUNDS}
        data["rows"] = self.key_field("rows")[self.field("group")[windows]]
        columns = {column_name(name): Column.of(values) for name, values in data.items()}
        return with_columns(self.keys_of(windows), columns | self.groups.dump(windows))

    def load(self, batch: Batch) -> Int64s:
        """Take dumped windows and return their slots; raise StateFullError."""
        names = self._keys.layout.keys.names
        keys = self.key_slots(hash_keys(batch, names)[0], batch.select(names))
        windows = np.empty(0, np.int64)
        while len(windows) < len(keys):
            self.take_spare(0)
            used = min(len(keys) - len(windows), len(self.spare))
            windows = np.concatenate([windows, self.spare[:used]])
            self.take_spare(used)
        for name in _BOUNDS:
            self.field(name)[windows] = batch.column(column_name(name)).data
        self.field("group")[windows] = keys
        self.key_field("rows")[keys] = batch.column(column_name("rows")).data
        _chain(windows, keys, self.key_field("first"), self.field("next"))
        self.groups.load(windows, batch)
        return windows

    def drop(self, windows: Int64s) -> None:
        """Free windows, which no chain has any more."""
        self.field("group")[windows] = NONE
        self.groups.delete(windows)

    def drop_keys(self, slots: Int64s) -> None:
        """Free those of these keys that have no window."""
        slots = np.unique(slots)
        self._keys.delete(slots[self.key_field("first")[slots] == NONE])


@njit(cache=True, nogil=True)
def _chain(windows: Any, keys: Any, first: Any, following: Any) -> None:
    """Put each window in front of the chain of its key."""
    for row in range(len(windows)):
        following[windows[row]] = first[keys[row]]
        first[keys[row]] = windows[row]
