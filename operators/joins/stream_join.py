"""What operators that join two streams have in common, whatever makes their rows meet."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from ...configs.errors import ExpressionError, InputError
from ...state.keys import hash_keys, virtual_node_of
from ...state.node_transfer import with_columns
from ...state.page_file import PageFile
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ..portions import EmitsInPortions
from ..process import CoProcess, InstanceContext, Output
from ..sealing import SealingByDump
from ..snapshots import StateChunk
from .join import LATE_LEFT, LATE_RIGHT, OUTPUTS
from .joined_rows import JoinedRows
from .row_queue import NONE, RowQueue
from .row_versions import Ranges, RowVersions, contents, is_contents, parts_of

if TYPE_CHECKING:
    from ...transport.wire.types import Schema
    from .equi_join import EquiJoin

__all__ = ["LEFT", "RIGHT", "QueuedJoin", "Spillable", "StreamJoin"]

LEFT, RIGHT = 0, 1

SPILLED_BYTES_MIN = (256 << 10, 16 << 10)
"""Each batch and array on the disk is a mapping of its own, of which a process has 65,530 at most.
So smaller ones go there only once there are no others."""

_SIDE = "#side"
"""In dumped rows: the side they belong to."""


class Spillable(Protocol):
    """A part of what is kept that may lie on the disk."""

    def next_to_spill(self, least_bytes: int) -> int:
        """Return the bytes of memory that `spill` frees; 0 if they are fewer than the least."""

    def spill(self, pages: PageFile) -> None:
        """Put so much on the disk; raise as `PageFile.back`."""


class StreamJoin(EmitsInPortions, CoProcess, SealingByDump):
    """Joins the rows of two streams, as an `EquiJoin` asks."""

    per_worker: ClassVar[bool] = True
    outputs: ClassVar[tuple[str, ...]] = OUTPUTS
    takes_late_rows: ClassVar[bool] = True
    late_outputs: ClassVar[tuple[str, ...]] = (LATE_LEFT, LATE_RIGHT)

    def __init__(self, join: EquiJoin) -> None:
        super().__init__()
        self._join = join
        self._keys = (join.left_keys, join.right_keys)
        self._schemas: list[Schema | None] = [join.left, join.right]
        self._seen = [False, False]
        self._made: JoinedRows | None = None
        self._taken_bytes = self._spilled_bytes = 0

    def open(self, context: InstanceContext) -> None:
        """Take the operator's name and its memory."""
        self._context = context
        self._pages = PageFile(context.operator_id, context.state_budget.disk_folder)
        self._watermark_ns = context.watermark_ns

    @property
    @abstractmethod
    def _kept_rows(self) -> int:
        """How many rows are kept, for messages."""

    def _learn(self, side: int, schema: Schema) -> None:
        """Take the columns of a side from its first rows.

        Raises:
            InputError: those of both sides cannot be joined.
        """
        if self._seen[side]:
            return
        self._seen[side], self._schemas[side] = True, schema
        left, right = self._schemas
        if left is None or right is None:
            return
        try:
            self._made = JoinedRows(self._join, left, right)
        except ExpressionError as error:
            msg = f"operator {self._context.operator_id!r}: {error}"
            raise InputError(msg) from None
        self.schema = self._made.schema

    def _results(self) -> JoinedRows:
        """Return what makes the rows; raise InputError if the columns of a side are not known."""
        if self._made is None:
            name = "left" if self._schemas[LEFT] is None else "right"
            msg = (
                f"operator {self._context.operator_id!r}: the columns of the {name} side are not"
                " known, and it has had no row: declare them, map(…, schema=…)"
            )
            raise InputError(msg)
        return self._made

    def _emit_late(self, side: int, rows: Batch, out: Output) -> None:
        """Emit rows of a side that come too late."""
        out.emit_to((LATE_LEFT, LATE_RIGHT)[side], rows)

    def _account(self, nbytes: int, spilled_bytes: int = 0) -> None:
        """Take memory for state, and room on the disk, or give them back.

        What is kept makes room for more on the disk.
        """
        budget, name = self._context.state_budget, self._context.operator_id
        if spilled_bytes > 0:
            budget.take_on_disk(name, spilled_bytes, self._kept_rows)
            self._spilled_bytes += spilled_bytes
        else:
            self._free_spilled(-spilled_bytes)
        budget.charge(name, nbytes, on_disk=False)
        self._taken_bytes += nbytes
        if nbytes > 0 and budget.free_bytes < 0:
            self._spill(0)
            budget.check(name, self._kept_rows)

    @abstractmethod
    def _spillable(self) -> Iterable[Spillable]:
        """Return what may lie on the disk, in the order in which it goes there."""

    def _spill(self, nbytes: int) -> None:
        """Put what is kept on the disk until so much memory is free, as far as there is room."""
        budget, name = self._context.state_budget, self._context.operator_id
        if nbytes <= budget.free_bytes or not budget.disk_bytes_max:
            return
        for least_bytes in SPILLED_BYTES_MIN:
            for part in self._spillable():
                while moved := part.next_to_spill(least_bytes):
                    if not budget.move_to_disk(name, moved):
                        return
                    self._taken_bytes -= moved
                    self._spilled_bytes += moved
                    part.spill(self._pages)
                    if nbytes <= budget.free_bytes:
                        return

    def _free_spilled(self, nbytes: int) -> None:
        """Give room on the disk back, of rows that were dropped."""
        if nbytes:
            self._context.state_budget.give_back(self._context.operator_id, nbytes, on_disk=True)
            self._spilled_bytes -= nbytes


