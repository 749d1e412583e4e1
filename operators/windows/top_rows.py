"""`TopRows`: the n rows of each group with the greatest value of a column."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ...configs.units import NS_PER_US
from ...state.keys import hash_keys
from ...state.node_transfer import with_columns
from ...transport.wire.arrow import column_to_arrow, numbers_from_arrow
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import Schema
from ..snapshots import StateChunk
from .group_state import GroupState
from .grouping import SLICE
from .sealed_windows import dated
from .slices import WholeInput, slices_of
from .sorted_runs import RunFile, SortedRun, merged, sorted_pieces
from .time_windows import TimeWindows

if TYPE_CHECKING:
    from ..process import Output
    from .top_n import TopN

__all__ = ["TopRows", "order_of"]

Int64s = npt.NDArray[np.int64]

_PRUNED_FROM_ROWS = 4_096
_RUN_BYTES_MIN = 64 << 10
"""With less in memory there is no use in a run."""
_RUNS_MAX = 16
"""More runs of a slice are merged, without the first, which has most of the rows."""
_SIGN = np.uint64(1 << 63)
_GREATEST = np.int64(2**63 - 1)


class _Rows(NamedTuple):
    """Rows that may be among the first.

    Attributes:
        batches, rows: those in memory, and how many they are.
        kept: how many of these were left when they were last pruned.
        floor: the order of the last row that was left then, which later rows must exceed, or equal
            with ties; None where rows have groups, can be ordered among themselves alone, or are
            too few.
        runs: those on the disk, which came before.
        settled: how many rows were left in the runs when these were last pruned.
    """

    batches: list[Batch]
    rows: int
    kept: int
    floor: int | None = None
    runs: tuple[SortedRun, ...] = ()
    settled: int = 0

    @property
    def spilled(self) -> int:
        """How many rows are on the disk."""
        return sum(run.rows for run in self.runs)


_NONE = _Rows([], 0, 0)


class _Saved(NamedTuple):
    """What a snapshot has of a slice, and the event time of the result without a window."""

    rows: _Rows
    time_ns: int | None
    chunks: Sequence[StateChunk]


class TopRows(TimeWindows):
    """Keeps the rows of each slice that may be among the first of a group."""

    surviving: ClassVar[tuple[str, ...]] = (
        *TimeWindows.surviving,
        *("_charged", "_charged_on_disk", "_chunks"),
    )

    def __init__(self, asked: TopN) -> None:
        super().__init__(slices_of(asked))
        self._asked = asked
        self._kept: dict[int, _Rows] = {}
        self._chunks: dict[int, _Saved] = {}
        self._charged = self._charged_on_disk = 0
        self._runs_written = 0
        self._numbers: GroupState | None = None  # empty between two calls of `_numbered`

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Keep rows that may be among the first of their groups."""
        self._learn(batch.schema)
        slices = self._slices.of(batch)
        batch, slices = self._without_late(batch, slices, out)
        if not batch.num_rows:
            return
        self._note_time(batch)
        self._keep(batch, slices)

    def _learn(self, schema: Schema) -> None:
        """Take the columns from the first rows."""
        if self._groups is None:
            # One group per slice tells when windows end; the rows themselves are in `_kept`.
            # A slice has one group, so a store of its own would be nearly empty.
            many = not isinstance(self._slices, WholeInput)
            groups = GroupState(Schema(()), (), self._context, shares_stores=many)
            self.schema = self._asked.output_schema(schema)
            self._keep_in(groups, schema)

    def _keep(self, batch: Batch, slices: Int64s) -> None:
        no_keys = batch.select(())
        self._state.slots(slices, hash_keys(no_keys, ())[0], no_keys)
        order = None if self._asked.keys else order_of(batch.column(self._asked.by))
        for slice_ in np.unique(slices).tolist():
            mine = slices == slice_
            floor = self._kept.get(slice_, _NONE).floor
            if order is not None and floor is not None:
                mine &= order >= floor if self._asked.with_ties else order > floor
            if mine.all():
                self._add(slice_, batch.copy())
            elif mine.any():
                self._add(slice_, batch.filter(mine))
        self._charge()

    def _add(self, slice_: int, batch: Batch) -> None:
        before = self._kept.get(slice_, _NONE)
        now = before._replace(batches=[*before.batches, batch], rows=before.rows + batch.num_rows)
        if now.rows >= 2 * now.kept + _PRUNED_FROM_ROWS:
            first = self._first_rows(Batch.concat(now.batches))
            floor = self._floor(first)
            now = now._replace(
                batches=[first],
                rows=first.num_rows,
                kept=first.num_rows,
                floor=now.floor if floor is None else floor,
            )
        self._kept[slice_] = now

    def _floor(self, first: Batch) -> int | None:
        """Return what the order of later rows must reach to be among the first; None: anything."""
        if self._asked.keys or first.num_rows < self._asked.n:
            return None
        order = order_of(first.column(self._asked.by))
        return None if order is None else int(order.min())

    def dump(self, nodes: Int64s) -> Iterator[Batch]:
        """Return the rows that are kept, after an empty batch with the input's columns."""
        if self._groups is None:
            return
        yield Batch.empty(self._input)
        for slice_, kept in self._kept.items():
            on_disk = (batch for run in kept.runs for batch in run.batches())
            for batch in chain(on_disk, kept.batches):
                mine = batch.filter(np.isin(self._context.nodes_of(batch, self._asked.keys), nodes))
                column = {SLICE: Column.of(np.full(mine.num_rows, slice_))}
                yield dated(with_columns(mine, column), self._latest_ns)

    def load(self, batch: Batch) -> None:
        """See `Process.load`; the memory for state may be used up: StateFullError."""
        if SLICE not in batch.schema:
            self._learn(batch.schema)
        elif batch.num_rows:
            self._note_time(batch)
            self._keep(batch.drop((SLICE,)), batch.column(SLICE).data)

    def chunks(self, epoch: int) -> Sequence[StateChunk]:
        """See `Sealing.chunks`: the input's columns, then the rows of each slice.

        These are batches that never change, so a thread puts them together.
        """
        self.seal(epoch)
        if self._groups is None:
            return ()
        name = f"top-{self._context.attempt}"
        chunks: dict[int, _Saved] = {}
        # Rows that are left out move it, too.
        time_ns = self._latest_ns if isinstance(self._slices, WholeInput) else None
        for slice_, kept in self._kept.items():
            before = self._chunks.get(slice_)
            if before is not None and before.rows is kept and before.time_ns == time_ns:
                chunks[slice_] = before
            else:
                parts = self._parts(kept, slice_, epoch, newest=time_ns is not None)
                chunks[slice_] = _Saved(kept, time_ns, parts)
        self._chunks = chunks
        columns = StateChunk(Batch.empty(self._input), f"{name}-columns")
        return [columns, *chain.from_iterable(one.chunks for one in chunks.values())]

    def _parts(self, kept: _Rows, slice_: int, epoch: int, *, newest: bool) -> Sequence[StateChunk]:
        """Return the rows of a slice as chunks: runs, which do not change, then those in memory.

        With `newest`, the last chunk is a new one, which has the latest event time.
        """
        held: list[tuple[Callable[[], Sequence[Batch]], str]] = [
            (partial(run.part, number), f"{run.name}-{number}")
            for run in kept.runs
            for number in range(run.parts)
        ]
        named = f"top-{self._context.attempt}-{epoch}-{slice_}"
        if kept.rows:
            held.append((lambda: kept.batches, named))
        elif newest and held:
            held[-1] = held[-1][0], named
        return [
            StateChunk(partial(_rows_of, find, slice_, self._latest_ns), identity)
            for find, identity in held
        ]

    def _beside(self) -> tuple[int | None, dict[int, _Rows]]:
        return self._latest_ns, dict(self._kept)

    def _go_back(self, beside: Any) -> None:
        self._latest_ns, kept = beside
        self._kept = dict(kept)
        self._charge()

    def _emit_window(self, window: int, out: Output) -> Iterator[int]:
        found = (self._kept.get(slice_) for slice_ in self._slices.slices_of(window))
        parts = [part for part in found if part is not None]
        if any(part.runs for part in parts):
            for rows in merged([run for part in parts for run in self._runs(part)]):
                yield self._emit_first(rows, window, out)
        else:
            batches = [batch for part in parts for batch in part.batches]
            yield self._emit_first(Batch.concat(batches), window, out)

    def _emit_first(self, batch: Batch, window: int, out: Output) -> int:
        """Emit the first rows of groups of a window, whose rows are in a batch; return how many."""
        rows = self._first_rows(batch)
        assert self.schema is not None
        bounds = []
        if self._asked.has_window_columns:
            kind = self.schema.fields[0].type
            for bound in (self._slices.start_ns(window), self._slices.end_ns(window)):
                data = np.full(rows.num_rows, bound // NS_PER_US, np.int64)
                bounds.append(Column(kind, data))
        result = Batch(self.schema, [*bounds, *rows.columns], rows.num_rows)
        self._emit_at(result, window, out)
        return rows.num_rows

    def _free_slice(self, slice_: int) -> None:
        super()._free_slice(slice_)
        self._kept.pop(slice_, None)
        self._charge()

    # -- memory -------------------------------------------------------------------------------

    def _charge(self) -> None:
        """Charge the worker's memory for state for the rows that are kept, or spill them."""
        budget, name = self._context.state_budget, self._context.operator_id
        now = self._bytes_in_memory()
        more = now - self._charged
        if more > budget.free_bytes and now >= _RUN_BYTES_MIN and budget.has_room_on_disk(now):
            self._spill()
            now = self._bytes_in_memory()
        if now > self._charged:
            rows = sum(part.rows + part.spilled for part in self._kept.values())
            budget.take(name, now - self._charged, rows)
        elif now < self._charged:
            budget.give_back(name, self._charged - now)
        self._charged = now
        files = {run.file for part in self._kept.values() for run in part.runs}
        on_disk = sum(file.nbytes for file in files)
        budget.charge(name, on_disk - self._charged_on_disk, on_disk=True)
        self._charged_on_disk = on_disk

    def _bytes_in_memory(self) -> int:
        return sum(batch.nbytes for part in self._kept.values() for batch in part.batches)

    def _spill(self) -> None:
        """Write the rows of all slices to the disk, as a run of each, and merge runs if many."""
        budget, name = self._context.state_budget, self._context.operator_id
        file = RunFile(name, budget)
        for slice_, kept in self._kept.items():
            if not kept.rows:
                continue
            first = self._first_rows(Batch.concat(kept.batches))
            run = self._run(file, (piece for piece, _ in sorted_pieces(first, self._asked.keys)))
            runs, settled = (*kept.runs, run), kept.settled
            if sum(one.rows for one in runs) >= 2 * settled + _PRUNED_FROM_ROWS:
                runs = (self._run(file, map(self._first_of_buckets, merged(runs))),)
                settled = runs[0].rows
            elif len(runs) > _RUNS_MAX:
                later = self._run(file, map(self._first_of_buckets, merged(runs[1:])))
                runs = (runs[0], later)
            floor = self._floor(first)
            self._kept[slice_] = _Rows(
                [], 0, 0, kept.floor if floor is None else floor, runs, settled
            )

    def _first_of_buckets(self, batch: Batch) -> Batch:
        """Return the first rows of each group, by their buckets."""
        first = self._first_rows(batch)
        return Batch.concat([piece for piece, _ in sorted_pieces(first, self._asked.keys)])

    def _run(self, file: RunFile, pieces: Iterable[Batch]) -> SortedRun:
        self._runs_written += 1
        name = f"top-{self._context.attempt}-run-{self._runs_written}"
        return file.write(pieces, self._asked.keys, name)

    def _runs(self, kept: _Rows) -> list[Iterable[tuple[Batch, npt.NDArray[np.uint16]]]]:
        """Return the rows of a slice as runs, the oldest first."""
        if not kept.rows:
            return [*kept.runs]
        return [*kept.runs, sorted_pieces(Batch.concat(kept.batches), self._asked.keys)]

    # -- the first rows -----------------------------------------------------------------------

    def _first_rows(self, batch: Batch) -> Batch:
        """Return the first rows of each group, those of a group together, the greatest first."""
        if _is_one_group(batch.select(self._asked.keys)):
            return self._first_of_group(batch)
        groups = self._numbered(batch)
        ranks = _ranks(batch.column(self._asked.by))
        order = np.lexsort((np.arange(batch.num_rows), ~ranks, groups))
        ordered = groups[order]
        begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        sizes = np.diff(np.append(begins, len(ordered)))
        place = np.arange(len(ordered)) - np.repeat(begins, sizes)
        first = place < self._asked.n
        if self._asked.with_ties:
            last = begins + np.minimum(self._asked.n, sizes) - 1
            first = ranks[order] >= np.repeat(ranks[order[last]], sizes)
        return batch.take(order[first])

    def _first_of_group(self, batch: Batch) -> Batch:
        """Return the first rows of a batch whose rows are one group, the greatest first."""
        ranks, n = _ranks(batch.column(self._asked.by)), self._asked.n
        if n < len(ranks):  # few have to be sorted
            last = np.partition(ranks, -n)[-n]
            rows = np.flatnonzero(ranks >= last)
        else:
            rows = np.arange(len(ranks))
        order = rows[np.argsort(~ranks[rows], kind="stable")]
        return batch.take(order if self._asked.with_ties else order[:n])

    def _numbered(self, batch: Batch) -> Int64s:
        """Return a number for each row that is the same exactly in its group."""
        keys = batch.select(self._asked.keys)
        if self._numbers is None:
            self._numbers = GroupState(keys.schema, (), self._context)
        hashes, _ = hash_keys(keys, keys.schema.names)
        slots = self._numbers.slots(np.zeros(batch.num_rows, np.int64), hashes, keys)
        self._numbers.clear()
        return slots


def _is_one_group(keys: Batch) -> bool:
    """Whether the rows with these keys, at least one, are surely one group, as in a window."""
    return all(
        column.validity is None
        and column.type.kind == "fixed"
        and column.data.dtype.kind in "iu"
        and bool((column.data == column.data[0]).all())
        for column in keys.columns
    )


def _rows_of(find: Callable[[], Sequence[Batch]], slice_: int, latest_ns: int | None) -> Batch:
    """Return rows of a slice as one batch of a snapshot."""
    rows = Batch.concat(find())
    column = {SLICE: Column.of(np.full(rows.num_rows, slice_))}
    return dated(with_columns(rows, column), latest_ns)


def _ranks(column: Column) -> Int64s:
    """Return numbers in the order of the values, equal for equal ones; NaN last, null first."""
    order = order_of(column)
    if order is not None:
        return order
    values = column_to_arrow(column)
    if pa.types.is_float16(values.type):  # Arrow ranks none
        values = values.cast(pa.float32())
    if pa.types.is_floating(values.type):
        values = pc.add(values, pa.scalar(0.0, values.type))  # -0.0 equals 0.0
    found = pc.rank(values, "ascending", tiebreaker="dense")
    ranks = numbers_from_arrow(found).astype(np.int64)
    if column.validity is not None:
        ranks = np.where(column.validity, ranks, 0)
    return ranks


def order_of(column: Column) -> Int64s | None:
    """Return numbers in the order of the values of any rows, equal for equal ones; NaN is last.

    None if there are nulls, or if the values are no numbers or times of at most 8 bytes.
    """
    data = column.data
    if column.validity is not None or column.type.kind != "fixed" or data.dtype.itemsize > 8:
        return None
    match data.dtype.kind:
        case "b" | "i":
            return data.astype(np.int64, copy=False)
        case "u":
            return (data.astype(np.uint64) ^ _SIGN).view(np.int64)
        case "f":
            with np.errstate(invalid="ignore"):  # NaN of any bits
                values = data.astype(np.float64) + 0.0  # -0.0 equals 0.0
            bits = values.view(np.int64)
            order = np.where(bits < 0, bits ^ _GREATEST, bits)
            return np.where(np.isnan(values), _GREATEST, order)
        case _:
            return None
