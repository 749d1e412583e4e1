"""`SessionWindows`: windows of activity of a key, which end with a gap.

A row opens a session, extends one, or, if it lies between two, merges them. Two rows of a key are
in one session if they are at most `gap` apart, as in Spark and Flink, whose windows [time, time +
gap) are merged where they touch. So a session has ended when the watermark has passed its end.

Sessions wait for their end in buckets of time. A session that was extended meanwhile is put into
a later bucket when its turn has come, so extending costs nothing.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...transport.compiling import njit
from ..process import Output
from .aggregation import Aggregation
from .grouping import LATE
from .row_windows import NO_WATERMARK_NS, RowWindows
from .slices import beyond_years
from .specifications import SessionWindow
from .window_pool import NONE

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch

__all__ = ["SessionWindows"]

Int64s = npt.NDArray[np.int64]

_BUCKETS_PER_GAP = 8
_LATEST_NS = (1 << 63) - 1


class SessionWindows(RowWindows):
    """Aggregates rows in sessions."""

    def __init__(self, aggregation: Aggregation) -> None:
        super().__init__(aggregation)
        assert isinstance(aggregation.window, SessionWindow)
        self._gap_ns = aggregation.window.gap_ns
        self._bucket_ns = max(1, self._gap_ns // _BUCKETS_PER_GAP)
        self._waiting: dict[int, list[Int64s]] = {}
        self._merges: list[Int64s] = []

    def on_watermark(self, watermark_ns: int, out: Output) -> None:
        """Emit the sessions that have ended."""
        self._end(watermark_ns, out)
        super().on_watermark(watermark_ns, out)

    def close(self, out: Output) -> None:
        """Emit all sessions: no row follows."""
        self._end(_LATEST_NS, out)

    def _assigned(self, batch: Batch, slots: Int64s, out: Output) -> tuple[Batch, Int64s]:
        pool, times = self.pool, batch.times
        assert times is not None  # checked while the topology was built
        highest_ns = _LATEST_NS - self._gap_ns
        if len(times) and (times.min() < -highest_ns or times.max() > highest_ns):
            beyond = (times < -highest_ns) | (times > highest_ns)
            raise beyond_years(batch, int(np.argmax(beyond)))
        windows = np.empty(len(times), np.int64)
        merges = np.empty((len(times), 2), np.int64)
        # A session that ends at the watermark or before takes no rows, if there is none to extend.
        closed_ns = NO_WATERMARK_NS
        if self._watermark_ns != NO_WATERMARK_NS:
            closed_ns = max(self._watermark_ns - self._gap_ns, NO_WATERMARK_NS)
        row = merged = 0
        while row < len(times):
            pool.take_spare(0)
            fields = [pool.field(name) for name in ("start", "last", "next", "group")]
            first = pool.key_field("first")
            row, used, merged = _assign(
                *(times, slots, first, *fields, self._gap_ns, closed_ns),
                *(pool.spare, row, windows, merges, merged),
            )
            self._wait(pool.spare[:used])
            pool.take_spare(used)
        self._merges.append(merges[:merged])
        late = windows == NONE
        if not late.any():
            return batch, windows
        out.emit_to(LATE, batch.filter(late))
        pool.drop_keys(slots[late])
        return batch.filter(~late), windows[~late]

    def _settle(self, out: Output) -> None:
        """Merge the sessions that rows of the batch have joined."""
        merges, self._merges = np.concatenate(self._merges), []
        groups = self.pool.groups
        for first, stop in _independent(merges):
            kept, joined = merges[first:stop, 0].copy(), merges[first:stop, 1].copy()
            with self._results.naming(partial(self.pool.keys_of, kept)):
                groups.merge(kept, groups, joined)
        if len(merges):
            self.pool.drop(merges[:, 1].copy())

    def _expect(self, windows: Int64s) -> None:
        self._wait(windows)

    def _forget(self) -> None:
        self._waiting.clear()
        super()._forget()

    def _wait(self, windows: Int64s) -> None:
        """Let sessions wait for their ends."""
        buckets = (self.pool.field("last")[windows] + self._gap_ns) // self._bucket_ns
        for bucket in np.unique(buckets).tolist():
            self._waiting.setdefault(bucket, []).append(windows[buckets == bucket])

    def _end(self, watermark_ns: int, out: Output) -> None:
        due = [bucket for bucket in self._waiting if bucket * self._bucket_ns <= watermark_ns]
        if not due:
            return
        waiting = [part for bucket in due for part in self._waiting.pop(bucket)]
        windows = np.unique(np.concatenate(waiting))
        pool = self.pool
        windows = windows[pool.field("group")[windows] != NONE]  # others were merged or emitted
        ends = pool.field("last")[windows] + self._gap_ns
        ended = ends <= watermark_ns
        self._wait(windows[~ended])
        windows, ends = windows[ended], ends[ended]
        if not len(windows):
            return
        starts = pool.field("start")[windows]
        order = np.lexsort((windows, starts, ends))
        windows, starts, ends = windows[order], starts[order], ends[order]
        fields = (pool.key_field("first"), pool.field("next"), pool.field("group"))
        _unlink(windows, *fields)
        # A row at the end still belongs to a session, so that is its event time.
        self._emit(windows, starts, ends, ends, out)


def _independent(merges: Int64s) -> list[tuple[int, int]]:
    """Cut merges, (into, from) in order, into runs without a session that is merged twice."""
    bounds, touched = [0], set[int]()
    for number, (into, gone) in enumerate(merges.tolist()):
        if into in touched or gone in touched:
            bounds.append(number)
            touched.clear()
        touched |= {into, gone}
    bounds.append(len(merges))
    return [(a, b) for a, b in itertools.pairwise(bounds) if a < b]


@njit(cache=True, nogil=True)
def _assign(
    times: Any,
    slots: Any,
    first: Any,
    start: Any,
    last: Any,
    following: Any,
    group: Any,
    gap: Any,
    closed: Any,
    spare: Any,
    row: Any,
    windows: Any,
    merges: Any,
    merged: Any,
) -> tuple[int, int, int]:
    """Put rows, from `row` on, into sessions of their keys; extend and merge these.

    Args:
        times, slots: event time and key of each row.
        first: a field of keys: the newest session.
        start, last, following, group: fields of sessions: bounds, the next one of the key, the key.
        gap: how far the rows of one session may be apart, ns.
        closed: a row at this time or before does not open a session.
        spare: sessions not in use.
        row: where to begin.
        windows: receives the session of each row, −1 for a row that is late.
        merges: receives pairs (into, from): the rows of the second session belong to the first.
        merged: how many pairs there are already.

    Returns:
        the row that needs a session while no spare one is left (all rows if none); how many spare
        ones were used; how many pairs there are.
    """
    used = 0
    for at in range(row, len(times)):
        time, key = times[at], slots[at]
        into = np.int64(NONE)
        before, session = np.int64(NONE), first[key]
        while session != NONE:
            after = following[session]
            if time - gap <= last[session] and start[session] <= time + gap:
                if into == NONE:
                    into = session
                    start[into] = min(start[into], time)
                    last[into] = max(last[into], time)
                    before = session
                else:
                    start[into] = min(start[into], start[session])
                    last[into] = max(last[into], last[session])
                    following[before] = after
                    merges[merged, 0] = into
                    merges[merged, 1] = session
                    merged += 1
            else:
                before = session
            session = after
        if into == NONE and time > closed:
            if used == len(spare):
                return at, used, merged
            into = spare[used]
            used += 1
            start[into] = last[into] = time
            group[into] = key
            following[into] = first[key]
            first[key] = into
        windows[at] = into
    return len(times), used, merged


@njit(cache=True, nogil=True)
def _unlink(windows: Any, first: Any, following: Any, group: Any) -> None:
    """Take windows out of the chains of their keys."""
    for number in range(len(windows)):
        window = windows[number]
        key = group[window]
        if first[key] == window:
            first[key] = following[window]
            continue
        before = first[key]
        while following[before] != window:
            before = following[before]
        following[before] = following[window]
