"""`SliceStores`: which store has the groups of which slice.

A slice's groups are freed at once when its windows have closed, without traces of them in an index.
So each large slice has a store of its own. Small ones share: to open, fill and free a store takes
longer than to enter a hundred groups. Slices that are opened one after another get the same store
until it has `SHARED_GROUPS` groups, or one of them has closed; it is freed with the last of them.
What others leave behind meanwhile is deleted group by group once it is more than the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...state.keys import stable_partition, virtual_node_of
from ...transport.compiling import njit
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import DataType, Field, Schema
from ..sealing import Epochs
from .grouping import SLICE

if TYPE_CHECKING:
    from ...state.field_updates import FieldUpdate
    from ...state.sealed_records import SealedRecords
    from ...state.store import KeyedStore

__all__ = ["SHARED_GROUPS", "SealedStore", "SliceStores", "keys_in_slices", "scan_together"]

Int64s = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

SHARED_GROUPS = 1 << 13
"""With so many groups a store gets no further slice."""

_SLICES_MAX = 1 << 8
"""How many slices share a store at most."""

_SPAN_MAX = 1 << 14
"""In a span of so many slices their places are kept in an array, which is faster than a search."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIXER = np.uint64(0xFF51AFD7ED558CCD)
_NO_SLOTS = np.empty(0, np.int64)

_TOGETHER_ROWS = 1 << 16
"""From so many groups on slices are yielded: each time becomes a file of a checkpoint."""


def keys_in_slices(keys: Schema) -> Schema:
    """Return the key columns of stores that slices share: the slice, then those of the groups."""
    return Schema((Field(SLICE, DataType.parse("int64")), *keys))


