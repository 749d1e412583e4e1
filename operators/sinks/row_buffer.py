"""Buffers rows in memory; packs many small batches into few large ones, and keeps large ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_SMALL_BATCHES = 256
_LARGE_BYTES = 1 << 16


class RowBuffer:
    """A buffer of record batches of one schema; every 256 are packed into one.

    A record batch has an overhead of about a KiB, which dominates for a single row. From 64 KiB on
    a copy would cost more than it saves.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._small: list[pa.RecordBatch] = []
        self._packed: list[pa.Table] = []  # and large ones between them
        self.rows = 0
        self.nbytes = 0

    def add(self, record: pa.RecordBatch) -> None:
        """Keep a batch, which must own its memory."""
        import pyarrow as pa

        nbytes = record.nbytes
        self.rows += record.num_rows
        self.nbytes += nbytes
        if nbytes >= _LARGE_BYTES:
            self._pack()
            self._packed.append(pa.Table.from_batches([record], self._schema))
            return
        self._small.append(record)
        if len(self._small) >= _SMALL_BATCHES:
            self._pack()

    def take(self) -> pa.Table:
        """Return all rows and clear the buffer."""
        table = self.table()
        self._packed, self._small = [], []
        self.rows = self.nbytes = 0
        return table

    def table(self) -> pa.Table:
        """Return all rows, and keep them; changes nothing, so that a call may end at any point."""
        import pyarrow as pa

        return pa.concat_tables([*self._packed, self._unpacked()])

    def _pack(self) -> None:
        if self._small:
            self._packed.append(self._unpacked())
            self._small = []

    def _unpacked(self) -> pa.Table:
        import pyarrow as pa

        return pa.Table.from_batches(self._small, self._schema).combine_chunks()
