"""`JoinAsOf`: joins each left row with the right row next to it in event time.

Rows come in event-time order, so a key needs one right row, the latest so far, and the left rows
that wait for one after them. A left row is answered when nothing nearer can come: looking back at
once, looking ahead by the first right row of its key, or when the tolerance has passed. What is no
longer needed is freed: a right row that a later one replaces, or that lies further back than the
tolerance reaches, and a left row with its answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys
from ...state.records import RecordField, RecordLayout
from ...state.store import KeyedStore
from ...state.watermarks import EARLIEST_NS, LATEST_NS, WATERMARK_NONE
from ...transport.wire.batch import Batch
from ..process import InputOrder, InstanceContext, Output
from .asof_join import AsOfJoin
from .asof_kernels import NONE, answer_expired, forget_before, match_rows
from .common_keys import common_keys
from .row_queue import RowQueue
from .session_kernels import link_rows
from .stream_join import LEFT, RIGHT, QueuedJoin

__all__ = ["JoinAsOf"]

Int64s = npt.NDArray[np.int64]

_HEADS = ("waiting", "latest")
"""What the record of a key holds: its newest left row that waits, and its newest right row."""

_ANY_DISTANCE = np.uint64((1 << 64) - 1)
_KEYS_MIN = 256
_ANSWERS_MAX = 8192
"""So many are emitted together where rows have waited."""


class JoinAsOf(QueuedJoin):
    """Joins the rows of two streams, as an `AsOfJoin` asks."""

    input_order: ClassVar[InputOrder | None] = "event time"

    _join: AsOfJoin

    def __init__(self, join: AsOfJoin) -> None:
        super().__init__(join)
        tolerance_ns = join.tolerance_ns
        self._tolerance = _ANY_DISTANCE if tolerance_ns is None else np.uint64(tolerance_ns)
        self._store: KeyedStore | None = None

    def open(self, context: InstanceContext) -> None:
        """Take the operator's name and its memory."""
        super().open(context)
        context.state_budget.advise(context.operator_id, "take a shorter tolerance, or fewer keys")

    def on_merged(
        self, left: Batch, right: Batch, order: npt.NDArray[np.bool_], out: Output
    ) -> None:
        """Answer left rows; keep what may answer later ones, and those that must wait."""
        sides = [self._without_late(side, rows, out) for side, rows in enumerate((left, right))]
        if not any(rows.num_rows for rows in sides):
            return
        for side, rows in enumerate(sides):
            if rows.num_rows:
                self._learn(side, rows.schema)
        firsts = [queue.count for queue in self._queues]
        # The side whose rows are kept adds keys, among which the other one finds its own.
        for side in (LEFT, RIGHT) if self._join.looks_ahead else (RIGHT, LEFT):
            if sides[side].num_rows:
                self._add(side, sides[side])
        answers = np.empty((self._queues[LEFT].count - self._queues[LEFT].first, 3), np.int64)
        lefts, rights, latest, waiting = self._arrays()
        count = match_rows(
            *(firsts[LEFT], lefts.count, firsts[RIGHT], rights.count),
            *(lefts.times, lefts.owners, lefts.following, rights.times, rights.owners),
            *(latest, waiting, self._tolerance),
            *(self._join.looks_back, self._join.looks_ahead, self._join.right_comes_first),
            answers,
        )
        self._emit(answers[:count], out)
        self._free()

    def portions(self, watermark_ns: int | None, out: Output) -> Iterator[None]:
        """Answer the rows whose tolerance has passed; free what no row can match any more."""
        if watermark_ns is None:  # no row follows
            yield from self._expire(LATEST_NS, out, ends=True)
            self._forget()
            return
        yield from self._expire(watermark_ns, out, ends=False)
        self._watermark_ns = watermark_ns
        tolerance_ns = self._join.tolerance_ns
        if self._store is None or tolerance_ns is None or not self._join.looks_back:
            return
        # A left row that waits may match a right row that lies its tolerance further back.
        reach_ns = (2 if self._join.looks_ahead else 1) * tolerance_ns
        _, rights, latest, _ = self._arrays()
        rights.first = forget_before(
            *(rights.first, rights.count, max(watermark_ns + 1 - reach_ns, EARLIEST_NS)),
            *(rights.times, rights.owners, latest),
        )
        self._free()

    # -- saving and moving --------------------------------------------------------------------

    def _load_side(self, side: int, rows: Batch) -> None:
        rows = _by_time(rows)
        assert rows.times is not None
        before = self._queues[side]
        first = before.count
        if first == before.first or before.times[first - 1] <= rows.times[0]:
            self._add(side, rows)
            self._link(side, first)
            return
        if (known := before.owned()) is not None:
            owners = before.owners[: before.count]
            self._heads(side)[owners[owners != NONE]] = NONE
            rows = Batch.concat([known, rows])
        queue = self._queues[side] = RowQueue()
        queue.generation = before.generation + 1
        self._add(side, _by_time(rows))
        self._link(side, 0)

    def _link(self, side: int, first: int) -> None:
        """Let keys hold the rows of a side from this one on."""
        queue = self._queues[side]
        link_rows(first, queue.count, queue.owners, queue.following, self._heads(side))
        self._account_queues()

    def _forget(self) -> None:
        if self._store is not None:
            self._store.clear()
        self._drop_queues()

    # -- taking rows --------------------------------------------------------------------------

    def _without_late(self, side: int, rows: Batch, out: Output) -> Batch:
        """Return the rows without those that the watermark has passed; these are emitted."""
        if not rows.num_rows or self._watermark_ns == WATERMARK_NONE:
            return rows
        assert rows.times is not None  # checked while the topology was built
        late = rows.times <= self._watermark_ns
        if not late.any():
            return rows
        self._emit_late(side, rows.filter(late), out)
        return rows.filter(~late)

    def _add(self, side: int, rows: Batch) -> None:
        """Put rows into their queue, each with the record of its key."""
        keys = common_keys(rows, self._keys[side])
        if self._store is None:
            context = self._context
            self._store = KeyedStore(
                RecordLayout(
                    keys.schema, [RecordField(n, np.dtype(np.int64), NONE) for n in _HEADS]
                ),
                context.state_budget,
                context.operator_id,
                virtual_nodes=context.virtual_nodes,
            )
        hashes, nulls = hash_keys(keys, keys.schema.names)
        kept = self._join.looks_back if side == RIGHT else self._join.looks_ahead
        owners = (self._store.slots if kept else self._store.find)(hashes, keys)
        if nulls is not None:
            owners[nulls] = NONE
        self._enqueue(side, rows if rows.owned else rows.copy(), owners)

    def _arrays(self) -> tuple[RowQueue, RowQueue, Int64s, Int64s]:
        """Return both queues, and what each key holds of them, by record."""
        lefts, rights = self._queues
        return lefts, rights, self._heads(RIGHT), self._heads(LEFT)

    def _heads(self, side: int) -> Int64s:
        """Return the newest row of a side that each key holds, by record."""
        assert self._store is not None
        heads: Int64s = self._store.records[_HEADS[side]]
        return heads

    # -- answers ------------------------------------------------------------------------------

    def _expire(self, watermark_ns: int, out: Output, *, ends: bool) -> Iterator[None]:
        """Answer the left rows that have waited for long enough."""
        if self._store is None or not self._join.looks_ahead:
            return
        lefts, rights, latest, waiting = self._arrays()
        earliest_ns, stop = self._watermark_ns + 1, lefts.first
        answers = np.empty((min(lefts.count - lefts.first, _ANSWERS_MAX), 3), np.int64)
        while lefts.first == stop < lefts.count:
            stop = min(lefts.first + _ANSWERS_MAX, lefts.count)
            lefts.first, count = answer_expired(
                *(lefts.first, stop, watermark_ns, earliest_ns),
                *(lefts.times, lefts.owners, rights.times, latest, waiting, self._tolerance),
                *(ends, answers),
            )
            self._emit(answers[:count], out)
            yield
        self._free()

    def _emit(self, answers: Int64s, out: Output) -> None:
        """Emit left rows with their right rows, in order; those without one only in a left join."""
        found = answers[:, 1] != NONE
        emitted = found | self._join.keeps_unmatched(LEFT)
        places = [np.flatnonzero(found), np.flatnonzero(emitted & ~found)]
        parts = [self._joined(answers[one]) for one in places if len(one)]
        if len(parts) == 2:
            parts = [Batch.concat(parts).take(np.argsort(np.concatenate(places)))]
        for rows in parts:
            out.emit(rows, answers[emitted, 2])

    def _joined(self, answers: Int64s) -> Batch:
        """Return left rows with their right rows; all of them have one, or none has."""
        lefts = self._queues[LEFT].take(answers[:, 0])
        rights = None if answers[0, 1] == NONE else self._queues[RIGHT].take(answers[:, 1])
        return self._results().of(lefts, rights)

    # -- memory -------------------------------------------------------------------------------

    def _free(self) -> None:
        """Drop rows that are no longer needed, and keys that hold none, once they are many."""
        lefts, rights, latest, waiting = self._arrays()
        pages = self._pages
        dropped = [lefts.drop_unowned(waiting, pages), rights.drop_unowned(latest, pages)]
        assert self._store is not None
        if any(dropped) and len(self._store) > 2 * (lefts.count + rights.count) + _KEYS_MIN:
            self._store.delete(self._store.initial(self._store.scan()[0]))
        self._account_queues()


def _by_time(rows: Batch) -> Batch:
    """Return rows with times in the order of these."""
    assert rows.times is not None
    return rows.take(np.argsort(rows.times, kind="stable"))