class QueuedJoin(StreamJoin):
    """Keeps the rows of each side in a queue until they are no longer owned."""

    def __init__(self, join: EquiJoin) -> None:
        super().__init__(join)
        self._queues = [RowQueue(), RowQueue()]
        self._versions: tuple[RowVersions, RowVersions] | None = None

    @property
    def _kept_rows(self) -> int:
        return sum(queue.count for queue in self._queues)

    def _enqueue(self, side: int, rows: Batch, owners: npt.NDArray[np.int64]) -> None:
        """Add owned rows to the queue of a side; memory is made free for the queue's growth."""
        queue = self._queues[side]
        self._spill(queue.growth(rows.num_rows))
        queue.add(rows, owners)

    def _account_queues(self) -> None:
        """Take memory for the queues as they are now, or give some back."""
        self._account(
            sum(queue.nbytes for queue in self._queues) - self._taken_bytes,
            sum(queue.spilled_bytes for queue in self._queues) - self._spilled_bytes,
        )

    def _spillable(self) -> Iterable[Spillable]:
        logs, places = zip(*((queue.log, queue.places) for queue in self._queues), strict=True)
        return (*logs, *places)

    def _drop_queues(self) -> None:
        """Drop all rows."""
        self._versions = None
        self._queues = [RowQueue(), RowQueue()]
        self._free_spilled(self._spilled_bytes)
        self._account(-self._taken_bytes)

    def dump(self, nodes: npt.NDArray[np.int64]) -> Iterator[Batch]:
        """Return the rows of each side that are owned, marked with their side."""
        for side, queue in enumerate(self._queues):
            rows = queue.owned()
            if rows is None:
                continue
            hashes, _ = hash_keys(rows, self._keys[side])
            rows = rows.filter(np.isin(virtual_node_of(hashes, self._context.virtual_nodes), nodes))
            yield _with_side([rows], side)

    def chunks(self, epoch: int) -> Sequence[StateChunk]:
        """See `Sealing.chunks`: which rows are owned, then rows by when they came."""
        if self._versions is None:
            attempt = self._context.attempt
            self._versions = (RowVersions(f"left-{attempt}"), RowVersions(f"right-{attempt}"))
        parts, found = [], []
        for side, queue in enumerate(self._queues):
            owned = queue.owners[: queue.count] != NONE
            parts.append((side, queue.generation, queue.count, owned))
            counts = {queue.generation: queue.count} if owned.any() else {}
            rows_of = partial(self._rows_of, side)
            found += self._versions[side].chunks(epoch, counts, rows_of)
        return [StateChunk(contents(parts)), *found]

    def take(self, chunks: Sequence[StateChunk], *, whole: bool) -> None:
        """See `Sealing.take`; rows are numbered anew, so the next snapshot has all of them."""
        marks: dict[int, npt.NDArray[np.bool_]] = {}
        taken = [0, 0]
        for chunk in chunks:
            batch = chunk.rows
            if is_contents(batch):
                marks = {side: owned for (side, _), owned in parts_of(batch).items()}
            elif not marks:
                self.load(batch)
            else:
                side = int(batch.column(_SIDE).data[0])
                first = taken[side]
                taken[side] += batch.num_rows
                self.load(batch.filter(marks[side][first : taken[side]]))

    def _rows_of(self, side: int, ranges: Ranges) -> Callable[[], Batch]:
        """Return what makes a batch of some rows, whatever happens to them meanwhile."""
        (first, stop) = next(iter(ranges.values()))
        return partial(_with_side, list(self._queues[side].between(first, stop)), side)

    def load(self, batch: Batch) -> None:
        """See `CoProcess.load`; the memory for state may be used up: StateFullError."""
        if batch.num_rows:
            side, rows = int(batch.column(_SIDE).data[0]), batch.drop((_SIDE,))
            self._learn(side, rows.schema)
            self._load_side(side, rows)

    @abstractmethod
    def _load_side(self, side: int, rows: Batch) -> None:
        """Keep rows of one side that were dumped."""


def _with_side(batches: Sequence[Batch], side: int) -> Batch:
    """Return rows of one side as one batch that tells the side."""
    rows = Batch.concat(batches)
    marks = Column.of(np.full(rows.num_rows, side, np.int8))
    return with_columns(rows, {_SIDE: marks}).with_times(rows.times)