class _Shared:
    """A store, and the slices that share it."""

    def __init__(self, store: KeyedStore, number: int) -> None:
        self.store, self.number = store, number
        self.open: set[int] = set()
        self.closed_groups = 0
        self._had: list[int] = []
        self._by_slice: dict[int, Int64s] | None = None

    def kept(self) -> _KeptShared:
        """Return what to keep of it at a seal, beside the store."""
        return _KeptShared(self, frozenset(self.open), tuple(self._had), self.closed_groups)

    def go_back(self, kept: _KeptShared) -> None:
        """Be what it was at a seal; the store goes back by itself."""
        self.open, self._had = set(kept.open), list(kept.had)
        self.closed_groups, self._by_slice = kept.closed_groups, None

    @property
    def takes_slices(self) -> bool:
        none_has_closed = len(self.open) == len(self._had) < _SLICES_MAX
        return none_has_closed and len(self.store) < SHARED_GROUPS

    def take(self, slice_: int) -> None:
        """Let a slice share the store."""
        self.open.add(slice_)
        self._had.append(slice_)

    def slots(self, hashes: Hashes, keys: Batch) -> Int64s:
        """Return the slots of groups; see `KeyedStore.slots`."""
        self._by_slice = None
        return self.store.slots(hashes, keys)

    def update(self, hashes: Hashes, keys: Batch, updates: Sequence[FieldUpdate]) -> Int64s:
        """Update fields of groups; see `KeyedStore.update`."""
        self._by_slice = None
        return self.store.update(hashes, keys, updates)

    def scan(self, slice_: int) -> Int64s:
        """Return the groups of a slice, by virtual node."""
        if self._by_slice is None:
            slots, slices, had = *self._scanned(), np.sort(self._had)
            order, counts = stable_partition(_places(slices, had), len(had))
            parts = np.split(slots[order], np.cumsum(counts)[:-1])
            self._by_slice = dict(zip(had.tolist(), parts, strict=True))
        return self._by_slice.get(slice_, _NO_SLOTS)

    def delete(self, slots: Int64s) -> None:
        """Drop single groups."""
        self.store.delete(slots)
        self._by_slice = None

    def close(self, slice_: int) -> None:
        """Forget a slice; delete the groups of closed ones if they are more than the others."""
        self.closed_groups += len(self.scan(slice_))
        self.open.remove(slice_)
        if self.closed_groups > max(SHARED_GROUPS, len(self.store) // 2):
            slots, slices = self._scanned()
            self.delete(slots[~np.isin(slices, list(self.open))])
            self.closed_groups = 0

    def _scanned(self) -> tuple[Int64s, Int64s]:
        """Return all groups, by virtual node, and their slices."""
        slots = self.store.scan()[0]
        return slots, self.store.records["#key"][slots, 0].view(np.int64)


class _KeptShared(NamedTuple):
    """A store and the slices that shared it, at a seal."""

    shared: _Shared
    open: frozenset[int]
    had: tuple[int, ...]
    closed_groups: int


@dataclass(frozen=True)
class SealedStore:
    """The groups of a store at a seal, read beside the loop.

    Attributes:
        records: of the groups; of use as long as they are.
        open: the slices that were open, int64 (n,), ascending; groups of others may be there, too.
        shared: whether the slice is the first column of the key, else there is one.
    """

    records: SealedRecords
    open: Int64s
    shared: bool

    def slices_of(self, records: npt.NDArray[Any]) -> Int64s:
        """Return the slices of copies of records, int64 (n,)."""
        if self.shared:
            slices: Int64s = records["#key"][:, 0].view(np.int64)
            return slices
        return np.full(len(records), self.open[0], np.int64)


class SliceStores:
    """The stores of one `GroupState`.

    Args:
        spare: an empty store, whose siblings they are; its keys are `keys_in_slices` if slices
            share stores.
        virtual_nodes: as in the plan.
        shares: whether they do.
    """

    def __init__(self, spare: KeyedStore, virtual_nodes: int, *, shares: bool) -> None:
        self._spare, self._virtual_nodes, self._shares = spare, virtual_nodes, shares
        self._of: dict[int, _Shared] = {}
        self._newest: _Shared | None = None
        self._empty: list[KeyedStore] = []  # of freed slices, to be used again
        self._opened_stores = 0
        self._epochs: Epochs[tuple[dict[int, _Shared], _Shared | None, list[_KeptShared]]]
        self._epochs = Epochs()
        self._node_bits = np.uint64(virtual_nodes.bit_length() - 1)

    def __len__(self) -> int:
        """Return the number of open slices."""
        return len(self._of)

    def __contains__(self, slice_: int) -> bool:
        """Whether a slice is open."""
        return slice_ in self._of

    @property
    def groups(self) -> int:
        """The number of groups of open slices."""
        return sum(len(one.store) - one.closed_groups for one in self._shared())

    def __iter__(self) -> Iterator[KeyedStore]:
        """Return an iterator over the stores."""
        return iter([one.store for one in self._shared()])

    @property
    def slices(self) -> tuple[int, ...]:
        """The open slices, in the order in which they were opened."""
        return tuple(self._of)

    def slots(self, slices: Int64s, hashes: Hashes, keys: Batch) -> Int64s:
        """Return the slot of each row's group; see `GroupState.slots`."""
        if not len(slices):
            return _NO_SLOTS
        begins = _begins(slices)
        if begins is None:
            order = np.argsort(slices, kind="stable")
            slots = np.empty(len(slices), np.int64)
            slots[order] = self.slots(slices[order], hashes[order], keys.take(order))
            return slots
        runs: list[tuple[_Shared, int]] = []  # a store, and the first of its rows
        for begin in begins:
            shared = self._opened(int(slices[begin]))
            if not runs or runs[-1][0] is not shared:
                runs.append((shared, begin))
        stops = [begin for _, begin in runs[1:]] + [len(slices)]
        parts = []
        for (shared, begin), stop in zip(runs, stops, strict=True):
            part = slice(begin, stop)
            known = self._known(slices[part], hashes[part], keys.slice(begin, stop))
            parts.append(shared.slots(*known))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def update(
        self, slices: Int64s, hashes: Hashes, keys: Batch, updates: Sequence[FieldUpdate]
    ) -> Int64s | None:
        """Return the slot of each row's group, see `KeyedStore.update`; None: of several slices."""
        if not len(slices) or (slices != slices[0]).any():
            return None
        shared = self._opened(int(slices[0]))
        return shared.update(*self._known(slices, hashes, keys), updates)

    def find(self, slice_: int, hashes: Hashes, keys: Batch) -> Int64s:
        """Return the slots of groups of one slice, -1 where there is none."""
        shared = self._of.get(slice_)
        if shared is None:
            return np.full(len(hashes), -1, np.int64)
        return shared.store.find(*self._known(np.full(len(hashes), slice_), hashes, keys))

    def places(self, slices: Int64s, hashes: Hashes) -> Int64s:
        """Return the group of each row as the index alone tells, by passes over the indexes.

        It is -1 where there is none, and seldom another one: int64 (n,).
        """
        found = np.full(len(slices), -1, np.int64)
        for store, rows in self._rows_by_store(slices):
            known = store.places_in_passes(self._known_hashes(hashes[rows], slices[rows]))
            if isinstance(rows, slice):  # all of them
                return known
            found[rows] = known
        return found

    def _rows_by_store(self, slices: Int64s) -> Iterator[tuple[KeyedStore, Int64s | slice]]:
        """Yield the stores of slices, and the rows of each; none of slices that are not open."""
        if len(slices) and (slices == slices[0]).all():
            distinct, numbers = slices[:1], None
        else:
            distinct, numbers = np.unique(slices, return_inverse=True)
        found = {slice_: self._of[slice_] for slice_ in distinct.tolist() if slice_ in self._of}
        for shared in {id(one): one for one in found.values()}.values():
            if numbers is None:
                yield shared.store, slice(None)
                continue
            is_in = np.array([found.get(slice_) is shared for slice_ in distinct.tolist()])
            yield shared.store, np.flatnonzero(is_in[numbers])

    def confirm(self, places: Int64s, slices: Int64s, hashes: Hashes, keys: Batch) -> None:
        """Let those places be -1 whose record is not that of the row's group."""
        self._spare.confirm(places, *self._known(slices, hashes, keys))

    def scan(self, slice_: int, nodes: Int64s | None) -> Int64s:
        """Return the slots of a slice, which may not be open; only those of some virtual nodes."""
        shared = self._of.get(slice_)
        if shared is None:
            return _NO_SLOTS
        if not self._shares:
            return shared.store.scan(nodes)[0]
        slots = shared.scan(slice_)
        if nodes is None:
            return slots
        found = virtual_node_of(shared.store.records["#hash"][slots], self._virtual_nodes)
        return slots[np.isin(found, nodes)]

    def owners(self, slots: Int64s) -> Iterator[tuple[KeyedStore, Int64s | slice]]:
        """Yield the stores of groups, and which of the slots are in each."""
        stores = list(self)
        if len(stores) == 1:
            yield stores[0], slice(None)
            return
        chunks = [store.first_records for store in stores]
        firsts = np.array([first for known in chunks for first in known], np.int64)
        order = np.argsort(firsts)
        numbers = np.repeat(np.arange(len(stores)), [len(known) for known in chunks])[order]
        owners = numbers[np.searchsorted(firsts[order], slots, side="right") - 1]
        for number in np.unique(owners).tolist():
            yield stores[number], np.flatnonzero(owners == number)

    def free(self, slice_: int) -> None:
        """Forget an open slice, and give back its memory, or that of all which share its store."""
        shared = self._of.pop(slice_)
        if shared.open != {slice_}:
            shared.close(slice_)
            return
        shared.store.clear()
        self._empty.append(shared.store)
        if shared is self._newest:
            self._newest = None

    def delete(self, slots: Int64s) -> None:
        """Drop single groups."""
        for shared in self._of.values():
            shared.delete(slots)

    # -- epochs -------------------------------------------------------------------------------

    def has_seal(self, epoch: int) -> bool:
        """Return whether there is a seal of an epoch."""
        return epoch in self._epochs

    def seal(self, epoch: int) -> None:
        """Let the groups as they are now be some to go back to: O(slices); raise ValueError."""
        kept = [one.kept() for one in self._shared()]
        self._epochs.add(epoch, (dict(self._of), self._newest, kept))
        for store in self._all():
            store.seal(epoch)

    def sealed(self, epoch: int) -> Mapping[int, SealedStore]:
        """Return what another thread may read of the last seal, which is of this epoch.

        Each store has a number that no other has had.
        """
        return {
            one.number: SealedStore(
                one.store.sealed(epoch), np.array(sorted(one.open), np.int64), self._shares
            )
            for one in self._shared()
        }

    def roll_back(self, epoch: int) -> None:
        """Go back to a seal; slices that were opened since are gone, freed ones are open again."""
        of, self._newest, kept = self._epochs.back_to(epoch)
        stores = self._all()
        for store in stores:
            if store.has_seal(epoch):
                store.roll_back(epoch)
            else:
                store.drop()
        for one in kept:
            one.shared.go_back(one)
        in_use = {id(one.shared.store) for one in kept}
        self._of = dict(of)
        self._empty = [store for store in stores if id(store) not in in_use]

    def release(self, epoch: int) -> None:
        """Give up going back before a seal; raise ValueError if there is none."""
        self._epochs.release(epoch)
        for store in self._all():
            if store.has_seal(epoch):
                store.release(epoch)

    def drop(self) -> None:
        """Drop all groups and all seals, and give their memory back."""
        stores = self._all()
        for store in stores:
            store.drop()
        self._epochs = Epochs()
        self._of, self._newest, self._empty = {}, None, stores

    def note(self, slices: Int64s, slots: Int64s) -> None:
        """Note that these groups are about to be written to, see `KeyedStore.note`."""
        for slice_ in np.unique(slices).tolist():
            self._of[slice_].store.note(slots[slices == slice_])

    def _shared(self) -> list[_Shared]:
        return list({id(one): one for one in self._of.values()}.values())

    def _all(self) -> list[KeyedStore]:
        return [*(one.store for one in self._shared()), *self._empty]

    def _known(self, slices: Int64s, hashes: Hashes, keys: Batch) -> tuple[Hashes, Batch]:
        """Return hashes and keys as the stores know them."""
        if not self._shares:
            return hashes, keys
        schema = self._spare.layout.keys
        of_slices = Column(schema.fields[0].type, slices)
        columns = [of_slices, *(keys.column(name) for name in schema.names[1:])]
        return self._known_hashes(hashes, slices), Batch(schema, columns, len(slices))

    def _known_hashes(self, hashes: Hashes, slices: Int64s) -> Hashes:
        if not self._shares:
            return hashes
        found: Hashes = _hashes_in_slices(hashes, slices, self._node_bits)
        return found

    def _opened(self, slice_: int) -> _Shared:
        shared = self._of.get(slice_)
        if shared is None:
            newest = self._newest
            if self._shares and newest is not None and newest.takes_slices:
                shared = newest
            else:
                store = self._empty.pop() if self._empty else self._spare.sibling()
                self._opened_stores += 1
                shared = self._newest = _Shared(store, self._opened_stores)
            shared.take(slice_)
            self._of[slice_] = shared
        return shared


def _places(slices: Int64s, had: Int64s) -> Int64s:
    """Return the place of each slice among those that a store had, which ascend: all are there."""
    span = int(had[-1]) - int(had[0]) + 1
    if span > _SPAN_MAX:
        return np.searchsorted(had, slices)
    place_of = np.zeros(span, np.int64)
    place_of[had - had[0]] = np.arange(len(had))
    places: Int64s = place_of[slices - had[0]]
    return places


def scan_together(
    scan: Callable[[int, Int64s | None], Int64s], slices: Sequence[int], nodes: Int64s | None = None
) -> Iterator[tuple[Int64s, Int64s]]:
    """Yield the slices and slots of all groups of slices, those of small slices together.

    Args:
        scan: returns the slots of a slice's groups of some virtual nodes, see `SliceStores.scan`.
        slices: numbers of slices.
        nodes: the virtual nodes; None is all.
    """
    of, slots, rows = list[Int64s](), list[Int64s](), 0
    for slice_ in slices:
        slots.append(scan(slice_, nodes))
        of.append(np.full(len(slots[-1]), slice_, np.int64))
        rows += len(slots[-1])
        if rows >= _TOGETHER_ROWS:
            yield np.concatenate(of), np.concatenate(slots)
            of, slots, rows = [], [], 0
    if rows:
        yield np.concatenate(of), np.concatenate(slots)


def _begins(slices: Int64s) -> list[int] | None:
    """Return where each run of rows of one slice begins; None if slices do not ascend."""
    if (slices == slices[0]).all():
        return [0]
    if (slices[1:] < slices[:-1]).any():
        return None
    return [0, *(np.flatnonzero(slices[1:] != slices[:-1]) + 1).tolist()]


@njit(cache=True, nogil=True)
def _hashes_in_slices(hashes: Any, slices: Any, node_bits: Any) -> Any:
    """Return hashes of (slice, key), which keep the bits that tell the key's virtual node."""
    found = np.empty(len(hashes), np.uint64)
    rest = np.uint64(0xFFFFFFFFFFFFFFFF) >> node_bits
    for row in range(len(hashes)):
        mixed = hashes[row] + np.uint64(slices[row]) * _GOLDEN
        mixed = (mixed ^ (mixed >> np.uint64(32))) * _MIXER
        mixed ^= mixed >> np.uint64(29)
        found[row] = (hashes[row] & ~rest) | (mixed & rest)
    return found
