"""Event-time ordering of an operator's inputs: rows wait here until the watermark passes them.

Rows are kept as runs sorted by time, and released up to a watermark. Those that are released by the
call that brought them are not copied before; what is left behind it is, so that the buffer holds no
received memory from one call to the next. The order of released rows depends on the rows alone: by
event time, then port (left before right), then source instance, then sequence. It depends neither
on the slices nor on the order of their arrival.

When there are many small runs, they are merged with their neighbours of the same source, so that
rows that arrive one by one cost about as much as the same rows in large slices. What does not fit
into `memory_bytes` is spilled, latest rows first, since they are needed last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from ..transport.compiling import njit
from ..transport.wire.batch import Batch
from .spill import SpillFile, SpillRecord

RUN_OVERHEAD_BYTES = 1500
"""Memory of a run in addition to its rows; it dominates in runs of one row."""

MERGE_RUNS = 256
"""The number of a port's runs beyond which small ones are merged."""

MERGED_BYTES_MAX = 256 << 10
"""Runs are merged up to this size; larger ones have little overhead."""

MERGED_SHARE = 16
"""Runs are merged up to 1/MERGED_SHARE of the memory, since whole runs are spilled."""

MERGE_RATIO = 2
"""A run is merged with newer ones if it is at most this many times their total size. Each copy of a
row then makes its run larger by half at least, so rows are copied a logarithmic number of times."""

WAITING_PIECE_BYTES = 16 << 20
"""About how large the batches of a snapshot become."""

SPILL_PIECE_BYTES = 1 << 20
"""Runs are spilled in pieces of about this size, which span little event time each."""


_READ_I64 = types.Array(types.int64, 1, "C", readonly=True)


@dataclass(frozen=True)
class Released:
    """Released rows in event-time order.

    Attributes:
        ports: the rows of each port, None for a port without rows.
        order: the port of each merged row, bool, shape (rows of all ports,); True is the right of
            two ports. All False for one port.
        latest_ns: the latest event time of the rows.
    """

    ports: tuple[Batch | None, ...]
    order: npt.NDArray[np.bool_]
    latest_ns: int


@dataclass(eq=False)
class _SortedRun:
    """Rows of one source instance sorted by time, in memory or in the spill file.

    `place` orders rows of equal time: (source, arrival number), followed by the number of the piece
    for each time that the run was spilled.
    """

    place: tuple[int, ...]
    first_ns: int
    last_ns: int
    nbytes: int
    batch: Batch | None
    record: SpillRecord | None = None


