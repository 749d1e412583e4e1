"""A block: the columns of a batch one after another in one piece of memory.

A data message's body and every batch that the library makes have this layout (the diagram is in
`kernels`), so copying, filtering, concatenating and sending are one loop each, and a column that is
not used costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...configs.errors import InputError
from . import kernels, piece_kernels
from .column import Column, trusted_column
from .types import DataType

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[Any]
    Table = npt.NDArray[np.int64]

_INT32 = np.dtype(np.int32)
_INT64 = np.dtype(np.int64)
_BOOL = np.dtype(np.bool_)
_BYTES = np.dtype(np.uint8)


class Block:
    """Columns in one piece of read-only memory.

    Attributes:
        memory: uint8 (bytes,); every view of a column has it as its numpy base.
        layout: int64 (columns, 4) as in `kernels`; the hidden event times, if any, come last.
        received: whether the memory belongs to a ring, which cannot advance while it is in use.
    """

    __slots__ = ("layout", "memory", "received")

    def __init__(self, memory: Array, layout: Table, received: bool) -> None:
        self.memory = memory
        self.layout = layout
        self.received = received

    def column(self, index: int, type: DataType, start: int, rows: int) -> Column:
        """Return views of one column's rows from `start` on."""
        data, offsets, validity, size = self.layout[index].tolist()
        valid = None if validity < 0 else self._view(validity + start, rows, _BOOL)
        if offsets < 0:
            storage = type.storage
            values = self._view(data + start * storage.itemsize, rows, storage)
            return trusted_column(type, values, None, valid)
        ends = self._view(offsets + 4 * start, rows + 1, _INT32)
        return trusted_column(type, self.memory[data : data + size], ends, valid)

    def times(self, start: int, rows: int) -> npt.NDArray[np.int64]:
        """Return a view of the event times, the block's last column."""
        return self._view(int(self.layout[-1, kernels.DATA]) + 8 * start, rows, _INT64)

    def sources(self, widths: Table, start: int, rows: int) -> Table:
        """Return the kernels' table of some rows: int64 (1, columns, 5)."""
        table = np.empty((1, self.layout.shape[0], kernels.SOURCE_ENTRIES), _INT64)
        kernels.block_source(self.memory, self.layout, widths, start, rows, table[0])
        return table

    def _view(self, position: int, count: int, dtype: np.dtype[Any]) -> Array:
        return self.memory[position : position + count * dtype.itemsize].view(dtype)


def address_of(array: Array) -> int:
    """Return the address of a contiguous array."""
    memory = array.view(_BYTES)  # one type: the kernel is compiled once
    return int(kernels.address(memory if memory.ndim == 1 else memory.reshape(-1)))


def column_sources(columns: list[Column], times: npt.NDArray[np.int64] | None) -> Table:
    """Return the kernels' table of columns and event times: int64 (1, columns [+ 1], 5)."""
    table = []
    for column in columns:
        offsets = 0 if column.offsets is None else address_of(column.offsets)
        validity = 0 if column.validity is None else address_of(column.validity)
        width = -1 if column.type.family == "bool" else column.type.width
        table.append((address_of(column.data), offsets, validity, width, len(column)))
    if times is not None:
        table.append((address_of(times), 0, 0, 8, times.size))
    return np.array(table, _INT64).reshape(1, len(table), kernels.SOURCE_ENTRIES)


def event_times(times: npt.NDArray[np.int64], rows: int) -> npt.NDArray[np.int64]:
    """Return the hidden event times of a batch, read-only and contiguous; raise InputError."""
    if times.dtype != np.int64 or times.shape != (rows,):
        msg = f"event times must be int64 ({rows},), not {times.dtype} {times.shape}"
        raise InputError(msg)
    times = np.ascontiguousarray(times)
    times.flags.writeable = False
    return times


def concat_block(sources: Table, names: Sequence[str]) -> Block:
    """Return a private block of all pieces' rows, int64 (pieces, columns, 5)."""
    memory = np.empty(checked_size(kernels.concat_bytes(sources), names), _BYTES)
    layout = np.empty((sources.shape[1], kernels.LAYOUT_ENTRIES), _INT64)
    kernels.concat_rows(memory, 0, sources, layout)
    memory.flags.writeable = False
    return Block(memory, layout, received=False)


def gather_block(sources: Table, indices: npt.NDArray[np.int64], names: Sequence[str]) -> Block:
    """Return a private block of the first piece's rows at `indices`, int64 (m,) and contiguous."""
    chosen, count = address_of(indices), indices.size
    memory = np.empty(checked_size(kernels.gather_bytes(sources, chosen, count), names), _BYTES)
    layout = np.empty((sources.shape[1], kernels.LAYOUT_ENTRIES), _INT64)
    kernels.gather_rows(memory, 0, sources, chosen, count, layout)
    memory.flags.writeable = False
    return Block(memory, layout, received=False)


def gather_block_of_pieces(
    sources: Table, starts: Table, numbers: npt.NDArray[np.int64], names: Sequence[str]
) -> Block:
    """Return a private block of rows of several pieces.

    Args:
        sources: where the pieces' rows are, int64 (pieces, columns, 5).
        starts: the number of each piece's first row, then that of all rows, int64 (pieces + 1,).
        numbers: the rows, numbered over all pieces, int64 (m,).
        names: of the columns, for messages.

    Raises:
        InputError: a row does not exist, or a column would hold more than 2 GiB of text.
    """
    return block_of_located(sources, *locate(numbers, starts), names)


def locate(numbers: npt.NDArray[np.int64], starts: Table) -> tuple[Table, Table]:
    """Return the piece of each row, and its number there, int64 (m,) each; else as above."""
    pieces, rows = np.empty((2, numbers.size), _INT64)
    if not piece_kernels.locate_rows(numbers, starts, pieces, rows):
        checked_size(kernels.BAD_INDEX)
    return pieces, rows


def block_of_located(sources: Table, pieces: Table, rows: Table, names: Sequence[str]) -> Block:
    """Return a private block of rows that `locate` has found; else as above."""
    size = checked_size(piece_kernels.gather_piece_bytes(sources, pieces, rows), names)
    memory = np.empty(size, _BYTES)
    layout = np.empty((sources.shape[1], kernels.LAYOUT_ENTRIES), _INT64)
    piece_kernels.gather_piece_rows(memory, sources, pieces, rows, layout)
    memory.flags.writeable = False
    return Block(memory, layout, received=False)


def checked_size(size: int, names: Sequence[str] = ()) -> int:
    """Return a kernel's size or end; raise InputError if it is one of the kernels' error codes."""
    if size >= 0:
        return size
    if size == kernels.NO_ROOM:
        msg = "the message does not fit into its buffer; reserve what message_size says"
        raise InputError(msg)
    if size == kernels.BAD_INDEX:
        msg = "an index is outside the batch's rows"
        raise InputError(msg)
    msg = (
        f"column {names[kernels.POOL_TOO_LARGE - size]!r} would hold more than 2 GiB of text in "
        f"one batch; make smaller batches"
    )
    raise InputError(msg)


def row_indices(indices: Any) -> npt.NDArray[np.int64]:
    """Return indices as int64 (m,), contiguous; refuse masks and fractions."""
    array = np.asarray(indices)
    if array.size == 0:
        return np.empty(0, _INT64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        msg = f"indices must be integers (m,), not {array.dtype} {array.shape}; masks go to filter"
        raise InputError(msg)
    return np.ascontiguousarray(array, _INT64)
