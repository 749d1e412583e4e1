"""What a store does at epochs: it is sealed, gives up older seals, and goes back to one.

See `store` for what an image is, and a segment.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import history, index, values
from .heap import ValueHeap
from .images import RecordImages
from .index_table import IndexTable
from .log import ChunkLog
from .records import RecordLayout
from .sealed_records import SealedRecords, is_alive
from .segments import Cleared, ReachedRecords, RecordChunks, ranges_of

__all__ = ["StoreEpochs"]

Slots = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Seal:
    """Where the store stood at a seal, and the seal before."""

    epoch: int
    segment: int
    at: npt.NDArray[np.int64]
    mark: ReachedRecords
    before: ReachedRecords


class StoreEpochs(ABC):
    """The seals of a `KeyedStore`, which has everything else."""

    layout: RecordLayout
    records: npt.NDArray[Any]
    heap: ValueHeap
    _log: ChunkLog
    _place: npt.NDArray[np.int64]
    _at: npt.NDArray[np.int64]
    _chunks: RecordChunks
    _images: RecordImages
    _table: IndexTable
    _seals: list[_Seal]
    _cleared: list[Cleared]
    _born: int
    """The segment in which it was empty last."""

    @abstractmethod
    def clear(self) -> None:
        """Delete all keys; what a seal needs is put aside."""

    def seal(self, epoch: int) -> None:
        """Let the state as it is now be one to go back to. O(1).

        Raises:
            ValueError: `epoch` is not greater than that of the last seal.
        """
        if self._seals and epoch <= self._seals[-1].epoch:
            msg = f"epoch {epoch} after epoch {self._seals[-1].epoch}"
            raise ValueError(msg)
        self._images.close_chunk()
        segment = int(self._at[index.SEGMENT])
        before = self._seals[-1].mark if self._seals else ReachedRecords(0, 0)
        if not self._seals or self._born == segment:
            before = ReachedRecords(0, 0)
        self._seals.append(_Seal(epoch, segment, self._at.copy(), self._chunks.mark, before))
        self._at[index.SEGMENT] += 1

    def sealed(self, epoch: int) -> SealedRecords:
        """Return what another thread may read of the last seal, which is of this epoch."""
        seal = self._seal_of(epoch)
        assert seal is self._seals[-1]
        return SealedRecords(
            self.layout,
            self._log.memory,
            seal.segment,
            self._chunks.extents,
            seal.mark,
            seal.before,
            self._images,
            self._place,
        )

    @property
    def is_sealed(self) -> bool:
        """Whether there is a seal, so that records leave images when they change."""
        return bool(self._seals)

    def has_seal(self, epoch: int) -> bool:
        """Return whether the store can go back to an epoch."""
        return any(seal.epoch == epoch for seal in self._seals)

    def roll_back(self, epoch: int) -> Slots:
        """Go back to the state of `seal(epoch)`: put the images back that were kept since.

        It takes time for these alone.

        Returns: the records that have changed thereby and have a key, int64 (n,).

        Raises:
            ValueError: there is no such seal, or it was released.
        """
        seal = self._seal_of(epoch)
        while self._cleared and self._cleared[-1].segment >= seal.segment:
            self._restore(self._cleared.pop())
        changed = self._put_back(seal)
        self._seals = [one for one in self._seals if one.epoch <= epoch]
        return changed

    def release(self, epoch: int) -> None:
        """Give up going back before `seal(epoch)`, and the memory that only that needed.

        Raises:
            ValueError: there is no such seal, or it was released.
        """
        segment = self._seal_of(epoch).segment
        self._seals = [seal for seal in self._seals if seal.segment >= segment]
        kept = []
        for cleared in self._cleared:
            cleared.images.release(segment)
            if cleared.segment < segment:
                self._release_cleared([cleared])
            else:
                kept.append(cleared)
        self._cleared = kept
        self._images.release(segment)
        self.heap.release(segment)

    def drop(self) -> None:
        """Delete all keys, give up all seals, and give the memory back: `clear` for good."""
        self._release_cleared(self._cleared)
        self._seals, self._cleared = [], []
        self.clear()

    def _seal_of(self, epoch: int) -> _Seal:
        for seal in self._seals:
            if seal.epoch == epoch:
                return seal
        msg = f"no seal of epoch {epoch}; there are {[seal.epoch for seal in self._seals]}"
        raise ValueError(msg)

    def _put_back(self, seal: _Seal) -> Slots:
        """Let records and index be what they were at a seal, and free what came behind it."""
        now = self._chunks.mark
        new = ranges_of(self._chunks.extents, now, seal.mark)
        known = (self._place, self._at, self._table.buckets, self._table.ranks)
        chunks = self._images.of(seal.segment)
        changed = np.unique(self._images.numbers(chunks))
        for first, stop in new:
            history.forget_new(*known, first, stop)
        history.forget_keys(*known, changed)
        for one in reversed(chunks):
            begin = self._log.address + one[1].start
            history.put_back(self._place, begin, self._images.count([one]))
        for first, stop in new:
            history.empty(self._place, first, stop)
        entered = history.enter_keys(*known, changed)
        if entered < len(changed):
            self._table.finish()
            known = (self._place, self._at, self._table.buckets, self._table.ranks)
            history.enter_keys(*known, changed[entered:])
        changed = changed[is_alive(self.records[["#link"]][changed])]
        self._chunks.cut(seal.mark)
        self._images.cut(seal.segment)
        self._restore_words(seal)
        return changed

    def _restore_words(self, seal: _Seal) -> None:
        """Let the words of `at` be what they were, beside those of the index' table."""
        kept = list(index.TABLE_WORDS)
        table = self._at[kept]
        self._at[:] = seal.at
        self._at[kept] = table
        self._at[index.SEGMENT] = seal.segment + 1
        self._at[index.IMAGE_NEXT] = self._at[index.IMAGE_STOP] = 0
        if self.heap.cut(seal.segment):
            self.heap.count_garbage(self._living_bytes())

    def _living_bytes(self) -> int:
        """Return what the values to which records refer take in the heap."""
        references = self.layout.heap_words
        return sum(
            values.living_bytes(self._place, references, extent.first, extent.stop)
            for extent in self._chunks
        )

    def _put_aside(self) -> None:
        """Let the store be without chunks; a roll back takes them again."""
        self._table.finish()
        mark = self._chunks.mark
        if mark.chunks:
            self._chunks.extents[-1].stop = mark.stop
        at = self._at.copy()
        self._cleared.append(
            Cleared(
                self._seals[-1].segment,
                self._table.buckets,
                self._table.ranks,
                at,
                self._chunks.put_aside(),
                self.heap.put_aside(),
                self._images,
            )
        )
        self._images = RecordImages(self._log, self._at, self.layout.dtype.itemsize)

    def _free_all(self) -> None:
        self._chunks.free()
        self.heap.free()
        self._images.cut(0)
        self._table.give_back()

    def _release_cleared(self, given_up: list[Cleared]) -> None:
        for cleared in given_up:
            for chunk in cleared.chunks:
                self._log.free(chunk)
            cleared.images.release(int(self._at[index.SEGMENT]))
            self._log.give_back_words(cleared.buckets)

    def _restore(self, cleared: Cleared) -> None:
        self._free_all()
        self._table.take_back(cleared.buckets, cleared.ranks)
        self._chunks.take_back(cleared.extents)
        self.heap.take_back(cleared.heap)
        self._images = cleared.images
        self._at[:] = cleared.at
        self._born = 0
