"""`SessionWindows`: aggregates rows in sessions.

In append mode the row of a session comes when it has ended, and again whenever a late row has
changed it since. In update mode it comes whenever the session has changed. Sessions of a key never
overlap and only grow, so a row replaces all earlier ones of its key with windows within its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...state.watermarks import LATEST_NS
from ..portions import EmitsInPortions, exhaust, paced, pieces_of
from ..process import Output
from .aggregation import Aggregation
from .grouping import LATE
from .row_windows import RowWindows
from .sessions import Sessions, Waiting, independent_runs, merged_into
from .specifications import SessionWindow
from .trigger import Trigger
from .window_pool import NONE

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch

__all__ = ["SessionWindows"]

Int64s = npt.NDArray[np.int64]


class SessionWindows(EmitsInPortions, RowWindows):
    """Aggregates the sessions of an `Aggregation`."""

    remedy = "take a shorter gap, or less allowed_lateness"

    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__(aggregation)
        assert isinstance(aggregation.window, SessionWindow)
        self._gap_ns = aggregation.window.gap_ns
        self._is_update = aggregation.output_mode == "update"
        self._trigger = Trigger(aggregation.trigger_ns)
        self._touched: list[Int64s] = []

    def portions(self, watermark_ns: int | None, out: Output) -> Iterator[None]:
        """Emit the sessions that have ended, and free those that are closed."""
        if watermark_ns is None:  # no row follows
            yield from paced(self._go_on(LATEST_NS, out))
        else:
            yield from paced(self._go_on(watermark_ns, out))
            RowWindows.on_watermark(self, watermark_ns, out)

    def deadline_ns(self) -> int | None:
        """Return when changed rows are to be emitted, in update mode with a trigger."""
        return self._trigger.deadline_ns(self._context.clock)

    def on_deadline(self, now_ns: int, out: Output) -> None:
        """Emit the rows that have changed."""
        self._emit_touched(out)

    @cached_property
    def _sessions(self) -> Sessions:
        """The sessions; there are rows already."""
        return Sessions(self.pool, self._gap_ns, self._asked.allowed_lateness_ns)

    def _assigned(self, batch: Batch, slots: Int64s, out: Output) -> tuple[Batch, Int64s]:
        windows, merges = self._sessions.assign(batch, slots, self._watermark_ns)
        late = windows == NONE
        if late.any():
            out.emit_to(LATE, batch.filter(late))
            self.pool.drop_keys(slots[late])
            batch, windows = batch.filter(~late), windows[~late]
        self._note_touched(windows, batch)
        self._merge(merges)
        return batch, merged_into(windows, merges)

    def _merge(self, merges: Int64s) -> None:
        """Merge the sessions that rows have joined, before these: they came after all others."""
        groups = self.pool.groups
        for first, stop in independent_runs(merges):
            kept, joined = merges[first:stop].T.copy()
            with self._results.naming(partial(self.pool.keys_of, kept)):
                groups.merge(kept, groups, joined)
        if len(merges):
            self.pool.free(merges[:, 1].copy())

    def _note_touched(self, windows: Int64s, batch: Batch) -> None:
        """Note the sessions whose rows must be emitted again."""
        assert batch.times is not None  # checked while the topology was built
        if not self._is_update:
            # A session that has ended can only be touched by a row behind the watermark.
            windows = windows[batch.times <= self._watermark_ns]
        self._note_changes(np.unique(windows))

    def _note_changes(self, windows: Int64s) -> None:
        if len(windows):
            self.pool.groups.changed[windows] = 1
            self._touched.append(windows)
            self._trigger.note_change(self._context.clock)

    def _settle(self, out: Output) -> None:
        """Emit the sessions that have changed, if it is time."""
        if self._trigger.is_time(self._context.clock):
            self._emit_touched(out)

    def _expect(self, windows: Int64s) -> None:
        self._sessions.wait(windows, self._watermark_ns)
        self._note_changes(windows[self.pool.groups.changed[windows] != 0])

    def _clear(self) -> None:
        self._sessions.forget_waiting()
        self._touched = []
        self._trigger.reset()
        super()._clear()

    def _beside(self) -> tuple[Waiting, Sequence[Int64s]]:
        waiting: Waiting = {} if self._groups is None else self._sessions.waiting
        return waiting, tuple(self._touched)

    def _go_back(self, beside: Any) -> None:
        waiting, touched = beside
        self._touched = []
        self._trigger.reset()
        if self._groups is None:
            return
        self._sessions.wait_again(waiting)
        for windows in touched:
            self._touched.append(windows)
            self._trigger.note_change(self._context.clock)

    def _emit_touched(self, out: Output) -> None:
        """Emit the sessions that have changed; in append mode only those that have ended."""
        touched, self._touched = self._touched, []
        self._trigger.reset()
        if not touched:
            return
        windows = self._sessions.alive(np.concatenate(touched))
        self.pool.note(windows)
        self.pool.groups.changed[windows] = 0
        if not self._is_update:
            self._sessions.wait(windows, self._watermark_ns)  # one may have been extended
            windows = windows[self._sessions.ends_ns(windows) <= self._watermark_ns]
        exhaust(self._emit_sessions(windows, out))

    def _go_on(self, watermark_ns: int, out: Output) -> Iterator[int]:
        """Emit what has ended, and free what is closed, as the watermark goes on."""
        if self._groups is None:
            return
        ended, closed = self._sessions.pass_watermark(self._watermark_ns, watermark_ns)
        if not self._is_update:
            yield from self._emit_sessions(ended, out)
        elif len(closed) or self._trigger.is_time(self._context.clock):
            self._emit_touched(out)
        self._drop(closed)

    def _emit_sessions(self, windows: Int64s, out: Output) -> Iterator[int]:
        """Emit the rows of sessions in pieces; yield after each how many rows it has."""
        for part in pieces_of(windows):
            starts, ends = self._sessions.shown_bounds_ns(part)
            # A row at the end still belongs to a session, so that is its event time.
            self._emit(part, starts, ends, np.maximum(ends, self._watermark_ns + 1), out)
            yield len(part)
