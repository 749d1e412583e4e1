"""A table join as a worker runs it: rows of the stream pass through it, those of the table stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..operators.process import InstanceContext
from ..operators.snapshots import OperatorSnapshot, StateChunk
from ..plan.logical import TABLE
from ..state.watermarks import WATERMARK_END, WATERMARK_NONE
from ..transport.wire.batch import Batch
from .flow import Downstream
from .nodes import Node, RowsThroughLoop
from .predecessors import Predecessors

if TYPE_CHECKING:
    from ..operators.joins.broadcast_table import BroadcastTable


class TableJoinNode(Node):
    """Joins rows of the stream with `table`, which all instances of the worker share.

    `fills` says whether it is the one of them that hands the table its rows.

    Attributes:
        table: the table.
        output: what follows it.
        compiled: takes its rows first, if they can be compiled.
        when_ready: called once the table is complete, before the first row of the stream; by the
            instance that fills it, since the others find what that has compiled.
    """

    compiled: RowsThroughLoop | None = None
    when_ready: Callable[[], None] | None = None

    def __init__(
        self,
        context: InstanceContext,
        worker: int,
        table: BroadcastTable,
        output: Downstream,
        fills: bool,
    ) -> None:
        super().__init__(context, worker)
        self.table = table
        self.output = output
        self._fills = fills
        self._kept: tuple[int, Sequence[StateChunk]] | None = None

    @property
    def ready(self) -> bool:
        """Whether the table is complete, so that rows of the stream may come."""
        return self.table.loaded

    def take_beside(self, port: int, batch: Batch) -> None:
        """Take rows of the table, or changes to it."""
        if self._fills:
            with self.guard(batch):
                (self.table.add if port == TABLE else self.table.change)(batch)

    def end_beside(self, port: int) -> None:
        """Learn that no row of the table, or no change to it, follows."""
        if self._fills and port == TABLE:
            with self.guard():
                self.table.finish()
            self._tell_ready()

    def _tell_ready(self) -> None:
        if self.when_ready is not None:
            self.when_ready()

    def emit(self, batch: Batch) -> None:
        """Pass on what comes of the rows, piece by piece."""
        if self.compiled is not None and self.compiled.take(batch):
            return
        self.metrics.rows_in += batch.num_rows
        pieces = self.table.join(batch)
        while True:
            with self.guard(batch):
                piece = next(pieces, None)
            if piece is None:
                return
            self._columns = piece.schema
            if piece.num_rows:
                self.metrics.rows_out += piece.num_rows
                self.output.emit(piece)

    def advance(self, watermark_ns: int) -> None:
        """Pass a watermark on."""
        self.metrics.watermark_ns = watermark_ns
        self.output.advance(watermark_ns)

    def set_idle(self, idle: bool) -> None:
        """Pass on whether the stream is idle."""
        self.output.set_idle(idle)

    def end(self) -> None:
        """Pass on the end of the stream."""
        self.ended = True
        self.metrics.watermark_ns = WATERMARK_END
        self.output.end()

    def snapshot(self, epoch: int) -> OperatorSnapshot:
        """See `Node.snapshot`; the table is with the instance that fills it."""
        kept = super().snapshot(epoch)
        if not self._fills:
            return kept
        if self._kept is None or self._kept[0] != self.table.changes:
            chunks = self.table.chunks(epoch)
            made = f"{self.context.attempt}-{self.table.changes}"
            named = [replace(one, identity=f"{made}-{number}") for number, one in enumerate(chunks)]
            self._kept = self.table.changes, named
        return replace(kept, chunks=self._kept[1], values={**kept.values, "loaded": self.ready})

    def restore(self, before: Predecessors) -> None:
        """See `Node.restore`: all objects that filled a table had the same one."""
        super().restore(before)
        filled = next(
            (one for one in (*before.dealt, *before.all) if one.values.get("loaded")), None
        )
        if filled is not None and self._fills:
            for chunk in filled.chunks:
                self.table.load(chunk.rows)
            self.table.finish()
            if all(chunk.identity for chunk in filled.chunks):
                self._kept = self.table.changes, tuple(filled.chunks)
            self._tell_ready()

    def resume(self) -> None:
        """See `Node.resume`."""
        if self.ended:
            self.output.end()
        elif self.metrics.watermark_ns > WATERMARK_NONE:
            self.output.advance(self.metrics.watermark_ns)
