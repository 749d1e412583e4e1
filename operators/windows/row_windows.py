"""`RowWindows`: the base of operators whose windows depend on their rows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys
from ...transport.wire.batch import Batch
from ..keyed.changed_keys import StateVersions, latest_rows
from ..process import Output
from ..snapshots import StateChunk
from .aggregation import Aggregation, evaluated_inputs
from .sealed_pool import START
from .sealed_windows import SealedWindows
from .window_pool import WindowPool
from .window_results import WindowResults

if TYPE_CHECKING:
    from ...transport.wire.types import Schema

__all__ = ["RowWindows"]

Int64s = npt.NDArray[np.int64]


_COMPACTED_FROM_BYTES = 2 << 20
_COMPACTED_FROM_SHARE = 4
"""Memory is compacted if there is so much of it, and so many times what its records need."""


class RowWindows(SealedWindows):
    """Puts every row into a window of its key, and emits windows that have ended."""

    surviving: ClassVar[tuple[str, ...]] = (*SealedWindows.surviving, "schema", "_results")

    _groups: WindowPool | None
    _versions: StateVersions | None

    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__()
        self._asked = aggregation
        self._compacted = (0, 0)  # bytes of all memory and of records, at the last time

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Add rows to their windows."""
        pool = self._bound(batch.schema)
        keys = batch.select(self._asked.keys)
        slots = pool.key_slots(hash_keys(batch, self._asked.keys)[0], keys)
        pool.note_chains(slots)
        batch, windows = self._assigned(batch, slots, out)
        inputs = evaluated_inputs(self._asked.aggregates, batch)
        with self._results.naming(lambda: batch.select(self._asked.keys)):
            pool.groups.update(windows, inputs, batch.times)
        self._settle(out)
        self._compact_if_worthwhile()

    def on_watermark(self, watermark_ns: int, out: Output) -> None:
        """Keep the watermark."""
        self._watermark_ns = watermark_ns
        self._compact_if_worthwhile()

    def _compact_if_worthwhile(self) -> None:
        """Give memory back that is left of windows that have ended, once it is most of all.

        What is of use moves into new memory. Keys and objects may take most of that: then the next
        time is when the memory has doubled, or there are a quarter of the records.
        """
        if self._groups is None:
            return
        budget, name = self._context.state_budget, self._context.operator_id
        taken, used = budget.used_by(name), self._groups.record_bytes
        if taken < _COMPACTED_FROM_BYTES or taken < _COMPACTED_FROM_SHARE * used:
            return
        taken_then, used_then = self._compacted
        if taken < 2 * taken_then and _COMPACTED_FROM_SHARE * used > used_then:
            return
        self._compact()
        self._compacted = (budget.used_by(name), used)

    def _compact(self) -> None:
        """Move all windows into new memory."""
        windows = list(self.dump(np.arange(self._context.virtual_nodes)))
        self._clear()
        for batch in windows:
            self.load(batch)

    def dump(self, nodes: Int64s) -> Iterator[Batch]:
        """Return the open windows, after an empty batch with the input's columns."""
        if self._groups is not None:
            yield Batch.empty(self._input)
            yield from self._groups.dump(nodes)

    def load(self, batch: Batch) -> None:
        """See `Process.load`; the memory for state may be used up: StateFullError."""
        if START not in batch.schema:
            self._bound(batch.schema)
        elif batch.num_rows:
            self._expect(self.pool.load(batch))

    def take(self, chunks: Sequence[StateChunk], *, whole: bool) -> None:
        """See `Sealing.take`; the next snapshot has all windows."""
        for rows in latest_rows(chunks, self._asked.keys, self._context.state_budget):
            self.load(rows)

    def _versioned(self, epoch: int) -> Sequence[StateChunk]:
        if self._versions is None:
            self._versions = StateVersions(self._snapshots_name)
        return self._versions.chunks(epoch, self.pool.sealed(epoch), len(self.pool))

    def _clear(self) -> None:
        """Forget all windows, of which there may be seals."""
        self.pool.clear()

    def _forget(self) -> None:
        if self._groups is not None:
            self._clear()
        super()._forget()

    def _expect(self, windows: Int64s) -> None:
        """Do what must be done with windows that were loaded."""

    def _bound(self, schema: Schema) -> WindowPool:
        """Return the windows, made for the columns of the first rows; raise as `check_types`."""
        if self._groups is None:
            accumulators = self._asked.accumulators(schema)
            self.schema = self._asked.output_schema(schema, accumulators)
            pool = WindowPool(schema.select(self._asked.keys), accumulators, self._context)
            self._keep_in(pool, schema)
            name = self._context.operator_id
            self._results = WindowResults(self._asked, self.schema, name)
        elif schema is not self._input and schema != self._input:
            self._asked.check_types(self._input, schema)
        return self.pool

    @property
    def pool(self) -> WindowPool:
        """The open windows; there are rows already."""
        assert self._groups is not None
        return self._groups

    @abstractmethod
    def _assigned(self, batch: Batch, slots: Int64s, out: Output) -> tuple[Batch, Int64s]:
        """Return the rows that are not late, and the window of each, int64 (n,).

        Args:
            batch: the rows.
            slots: the slot of each row's key.
            out: receives late rows.
        """

    @abstractmethod
    def _settle(self, out: Output) -> None:
        """Do what must wait until the rows of a batch have been added."""

    def _emit(
        self,
        windows: Int64s,
        starts_ns: Int64s,
        ends_ns: Int64s,
        times: Int64s | None,
        out: Output,
    ) -> None:
        """Emit the rows of windows."""
        pool = self.pool
        rows = self._results.rows(pool.keys_of(windows), pool.groups, windows, starts_ns, ends_ns)
        out.emit(rows, times)

    def _drop(self, windows: Int64s) -> None:
        """Free windows that no chain has any more."""
        groups = self.pool.field("group")[windows]
        self.pool.free(windows)
        self.pool.drop_keys(groups)
