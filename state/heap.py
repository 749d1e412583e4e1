"""The values of variable size of a store: chunks of bytes in its log, to which records refer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..configs.errors import InputError
from ..transport.wire.column import Column
from ..transport.wire.types import DataType
from . import index, values
from .log import CHUNK_BYTES_MAX, Chunk, ChunkLog
from .records import (
    LENGTH_BITS,
    VALUE_BYTES_MAX,
    RecordLayout,
    column_of_references,
    text_words,
)
from .segments import Extent

Slots = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

_COMPACTED_FROM_BYTES = 1 << 20
"""Values are compacted when more than half of the heap, and so much, is of no use."""


class ValueHeap:
    """The part of a `KeyedStore` that keeps text and binary values."""

    layout: RecordLayout
    records: npt.NDArray[Any]
    _log: ChunkLog
    _bytes: memoryview
    _place: npt.NDArray[np.int64]
    _at: npt.NDArray[np.int64]
    _extents: list[Extent]
    _heap: list[tuple[int, Chunk]]
    _seals: list[tuple[int, int]]
    _next_heap_bytes: int

    def __len__(self) -> int:
        """Return the number of keys."""
        return int(self._at[index.LIVE])

    def write_values(self, name: str, slots: Slots, column: Column) -> None:
        """Write text or binary values into a `heap` field.

        Args:
            name: the field.
            slots: records of the tail, int64 (n,).
            column: text or binary, n rows; nulls take the value away.

        Raises:
            StateFullError: the worker's memory for state is used up.
            InputError: a value is longer than 16 MiB.
        """
        slots = np.ascontiguousarray(slots, np.int64)
        layout, words = self.layout, text_words(name, column).view(np.int64)
        valid = column.validity
        if valid is None:
            valid = np.ones(len(column), np.bool_)

        def go_on(row: int) -> int:
            field = (layout.word(name), layout.word("#set"), layout.bits[name])
            return values.write_values(self._place, self._at, *field, words, valid, slots, row)

        self._run(go_on, len(slots), None)

    def put_bytes(self, value: bytes) -> int:
        """Put one value into the heap and return the reference to it, for a record of the tail.

        Raises:
            StateFullError: the worker's memory for state is used up.
            InputError: the value is longer than 16 MiB.
        """
        size = len(value)
        if size > VALUE_BYTES_MAX:
            msg = f"a value of {size:,} bytes; at most {VALUE_BYTES_MAX:,} fit"
            raise InputError(msg)
        at = self._at
        if at[index.HEAP_NEXT] + size > at[index.HEAP_STOP]:
            self._open_heap(size)
        start = int(at[index.HEAP_NEXT])
        self._bytes[start : start + size] = value
        at[index.HEAP_NEXT] = start + (size + 7 & ~7)
        return start << LENGTH_BITS | size

    def get_bytes(self, reference: int) -> bytes:
        """Return the value that a reference points to."""
        start = reference >> LENGTH_BITS
        return bytes(self._bytes[start : start + (reference & VALUE_BYTES_MAX)])

    def discard_bytes(self, reference: int) -> None:
        """Tell that no record has this reference any more."""
        self._at[index.GARBAGE] += (reference & VALUE_BYTES_MAX) + 7 & ~7

    def values(self, name: str, slots: Slots, kind: DataType) -> Column:
        """Return the values of a `heap` field as a column of `kind`, null where there is none."""
        records = self.records
        bit = np.uint64(self.layout.bits[name])
        valid = (records["#set"][slots] >> bit) & np.uint64(1) == 1
        return column_of_references(kind, records[name][slots], valid, self._log.memory)

    def _open_heap(self, nbytes: int) -> None:
        if self._compact_heap(nbytes):
            return
        self._take_heap(max(nbytes, self._next_heap_bytes))
        self._next_heap_bytes = min(2 * self._next_heap_bytes, CHUNK_BYTES_MAX)

    def _take_heap(self, nbytes: int) -> None:
        segment = int(self._at[index.SEGMENT])
        chunk = self._log.take(nbytes, segment, len(self))
        self._heap.append((segment, chunk))
        self._at[index.HEAP_NEXT], self._at[index.HEAP_STOP] = chunk.start, chunk.stop

    def _compact_heap(self, nbytes: int) -> bool:
        """Move the values that are in use together, if most are not; return whether it did."""
        garbage = int(self._at[index.GARBAGE])
        total = sum(chunk.size for _, chunk in self._heap)
        if self._seals or garbage < _COMPACTED_FROM_BYTES or 2 * garbage < total:
            return False
        old, self._heap = self._heap, []
        self._take_heap(total - garbage + nbytes)
        self._extents[-1].stop = int(self._at[index.NEXT])
        for extent in self._extents:
            values.move_values(
                self._place, self._at, self.layout.heap_words, extent.first, extent.stop
            )
        for _, chunk in old:
            self._log.free(chunk)
        self._at[index.GARBAGE] = 0
        return True

    def _run(self, go_on: Callable[[int], int], rows: int, hashes: Hashes | None) -> None:
        raise NotImplementedError
