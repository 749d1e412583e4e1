"""KeyedStore: the state of one operator's keys on one worker: an index over a log of records.

A record stays where it is as long as its key is there. `seal` is O(1): from then on, a record that
changes for the first time leaves an image of itself in the log. So the images behind a seal say
what has changed since; to go back, `roll_back` puts them back, which takes time for them alone; and
a thread that writes a snapshot reads what was sealed beside the loop (`sealed_records`). What lies
between two seals is a *segment*. `release` frees the images that only older seals needed.

FASTER, and Slash, section 4.6.2.1, copy the record to the log's tail instead, and leave the old one
behind. Here numbers of records stand in timers, lists and windows, so these had to follow; and with
keys that change at random, chunks of old ones are never all dead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..transport.wire.batch import Batch
from . import field_updates, index, index_deletion, index_kernels, values
from .budget import StateBudget
from .field_updates import FieldUpdate
from .heap import ValueHeap
from .images import RecordImages
from .index_table import IndexTable
from .key_passes import KeyPasses
from .keys import virtual_node_of
from .log import ChunkLog
from .node_transfer import import_nodes
from .page_fetching import PageFetcher
from .records import PackedKeys, RecordLayout
from .segments import RecordChunks
from .store_values import StoreValues

if TYPE_CHECKING:
    from .disk_traffic import DiskTraffic
    from .one_key import OneKey

__all__ = ["KeyedStore"]

Slots = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
Nulls = npt.NDArray[np.uint32]

_NO_NULLS = np.empty(0, np.uint32)


class KeyedStore(StoreValues):
    """The records of one operator's keys on one worker.

    Args:
        layout: key columns and fields.
        budget: the worker's memory for state.
        name: the operator's id, for messages.
        virtual_nodes: as in the plan.
        log: the memory of another store of the same layout, to share it; see `sibling`.

    Attributes:
        records: all records, structured as `layout.dtype`; `records["spent"][slots]` reads a
            field, and kernels take the array as it is. To be written to only as `slots` says.
        heap: the text and binary values to which records refer.

    Raises:
        ResourceError: the kernel does not reserve enough address space.
    """

    def __init__(
        self,
        layout: RecordLayout,
        budget: StateBudget,
        name: str,
        *,
        virtual_nodes: int = 1024,
        log: ChunkLog | None = None,
    ) -> None:
        self.layout = layout
        self._budget, self._name, self._virtual_nodes = budget, name, virtual_nodes
        self._log = ChunkLog(budget, name) if log is None else log
        size = layout.dtype.itemsize
        count = min(len(self._log.memory) // size, (1 << 32) - 2)
        self.records: npt.NDArray[Any] = self._log.memory[: count * size].view(layout.dtype)
        self._place = np.zeros(index.PLACE_WORDS, np.int64)
        self._place[index.BASE] = self._log.address
        self._place[index.STRIDE] = size
        self._place[index.FIXED] = layout.fixed_words
        self._place[index.TEXTS] = layout.texts
        self._place[index.TEMPLATE] = layout.template.ctypes.data
        self._place[index.FIELDS] = 8 * layout.fields_start
        self._place[index.NODE_BITS] = virtual_nodes.bit_length() - 1
        self._at = np.zeros(index.AT_WORDS, np.int64)
        self._at[index.SEGMENT] = 1
        self.heap = ValueHeap(self._log, self._at)
        self._chunks = RecordChunks(self._log, self._at, size, count, name)
        self._images = RecordImages(self._log, self._at, size)
        self._seals, self._cleared = [], []
        self._table = IndexTable(self._place, self._at, self._log)
        self._fetcher = PageFetcher(self._place, self._at, self._log, self._table)
        self._passes = KeyPasses(self._place, self._at, self._log, self._table, self._fetcher)
        self._start_empty()

    def sibling(self, layout: RecordLayout | None = None) -> KeyedStore:
        """Return an empty store, of the same layout or another, that shares this one's memory."""
        return KeyedStore(
            self.layout if layout is None else layout,
            self._budget,
            self._name,
            virtual_nodes=self._virtual_nodes,
            log=self._log,
        )

    # -- keys ---------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of keys."""
        return int(self._at[index.LIVE])

    @property
    def name(self) -> str:
        """The id of the operator whose state it is."""
        return self._name

    @property
    def memory(self) -> npt.NDArray[np.uint8]:
        """The log, uint8, in which references are positions."""
        return self._log.memory

    @property
    def place(self) -> npt.NDArray[np.int64]:
        """Where the records are, as compiled code takes it: see `index`."""
        return self._place

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the store takes: chunks and index."""
        now = self._chunks.nbytes + self.heap.nbytes + self._images.nbytes
        now += self._table.nbytes
        return now + sum(cleared.nbytes for cleared in self._cleared)

    def slots(self, hashes: Hashes, keys: Batch) -> Slots:
        """Return the record of each key, to be read and written; absent keys get a new one.

        Args:
            hashes: of the keys, by `hash_keys`, uint64 (n,).
            keys: a batch with the key columns, n rows.

        Returns:
            int64 (n,): record numbers, which hold until a key is deleted. They may be written to
            until the store is sealed; then `note` them again.

        Raises:
            StateFullError: the worker's memory for state is used up.
            InputError: a key column has another type than the layout.
        """
        packed = self.layout.pack(keys)
        return self._find_or_insert(hashes, packed.address, packed.nulls)

    def confirm(self, places: Slots, hashes: Hashes, keys: Batch) -> None:
        """Let those places be -1 whose record is not that of the row's key.

        Their pages are not fetched, see `passed`. Before a record is written to, `note` it.

        Args:
            places: records of this store, or of others of its log that have its layout, int64 (n,).
            hashes, keys: as for `slots`.
        """
        self._passes.confirm(hashes, self.layout.pack(keys), np.arange(len(hashes)), places)

    def update(self, hashes: Hashes, keys: Batch, updates: Sequence[FieldUpdate]) -> Slots:
        """Do what `slots` does, and update fields for each row; after an error, for some rows."""
        packed = self.layout.pack(keys)
        words = field_updates.words_of(self.layout, updates)
        return self._find_or_insert(hashes, packed.address, packed.nulls, words)

    def slots_of_words(self, hashes: Hashes, words: Hashes) -> Slots:
        """Return the records of keys as `slots` does; all key columns are 64-bit integers.

        Args:
            hashes: by `hash_words`, uint64 (n,).
            words: uint64 (n, key columns).
        """
        return self._find_or_insert(hashes, words.ctypes.data, _NO_NULLS)

    @cached_property
    def _one(self) -> OneKey:
        from .one_key import OneKey, OneTextKey  # they load machine code; only handles need it

        if self.layout.texts:
            return OneTextKey(self._place, self._at)
        return OneKey(self._place, self._at, self.layout.fixed_words)

    def find_one(self, *words: Any) -> int:
        """Return the record of one key as `find` does.

        All key columns are 64-bit integers; or one is an integer, and the other text, whose UTF-8
        is passed, or bytes.
        """
        return self._one.find(self._table.buckets, self._table.ranks, words)

    def slot_of_one(self, *words: Any) -> int:
        """Return the record of one key as `slots` does; else as `find_one`."""
        if self._table.is_growing:
            self._table.advance(1)
        slot = self._one.find_or_insert(self._table.buckets, self._table.ranks, words)
        if slot < 0:
            slot = int(self._find_or_insert(self._one.hashes, self._one.address, _NO_NULLS)[0])
        return slot

    def _find_or_insert(
        self,
        hashes: Hashes,
        address: int,
        nulls: Nulls,
        updates: Slots | None = None,
    ) -> Slots:
        slots = np.empty(len(hashes), np.int64)

        def go_on(row: int) -> int:
            table = self._table.buckets, self._table.ranks
            known = (self._place, self._at, *table, hashes[:stop], address, nulls, slots, row)
            if updates is None:
                return index.find_or_insert(*known)
            return field_updates.find_and_update(*known, updates)

        if self._table.is_growing:
            self._table.advance(len(hashes))
        stop = 0
        for start, stop in self._fetcher.fetched(hashes):
            self._run(go_on, stop, hashes, start)
        return slots

    def passes(self, hashes: Hashes, keys: Batch) -> Iterator[tuple[Slots, Slots]]:
        """Yield rows in pieces, int64 (n,) each, and the records of their keys, as `slots` does.

        In the order in which the records lie, so that a disk reads and writes each page once for
        all rows, whose pages are in memory until the next piece is asked for. Rows of one key keep
        their order. Meanwhile records may be changed, added and deleted.
        """
        packed = self.layout.pack(keys)
        for rows, slots in self._passes.over(hashes, packed):
            self._insert_lacking(slots, rows, hashes, packed)
            yield rows, slots

    def _insert_lacking(
        self, slots: Slots, rows: Slots, hashes: Hashes, packed: PackedKeys
    ) -> None:
        """Make records for the keys of rows whose slots are -1; note all of them."""
        lacking = np.flatnonzero(slots < 0)
        if len(lacking):
            new = rows[lacking]
            words = packed.words[new]
            nulls = packed.nulls[new] if len(packed.nulls) else _NO_NULLS
            slots[lacking] = self._find_or_insert(hashes[new], words.ctypes.data, nulls)
        self.note(slots)

    def find(self, hashes: Hashes, keys: Batch) -> Slots:
        """Return the record of each key, -1 where there is none: int64 (n,).

        Read it; before it is written to, `note` it.
        """
        packed = self.layout.pack(keys)
        return self._find(hashes, packed.address, packed.nulls)

    def find_words(self, hashes: Hashes, words: Hashes) -> Slots:
        """Return the records of keys as `find` does; arguments as for `slots_of_words`."""
        return self._find(hashes, words.ctypes.data, _NO_NULLS)

    def _find(self, hashes: Hashes, address: int, nulls: Nulls) -> Slots:
        slots = np.empty(len(hashes), np.int64)
        known = (self._place, self._at, self._table.buckets, self._table.ranks)
        index.find(*known, hashes, address, nulls, slots)
        return slots

    @property
    def spills(self) -> bool:
        """Whether any of its memory is on the disk."""
        return self._log.spills

    @property
    def traffic(self) -> DiskTraffic:
        """What rows that change records on the disk move there."""
        return self._log.traffic

    @property
    def has_room_for_keys(self) -> bool:
        """Whether its index may grow in memory, with all records on the disk."""
        return self._table.has_room_to_grow

    def growth_bytes(self, keys: int) -> int:
        """Return by how much its index and its records grow if so many keys are added, at most."""
        return self._table.growth_bytes(keys) + self._chunks.growth_bytes(keys)

    def set_aside(self, nbytes: int) -> bool:
        """Take memory for something else, for which records go to the disk.

        Returns: whether there is so much. `give_back` ends it.
        """
        return self._log.set_aside(nbytes)

    def give_back(self, nbytes: int) -> None:
        """Take memory back that was set aside."""
        self._budget.give_back(self._name, nbytes)

    def places(self, hashes: Hashes) -> Slots:
        """Return which record is that of each key as the index alone tells, for `in_order`.

        It is -1 where there is none, and seldom that of another key: int64 (n,).
        """
        return self._fetcher.places(hashes)

    def in_order(self, places: Slots) -> Iterator[Slots]:
        """Yield the rows of records in the order of these, where that saves reading from the disk.

        In pieces, whose pages are being read. Before a row is met, records may be added, no more.

        Args:
            places: records, int64 (n,); -1 for those that are not there yet, which come last. The
                array is overwritten.
        """
        return self._fetcher.in_order(places)

    def regions(self, places: Slots) -> Slots:
        """Return in which region of the log records lie, int64 (n,); -1 for those without a place.

        A region is small in comparison with the memory for state; see `passed`.
        """
        return self._fetcher.regions(places)

    def places_in_passes(self, hashes: Hashes) -> Slots:
        """Return what `places` does, by a pass over the index, which may be on the disk, too."""
        return self._passes.places(hashes)

    @property
    def first_records(self) -> list[int]:
        """The first record of each of its chunks: no other store of the log has one in them."""
        return [extent.first for extent in self._chunks.extents]

    @property
    def region_pages(self) -> int:
        """How many pages a region has."""
        return self._fetcher.region_pages

    def passed(self, regions: Iterable[int]) -> Iterator[int]:
        """Yield regions in their order, most records of which are about to be changed.

        The next one is being read from the disk, and the last one written, meanwhile.
        """
        return self._fetcher.passed(regions)

    def note(self, slots: Slots) -> None:
        """Note that these records are about to be written to; raise StateFullError.

        For those that `slots` did not return since the last seal.
        """
        if not self._seals:
            return
        slots = np.ascontiguousarray(slots, np.int64)

        def go_on(row: int) -> int:
            return index.keep_images(self._place, self._at, slots, row)

        self._run(go_on, len(slots), None)

    def delete(self, slots: Slots) -> None:
        """Delete the keys of these records; those that are deleted already are skipped."""
        slots = np.ascontiguousarray(slots, np.int64)

        def go_on(row: int) -> int:
            known = (self._place, self._at, self._table.buckets, self._table.ranks)
            return index_deletion.delete(*known, self.layout.heap_words, slots, row)

        self._run(go_on, len(slots), None)

    def initial(self, slots: Slots) -> Slots:
        """Return those of the records whose fields all have their initial values again."""
        slots = np.ascontiguousarray(slots, np.int64)
        found = np.empty(len(slots), np.int64)
        return found[: values.initial_ones(self._place, slots, found)]

    def keys_of(self, slots: Slots) -> Batch:
        """Return the key columns of records, (n) rows; -0.0 comes back as 0.0."""
        columns = self.layout.key_columns(self.records, slots, self._log.memory)
        return Batch(self.layout.keys, columns, len(slots))

    def scan(self, nodes: npt.NDArray[np.int64] | None = None) -> tuple[Slots, Hashes]:
        """Return all records, int64 (keys,), by virtual node, and their hashes.

        Args:
            nodes: only the keys of these virtual nodes, int64 (n,).
        """
        self._table.finish()
        slots = np.empty(int(self._at[index.USED]), np.int64)
        slots = slots[: index_kernels.scan(self._table.buckets, slots)]
        hashes = self.records["#hash"][slots]
        if nodes is not None:
            wanted = np.zeros(self._virtual_nodes, np.bool_)
            wanted[nodes] = True
            rows = wanted[virtual_node_of(hashes, self._virtual_nodes)]
            slots, hashes = slots[rows], hashes[rows]
        return slots, hashes

    def reserve(self, keys: int) -> None:
        """Make room in the index for more keys, which may come in the order of their hashes."""
        buckets = 1 << ((len(self) + keys) * 8 // 5).bit_length()
        if 8 * buckets > self._table.nbytes:
            self._table.replace(buckets)

    def clear(self) -> None:
        """Delete all keys and give the memory back to the kernel at once.

        What a seal needs is only put aside, until `release`. The index will grow to its size again
        in one step: stores of windows are used again and again.
        """
        self._table.usual_buckets = 1 << (len(self) * 8 // 5).bit_length()
        if self._seals and self._seals[-1].segment >= self._born:
            self._put_aside()
        else:
            self._free_all()
        self._start_empty()

    # -- virtual nodes ------------------------------------------------------------------------

    def import_nodes(self, batch: Batch) -> Slots:
        """Take what `export_slots` returned of another store; keys that are here are replaced.

        Fields that it did not have keep their initial values; its numbers may have been narrower.

        Returns: the record of each row, int64 (n,).

        Raises:
            StateFullError: the worker's memory for state is used up.
            InputError: the batch comes from another layout.
        """
        return import_nodes(self, batch)

    # -- memory -------------------------------------------------------------------------------

    def _start_empty(self) -> None:
        self._born = int(self._at[index.SEGMENT])
        self._at[:] = 0
        self._at[index.SEGMENT] = self._born
        self._chunks.put_aside()
        self.heap.put_aside()
        self._table.start_empty()

    def _run(
        self, go_on: Callable[[int], int], rows: int, hashes: Hashes | None, row: int = 0
    ) -> None:
        """Call a kernel until it has done all rows, from one on; provide what it stopped for."""
        while True:
            result = int(go_on(row))
            if result >= 0:
                assert result == rows
                return
            reason, row = divmod(-1 - result, index.ROWS_MAX)
            match reason:
                case index.CHUNK:
                    self._chunks.open_chunk()
                case index.HEAP:
                    self._make_room(int(self._at[index.NEED]))
                case index.IMAGE:
                    self._images.open_chunk()
                case index.GROW:
                    self._table.grow()
                case _:
                    assert hashes is not None
                    self._table.see_nodes(hashes[row:])