class EventTimeBuffer:
    """Buffers the rows of one operator's ports and releases them in event-time order.

    `open_spill` is called once, when `memory_bytes` are exceeded for the first time.
    """

    def __init__(self, ports: int, memory_bytes: int, open_spill: Callable[[], SpillFile]) -> None:
        self._runs: tuple[list[_SortedRun], ...] = tuple([] for _ in range(ports))
        self._merge_at = [MERGE_RUNS] * ports
        self._merged_bytes_max = min(MERGED_BYTES_MAX, memory_bytes // MERGED_SHARE)
        self._memory_bytes = memory_bytes
        self._open_spill = open_spill
        self._spill: SpillFile | None = None
        self._arrivals = 0
        self._views: list[_SortedRun] = []  # runs that may be views of received memory
        self.buffered_bytes = 0
        self.buffered_rows = 0

    @property
    def spilled_bytes(self) -> int:
        """Bytes in the spill file now."""
        return 0 if self._spill is None else self._spill.size_bytes

    def add(self, port: int, source: int, batch: Batch) -> None:
        """Add a batch (with times) from source instance `source` to `port`.

        Views in it must stay valid until `own`, or until a `release` has passed all of its rows.
        """
        if batch.num_rows == 0:
            return
        self._arrivals += 1
        self._keep(self._runs[port], (source, self._arrivals), _sort_by_time(batch))
        self.buffered_rows += batch.num_rows
        if len(self._runs[port]) > self._merge_at[port]:
            self._merge_small(port)
        if self.buffered_bytes > self._memory_bytes:
            self._make_room()

    def own(self) -> None:
        """Copy the rows that are still here of batches that are views of received memory."""
        views, self._views = self._views, []
        for run in views:
            if run.batch is not None and not run.batch.owned:
                run.batch = run.batch.copy()

    def waiting(self) -> Iterator[tuple[int, int, Sequence[Batch]]]:
        """Yield the rows that wait, as (port, source, batches with times, which never change).

        The batches are of one schema; a snapshot need not copy them. Added to another buffer in
        this order, the rows are released in the order in which they would be here.
        """
        self.own()
        for port, runs in enumerate(self._runs):
            pieces: list[Batch] = []
            source, size = 0, 0
            for run in sorted(runs, key=lambda run: run.place):
                batch = run.batch
                if batch is None:
                    assert self._spill is not None and run.record is not None
                    batch = self._spill.look(run.record)
                alike = not pieces or (run.place[0] == source and batch.schema == pieces[0].schema)
                if pieces and not (alike and size < WAITING_PIECE_BYTES):
                    yield port, source, tuple(pieces)
                    pieces, size = [], 0
                pieces.append(batch)
                source, size = run.place[0], size + batch.nbytes
            if pieces:
                yield port, source, tuple(pieces)

    def release(self, watermark_ns: int) -> Iterator[Released]:
        """Yield the rows with a time ≤ `watermark_ns` in order, about `memory_bytes` at a time.

        Rows of equal time are yielded together. The caller must exhaust the iterator before it
        calls `add`.
        """
        while (step_ns := self._step(watermark_ns)) is not None:
            released = self._release_step(step_ns)
            if released is not None:
                yield released

    def _step(self, watermark_ns: int) -> int | None:
        """Return the time up to which due rows fit into memory; None if no rows are due."""
        due = [run for runs in self._runs for run in runs if run.first_ns <= watermark_ns]
        if not due:
            return None
        taken = 0
        first_ns = min(run.first_ns for run in due)
        for run in sorted(due, key=lambda run: run.first_ns):
            if taken > self._memory_bytes and run.first_ns > first_ns:
                return run.first_ns - 1
            taken += run.nbytes if run.record is None else run.record.length
        return watermark_ns

    def _release_step(self, watermark_ns: int) -> Released | None:
        batches = tuple(self._take(runs, watermark_ns) for runs in self._runs)
        present = [batch for batch in batches if batch is not None]
        if not present:
            return None
        self.buffered_rows -= sum(batch.num_rows for batch in present)
        latest_ns = max(int(_times(batch)[-1]) for batch in present)
        return Released(batches, _merge_order(batches), latest_ns)

    def close(self) -> None:
        """Drop everything."""
        for runs in self._runs:
            runs.clear()
        self._views.clear()
        self.buffered_bytes = self.buffered_rows = 0
        if self._spill is not None:
            self._spill.close()

    def _keep(self, runs: list[_SortedRun], place: tuple[int, ...], batch: Batch) -> None:
        times = _times(batch)
        nbytes = batch.nbytes + RUN_OVERHEAD_BYTES
        run = _SortedRun(place, int(times[0]), int(times[-1]), nbytes, batch)
        runs.append(run)
        if not batch.owned:
            self._views.append(run)
        self.buffered_bytes += run.nbytes

    def _take(self, runs: list[_SortedRun], watermark_ns: int) -> Batch | None:
        due = [run for run in runs if run.first_ns <= watermark_ns]
        if not due:
            return None
        runs[:] = [run for run in runs if run.first_ns > watermark_ns]
        pieces: list[Batch] = []
        for run in sorted(due, key=lambda run: run.place):
            batch = self._load(run)
            if run.last_ns > watermark_ns:
                cut = int(np.searchsorted(_times(batch), watermark_ns, side="right"))
                self._keep(runs, run.place, batch.slice(cut, batch.num_rows))
                batch = batch.slice(0, cut)
            pieces.append(batch)
        return _in_order(pieces)

    def _load(self, run: _SortedRun) -> Batch:
        if run.batch is not None:
            self.buffered_bytes -= run.nbytes
            batch, run.batch = run.batch, None  # a view must not outlive its release in `_views`
            return batch
        assert self._spill is not None and run.record is not None
        return self._spill.read(run.record)

    def _merge_small(self, port: int) -> None:
        """Merge small neighbouring runs in memory, from the newest to the oldest.

        Runs of a source are neighbours in the order of `place`. Called again when the number of
        runs has doubled.
        """
        runs = self._runs[port]
        newest_first = sorted(runs, key=lambda run: run.place, reverse=True)
        runs.clear()
        group: list[_SortedRun] = []
        size = 0
        for run in newest_first:
            own = run.nbytes - RUN_OVERHEAD_BYTES
            small = own <= MERGE_RATIO * size and own + size <= self._merged_bytes_max
            if group and not (small and _alike(run, group[-1])):
                self._merge(runs, group)
                group, size = [], 0
            group.append(run)
            size += own
        self._merge(runs, group)
        self._merge_at[port] = max(MERGE_RUNS, 2 * len(runs))

    def _merge(self, runs: list[_SortedRun], newest_first: list[_SortedRun]) -> None:
        if len(newest_first) < 2:
            runs.extend(newest_first)
            return
        pieces = [self._load(run) for run in reversed(newest_first)]
        self._keep(runs, newest_first[-1].place, _in_order(pieces))

    def _make_room(self) -> None:
        """Merge small runs, then spill the runs needed last until half of the memory is free."""
        for port in range(len(self._runs)):
            self._merge_small(port)
        in_memory = [run for runs in self._runs for run in runs if run.batch is not None]
        for run in sorted(in_memory, key=lambda run: run.first_ns, reverse=True):
            if self.buffered_bytes <= self._memory_bytes // 2:
                return
            self._spill_run(next(runs for runs in self._runs if run in runs), run)

    def _spill_run(self, runs: list[_SortedRun], run: _SortedRun) -> None:
        assert run.batch is not None
        if self._spill is None:
            self._spill = self._open_spill()
        batch = run.batch
        rows = max(1, batch.num_rows * SPILL_PIECE_BYTES // max(run.nbytes, 1))
        runs.remove(run)
        for number, start in enumerate(range(0, batch.num_rows, rows)):
            piece = batch.slice(start, min(start + rows, batch.num_rows))
            times, record = _times(piece), self._spill.append(piece)
            place = (*run.place, number)
            runs.append(_SortedRun(place, int(times[0]), int(times[-1]), 0, None, record))
        self.buffered_bytes -= run.nbytes
        run.batch = None


def _alike(one: _SortedRun, other: _SortedRun) -> bool:
    """Return whether two runs may be merged: same source, in memory, and of the same schema.

    Different types would be widened, which must only happen to rows that are released together.
    """
    if one.batch is None or other.batch is None or one.place[0] != other.place[0]:
        return False
    return one.batch.schema == other.batch.schema


def _times(batch: Batch) -> npt.NDArray[np.int64]:
    if batch.times is None:
        msg = "event-time ordering needs rows with event times"
        raise ValueError(msg)
    return batch.times


def _in_order(pieces: list[Batch]) -> Batch:
    """Return the rows of pieces, each of them sorted, in order of time; one piece as it is."""
    if len(pieces) == 1:
        return pieces[0]
    rows = Batch.concat(pieces)
    if all(_times(one)[-1] <= _times(other)[0] for one, other in pairwise(pieces)):
        return rows
    return rows.take(np.argsort(_times(rows), kind="stable"))


def _sort_by_time(batch: Batch) -> Batch:
    times = _times(batch)
    if _rises(times):
        return batch
    return batch.take(np.argsort(times, kind="stable"))


@njit(types.boolean(_READ_I64), cache=True, nogil=True)
def _rises(times: Any) -> bool:
    """Whether no time is before its predecessor. No branch in the loop: it is vectorized."""
    falls = False
    for row in range(1, times.size):
        falls |= times[row] < times[row - 1]
    return not falls


def _merge_order(batches: tuple[Batch | None, ...]) -> npt.NDArray[np.bool_]:
    """Return the port of each merged row; at equal times the left comes first."""
    rows = [0 if batch is None else batch.num_rows for batch in batches]
    if len(batches) == 1 or 0 in rows:
        return np.full(sum(rows), len(batches) == 2 and rows[0] == 0, dtype=np.bool_)
    left, right = (_times(batch) for batch in batches if batch is not None)
    order = np.zeros(sum(rows), dtype=np.bool_)
    order[np.searchsorted(left, right, side="right") + np.arange(len(right))] = True
    return order
