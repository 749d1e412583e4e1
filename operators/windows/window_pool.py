"""`WindowPool`: windows whose bounds depend on their rows, sessions and counts of rows.

A key has a chain of open windows, the newest first: its record in the index of keys holds the first
one, each window the next. Compiled loops take new windows from those that `spare` holds ready.

Behind a seal, keys and windows leave images before they change (see `store`): whoever writes to a
window says so by `note` or `note_chains`, and thereby that its key has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from ..sealing import Epochs
from .group_state import GroupState
from .sealed_pool import BOUNDS, LAST, NONE, ROWS, START, SealedPool

if TYPE_CHECKING:
    from ..aggregates.accumulator import Accumulator
    from ..process import InstanceContext

__all__ = ["NONE", "WindowPool"]

Int64s = npt.NDArray[np.int64]

_NUMBERS = Schema.of(window="int64")
_FIELDS = (*BOUNDS, "next", "group")
_SPARE_MIN, _SPARE_MAX = 256, 1 << 16
_NOTED = 1 << 12
"""So many spare windows are noted behind a seal at a time: each leaves an image."""


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
        self._stock = self.spare  # others that are not in use
        self._opened = 0
        self._stocks: Epochs[Int64s] = Epochs()

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
        windows = len(self.groups) - len(self.spare) - len(self._stock)
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
        if not len(self._stock):
            self._stock = self._opened_windows()
        ready = _NOTED if self.is_sealed else len(self._stock)
        self.spare, self._stock = self._stock[:ready], self._stock[ready:]
        self._note_windows(self.spare)

    def _opened_windows(self) -> Int64s:
        count = min(max(_SPARE_MIN, len(self.groups) // 8), _SPARE_MAX)
        numbers = np.arange(self._opened, self._opened + count)
        self._opened += count
        batch = Batch(_NUMBERS, [Column(_NUMBERS.fields[0].type, numbers)])
        hashes, _ = hash_keys(batch, _NUMBERS.names)
        return self.groups.slots(np.zeros(count, np.int64), hashes, batch)

    def keys_of(self, windows: Int64s) -> Batch:
        """Return the key columns of windows."""
        return self._keys.keys_of(self.field("group")[windows])

    def clear(self) -> None:
        """Drop all windows and keys."""
        self.groups.clear()
        self._keys.clear()
        self.spare = self._stock = np.empty(0, np.int64)

    # -- saving and moving --------------------------------------------------------------------

    def dump(self, nodes: Int64s) -> Iterator[Batch]:
        """Yield the windows of the keys of some virtual nodes, in the order of their opening.

        Then the values of each field of sets, with the key and start of their window.
        """
        windows = self.groups.scan(0)
        windows = windows[self.field("group")[windows] != NONE]
        owners, _ = self._keys.scan(nodes)
        windows = windows[np.isin(self.field("group")[windows], owners)]
        numbers = self.groups.keys_of(windows).column("window").data
        windows = windows[np.argsort(numbers)]
        data = {column_name(name): self.field(name)[windows] for name in BOUNDS}
        data[ROWS] = self.key_field("rows")[self.field("group")[windows]]
        columns = {name: Column.of(values) for name, values in data.items()}
        numbers_of_groups = self.groups.dump(windows, sets=False)
        yield with_columns(self.keys_of(windows), columns | numbers_of_groups)
        for rows, values in self.groups.dump_sets(windows):
            owning = windows[rows]
            start = {START: Column.of(self.field("start")[owning])}
            yield with_columns(self.keys_of(owning), start | values)

    def load(self, batch: Batch) -> Int64s:
        """Take dumped windows and return their slots, or values of their sets.

        Raises:
            StateFullError: the worker's memory for state is used up.
        """
        names = self._keys.layout.keys.names
        keys = self.key_slots(hash_keys(batch, names)[0], batch.select(names))
        if LAST not in batch.schema:
            of = np.empty(len(keys), np.int64)
            chains = self.key_field("first"), self.field("next")
            _find_started(keys, batch.column(START).data, *chains, self.field("start"), of)
            assert (of != NONE).all()
            self.groups.load(of, batch)
            return np.empty(0, np.int64)
        windows = np.empty(0, np.int64)
        while len(windows) < len(keys):
            self.take_spare(0)
            used = min(len(keys) - len(windows), len(self.spare))
            windows = np.concatenate([windows, self.spare[:used]])
            self.take_spare(used)
        for name in BOUNDS:
            self.field(name)[windows] = batch.column(column_name(name)).data
        self.field("group")[windows] = keys
        self.key_field("rows")[keys] = batch.column(ROWS).data
        _chain(windows, keys, self.key_field("first"), self.field("next"))
        self.groups.load(windows, batch)
        return windows

    def free(self, windows: Int64s) -> None:
        """Free windows, which no chain has any more."""
        self.field("group")[windows] = NONE
        self.groups.delete(windows)

    def drop_keys(self, slots: Int64s) -> None:
        """Free those of these keys that have no window."""
        slots = np.unique(slots)
        self._keys.delete(slots[self.key_field("first")[slots] == NONE])

    # -- epochs -------------------------------------------------------------------------------

    @property
    def is_sealed(self) -> bool:
        """Whether there is a seal, so that keys and windows leave images when they change."""
        return self.groups.is_sealed

    def note(self, windows: Int64s) -> None:
        """Note that windows of keys are about to be written to."""
        if self.is_sealed and len(windows):
            self._keys.note(self.field("group")[windows])
            self._note_windows(windows)

    def note_chains(self, keys: Int64s) -> None:
        """Note that any windows of these keys are about to be written to."""
        if not self.is_sealed or not len(keys):
            return
        keys = np.unique(keys)
        self._keys.note(keys)
        chains = keys, self.key_field("first"), self.field("next")
        windows = np.empty(_walk(*chains, np.empty(0, np.int64)), np.int64)
        _walk(*chains, windows)
        self._note_windows(windows)

    def _note_windows(self, windows: Int64s) -> None:
        if self.is_sealed:
            self.groups.note(np.zeros(len(windows), np.int64), windows)

    def has_seal(self, epoch: int) -> bool:
        """Return whether there is a seal of an epoch."""
        return epoch in self._stocks

    def seal(self, epoch: int) -> None:
        """Let the windows as they are now be some to go back to: O(1); raise ValueError."""
        if not self.groups.slices:  # a thread finds the layout of windows in their store
            self._stock = self._opened_windows()
        self._stock = np.concatenate([self.spare, self._stock])
        self.spare = np.empty(0, np.int64)
        self._stocks.add(epoch, self._stock)
        self._keys.seal(epoch)
        self.groups.seal(epoch)

    def sealed(self, epoch: int) -> SealedPool:
        """Return what another thread may read of the last seal, which is of this epoch."""
        return SealedPool(self._keys.sealed(epoch), self.groups.sealed(epoch))

    def roll_back(self, epoch: int) -> None:
        """Go back to the windows of a seal; raise ValueError if there is none."""
        self._stock = self._stocks.back_to(epoch)
        self.spare = np.empty(0, np.int64)
        self._keys.roll_back(epoch)
        self.groups.roll_back(epoch)

    def release(self, epoch: int) -> None:
        """Give up going back before a seal; raise ValueError if there is none."""
        self._stocks.release(epoch)
        self._keys.release(epoch)
        self.groups.release(epoch)

    def drop(self) -> None:
        """Drop all windows, keys and seals, and give their memory back."""
        self._stocks = Epochs()
        self._keys.drop()
        self.groups.drop()
        self.spare = self._stock = np.empty(0, np.int64)


@njit(cache=True, nogil=True)
def _chain(windows: Any, keys: Any, first: Any, following: Any) -> None:
    """Put each window in front of the chain of its key."""
    for row in range(len(windows)):
        following[windows[row]] = first[keys[row]]
        first[keys[row]] = windows[row]


@njit(cache=True, nogil=True)
def _walk(keys: Any, first: Any, following: Any, windows: Any) -> int:
    """Write the windows of the chains of keys, as far as there is room; return how many."""
    count = 0
    for row in range(len(keys)):
        window = first[keys[row]]
        while window != NONE:
            if count < len(windows):
                windows[count] = window
            count += 1
            window = following[window]
    return count


@njit(cache=True, nogil=True)
def _find_started(
    keys: Any, starts: Any, first: Any, following: Any, start: Any, windows: Any
) -> None:
    """Write which window of each key starts at each time, `NONE` if there is none."""
    for row in range(len(keys)):
        window = first[keys[row]]
        while window != NONE and start[window] != starts[row]:
            window = following[window]
        windows[row] = window
