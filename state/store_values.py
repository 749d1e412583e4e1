"""Text and binary values that the records of a store refer to: written, compared and read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..transport.wire.column import Column
from ..transport.wire.types import DataType
from . import values
from .records import text_words
from .store_epochs import StoreEpochs

__all__ = ["StoreValues"]

Slots = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]


class StoreValues(StoreEpochs):
    """The values in the `heap` fields of a `KeyedStore`, which has everything else."""

    @abstractmethod
    def _run(
        self, go_on: Callable[[int], int], rows: int, hashes: Hashes | None, row: int = 0
    ) -> None:
        """Call a kernel until it has done all rows, from one on."""

    def write_values(
        self, name: str, slots: Slots, column: Column, rows: Slots | None = None
    ) -> None:
        """Write text or binary values into a `heap` field.

        Args:
            name: the field.
            slots: records of the tail, int64 (n,).
            column: text or binary; nulls take the value away.
            rows: which of its rows, int64 (n,); None for all n.

        Raises:
            StateFullError: the worker's memory for state is used up.
            InputError: a value is longer than 16 MiB.
        """
        slots = np.ascontiguousarray(slots, np.int64)
        words, valid = _words_and_validity(name, column, rows)
        field = self._heap_field(name)

        def go_on(row: int) -> int:
            return values.write_values(self._place, self._at, *field, words, valid, slots, row)

        self._run(go_on, len(slots), None)

    def pick_values(
        self, name: str, slots: Slots, column: Column, rows: Slots, *, greatest: bool, later: bool
    ) -> npt.NDArray[np.bool_]:
        """Write those values into a `heap` field that exceed what is there, or are less.

        Values are compared byte by byte, as text is by its code points.

        Args:
            name: the field.
            slots: records of the tail, int64 (n,); any of them more than once.
            column: text or binary; nulls are left out.
            rows: which of its rows, int64 (n,).
            greatest: whether the greatest value is kept, not the least.
            later: whether of equal values the later row counts as picked, not the earlier.

        Returns:
            which rows were picked when their turn came, bool (n,).

        Raises:
            StateFullError: the worker's memory for state is used up.
            InputError: a value is longer than 16 MiB.
        """
        slots = np.ascontiguousarray(slots, np.int64)
        words, valid = _words_and_validity(name, column, rows)
        picked = np.zeros(len(slots), np.bool_)
        known = (self._place, self._at, *self._heap_field(name), words, valid, slots)

        def go_on(row: int) -> int:
            return values.pick_values(*known, greatest, later, picked, row)

        self._run(go_on, len(slots), None)
        return picked

    def _heap_field(self, name: str) -> tuple[int, int, int]:
        """Return where a field is, and its bit among those of nullable fields."""
        layout = self.layout
        return layout.word(name), layout.word("#set"), layout.bits[name]

    def replace_value(self, reference: int, value: bytes) -> int:
        """Put a value into the heap and return the reference to it, for a record of the tail.

        Args:
            reference: what the record has had until now, 0 if nothing.
            value: its bytes.

        Raises:
            StateFullError: the worker's memory for state is used up.
            InputError: the value is longer than 16 MiB.
        """
        replaced = self.heap.put(value, reference)
        if replaced < 0:
            self._make_room(len(value))
            replaced = self.heap.put(value, reference)
        return replaced

    def values(self, name: str, slots: Slots, kind: DataType) -> Column:
        """Return the values of a `heap` field as a column of `kind`, null where there is none."""
        fields = {one: self.records[one][slots] for one in ("#set", name)}
        return self.layout.value_column(name, kind, fields, self._log.memory)

    def _make_room(self, nbytes: int) -> None:
        """Make room for a value: compact the heap, or let it grow."""
        if self.heap.is_mostly_garbage:
            living = self._living_bytes()
            self.heap.compact(living, nbytes, self._move_values, retires=bool(self._seals))
        else:
            self.heap.open_chunk(nbytes)

    def _move_values(self) -> None:
        for extent in self._chunks:
            values.move_values(
                self._place, self._at, self.layout.heap_words, extent.first, extent.stop
            )


def _words_and_validity(
    name: str, column: Column, rows: Slots | None
) -> tuple[Slots, npt.NDArray[np.bool_]]:
    """Return address and length of values, int64 (n, 2), and which are not null, bool (n,)."""
    words, valid = text_words(name, column).view(np.int64), column.validity
    if valid is None:
        valid = np.ones(len(column), np.bool_)
    return (words, valid) if rows is None else (words[rows], valid[rows])
