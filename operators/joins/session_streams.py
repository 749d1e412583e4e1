"""`JoinSessions`: joins two streams within sessions, which rows of both make together.

A row of either stream opens, extends or merges sessions of its key, as in Flink's session windows.
The bounds of a session are known when it has ended, so its rows are joined then, and freed. Rows
of null keys join with none, so only those that are emitted alone have sessions: others are not
kept, and a session that they stretched would be another one in a job that resumes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from ...state.keys import hash_keys
from ...state.watermarks import LATEST_NS, WATERMARK_NONE
from ..process import InputOrder, Output
from ..windows.sessions import Sessions
from ..windows.specifications import SessionWindow
from ..windows.window_pool import WindowPool
from .common_keys import common_keys
from .join import Join
from .row_queue import NONE
from .session_kernels import disown_rows, link_rows, list_rows, move_rows, pair_rows
from .stream_join import LEFT, RIGHT, QueuedJoin

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch

__all__ = ["JoinSessions"]

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_HEADS = ("left", "right")
"""The fields of a session: its newest row of each side."""

_EMITTED_ROWS = 1 << 14
"""So many are emitted together, and taken from the disk if they are there."""


class JoinSessions(QueuedJoin):
    """Joins the rows of two streams, as a `Join` within a `SessionWindow` asks."""

    input_order: ClassVar[InputOrder | None] = "arrival"

    _join: Join

    def __init__(self, join: Join) -> None:
        super().__init__(join)
        assert isinstance(join.within, SessionWindow)
        self._gap_ns = join.within.gap_ns
        self._pool: WindowPool | None = None

    def on_left(self, batch: Batch, out: Output) -> None:
        """Put left rows into their sessions."""
        self._take(LEFT, batch, out)

    def on_right(self, batch: Batch, out: Output) -> None:
        """Put right rows into their sessions."""
        self._take(RIGHT, batch, out)

    def portions(self, watermark_ns: int | None, out: Output) -> Iterator[None]:
        """Join the rows of sessions that have ended, and free them."""
        if watermark_ns is None:  # no row follows
            yield from self._end(LATEST_NS, out)
            self._forget()
            return
        yield from self._end(watermark_ns - self._join.allowed_lateness_ns, out)
        self._watermark_ns = watermark_ns

    # -- saving and moving --------------------------------------------------------------------

    def _load_side(self, side: int, rows: Batch) -> None:
        self._add(side, rows, WATERMARK_NONE)

    def _forget(self) -> None:
        if self._pool is not None:
            self._sessions.forget_waiting()
            self._pool.clear()
        self._drop_queues()

    # -- taking rows --------------------------------------------------------------------------

    @property
    def _patient_ns(self) -> int:
        """The watermark less the allowed lateness."""
        return max(self._watermark_ns - self._join.allowed_lateness_ns, WATERMARK_NONE)

    def _take(self, side: int, batch: Batch, out: Output) -> None:
        self._learn(side, batch.schema)
        late = self._add(side, batch, self._patient_ns)
        if late.any():
            self._emit_late(side, batch.filter(late), out)

    def _add(self, side: int, batch: Batch, watermark_ns: int) -> Bools:
        """Put rows into their sessions; return which are late, and so are in none."""
        keys = common_keys(batch, self._keys[side])
        if self._pool is None:
            self._pool = WindowPool(keys.schema, (), self._context, _HEADS)
            self._sessions = Sessions(self._pool, self._gap_ns)
        joinable = _without_nulls(keys)
        if joinable.all() or self._join.keeps_unmatched(side):
            return self._add_kept(side, batch, keys, watermark_ns)
        assert batch.times is not None
        late: Bools = batch.times <= self._sessions.closed_ns(watermark_ns)
        late[joinable] = self._add_kept(
            side, batch.filter(joinable), keys.filter(joinable), watermark_ns
        )
        return late

    def _add_kept(self, side: int, batch: Batch, keys: Batch, watermark_ns: int) -> Bools:
        """Put rows of which only late ones are not kept into their sessions; return these."""
        assert self._pool is not None
        hashes, _ = hash_keys(keys, keys.schema.names)
        slots = self._pool.key_slots(hashes, keys)
        windows, merges = self._sessions.assign(batch, slots, watermark_ns)
        late = windows == NONE
        kept = ~late
        if self._join.only_left_columns and side == RIGHT:
            batch = batch.select(self._keys[RIGHT]).with_times(batch.times)
        queue = self._queues[side]
        first = queue.count
        rows = batch if kept.all() and batch.owned else batch.filter(kept)
        if rows.num_rows:
            self._enqueue(side, rows, windows[kept])
        link_rows(first, queue.count, *self._chains(side))
        for either in (LEFT, RIGHT):
            move_rows(merges, *self._chains(either))
        self._pool.free(merges[:, 1].copy())
        self._pool.drop_keys(slots[late])
        self._account_queues()
        return late

    def _chains(self, side: int) -> tuple[Int64s, Int64s, Int64s]:
        """Return owners and following rows of a side, by row, and its newest rows, by session."""
        assert self._pool is not None
        queue = self._queues[side]
        return queue.owners, queue.following, self._pool.field(_HEADS[side])

    # -- sessions that have ended -------------------------------------------------------------

    def _end(self, watermark_ns: int, out: Output) -> Iterator[None]:
        """Join the rows of sessions that have ended, in the order of their ends; free them."""
        if self._pool is None:
            return
        _, sessions = self._sessions.pass_watermark(self._patient_ns, watermark_ns)
        if not len(sessions):
            return
        yield from self._emit_joined(sessions, out)
        for side, queue in enumerate(self._queues):
            disown_rows(sessions, *self._chains(side))
            queue.drop_unowned(self._chains(side)[2], self._pages)
        slots = self._pool.field("group")[sessions]
        self._pool.free(sessions)
        self._pool.drop_keys(slots)
        self._account_queues()

    def _emit_joined(self, sessions: Int64s, out: Output) -> Iterator[None]:
        """Emit what the join has of sessions."""
        assert self._pool is not None
        joins = _without_nulls(self._pool.keys_of(sessions))
        for heads in (self._chains(LEFT)[2], self._chains(RIGHT)[2]):
            joins &= heads[sessions] != NONE
        if self._join.how == "semi":
            yield from self._emit_side(LEFT, sessions[joins], out)
        elif not self._join.only_left_columns:
            yield from self._emit_pairs(sessions[joins], out)
        for side in (LEFT, RIGHT):
            if self._join.keeps_unmatched(side):
                yield from self._emit_side(side, sessions[~joins], out)

    def _emit_pairs(self, sessions: Int64s, out: Output) -> Iterator[None]:
        """Emit each left row with each right row of its session."""
        lefts, rights = self._chains(LEFT)[1:], self._chains(RIGHT)[1:]
        at = np.array([0, NONE, NONE], np.int64)
        while at[0] < len(sessions):
            left, right, numbers = np.empty((3, _EMITTED_ROWS), np.int64)
            count = pair_rows(sessions, *lefts, *rights, at, left, right, numbers)
            if count:
                left_rows = self._queues[LEFT].take(left[:count])
                right_rows = self._queues[RIGHT].take(right[:count])
                self._emit(left_rows, right_rows, sessions[numbers[:count]], out)
                yield

    def _emit_side(self, side: int, sessions: Int64s, out: Output) -> Iterator[None]:
        """Emit all rows of one side of sessions, alone."""
        queue, chains = self._queues[side], self._chains(side)[1:]
        at = np.array([0, NONE], np.int64)
        while at[0] < len(sessions):
            rows, numbers = np.empty((2, min(queue.count + 1, _EMITTED_ROWS)), np.int64)
            count = list_rows(sessions, *chains, at, rows, numbers)
            if count:
                taken = queue.take(rows[:count])
                left, right = (None, taken) if side else (taken, None)
                self._emit(left, right, sessions[numbers[:count]], out)
                yield

    def _emit(self, left: Batch | None, right: Batch | None, of: Int64s, out: Output) -> None:
        """Emit joined rows of sessions."""
        starts, ends = self._sessions.shown_bounds_ns(of)
        rows = self._results().of(left, right, (starts, ends))
        # A row at the end still belongs to a session, so that is its event time.
        out.emit(rows, np.maximum(ends, self._watermark_ns + 1))


def _without_nulls(keys: Batch) -> Bools:
    """Return which keys have no null, bool (n,)."""
    found = np.ones(keys.num_rows, np.bool_)
    for column in keys.columns:
        if column.validity is not None:
            found &= column.validity
    return found
