"""`Sessions`: windows of activity of a key, which end with a gap.

A row opens a session, extends one, or, if it lies between two, merges them. Two rows of a key are
in one session if they are at most `gap` apart, as in Spark and Flink, whose windows [time, time +
gap) are merged where they touch. So a session has ended when the watermark has passed its end. It
is kept for the allowed lateness beyond that: a late row may extend it, or merge it with another.

Sessions wait for their end in buckets of time. A session that was extended meanwhile is put into
a later bucket when its turn has come, so extending costs nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ...configs.units import NS_PER_US
from ...state.watermarks import EARLIEST_NS, LATEST_NS
from ...transport.compiling import njit
from .slices import beyond_years
from .window_pool import NONE, WindowPool

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch

__all__ = ["Sessions", "Waiting", "independent_runs", "merged_into"]

Int64s = npt.NDArray[np.int64]
Waiting: TypeAlias = Mapping[int, Sequence[Int64s]]
"""The sessions that wait in each bucket."""

_BUCKETS_PER_GAP = 8


class Sessions:
    """The sessions of all keys of one operator on one worker.

    Args:
        pool: where they are.
        gap_ns: how far the rows of one session may be apart.
        lateness_ns: for how long after its end a session takes late rows.
    """

    def __init__(self, pool: WindowPool, gap_ns: int, lateness_ns: int = 0) -> None:
        self._pool = pool
        self._gap_ns = gap_ns
        self._lateness_ns = lateness_ns
        self._bucket_ns = max(1, gap_ns // _BUCKETS_PER_GAP)
        self._waiting: dict[int, list[Int64s]] = {}

    def assign(self, batch: Batch, slots: Int64s, watermark_ns: int) -> tuple[Int64s, Int64s]:
        """Put rows into the sessions of their keys.

        Args:
            batch: the rows.
            slots: the slot of each row's key.
            watermark_ns: the watermark so far.

        Returns:
            windows: the session of each row, int64 (n,); NONE for a row that is late.
            merges: pairs (into, from), int64 (m, 2), in this order: all rows of the second session
                belong to the first. The caller frees the second one.

        Raises:
            BadRowError: a session would end after 2262, or begin before 1677.
        """
        pool, times = self._pool, batch.times
        assert times is not None  # checked while the topology was built
        highest_ns = LATEST_NS - self._gap_ns
        if len(times) and (times.min() < -highest_ns or times.max() > highest_ns):
            beyond = (times < -highest_ns) | (times > highest_ns)
            raise beyond_years(batch, int(np.argmax(beyond)))
        windows = np.empty(len(times), np.int64)
        merges = np.empty((len(times), 2), np.int64)
        closed_ns = self.closed_ns(watermark_ns)
        row = merged = 0
        while row < len(times):
            pool.take_spare(0)
            fields = [pool.field(name) for name in ("start", "last", "next", "group")]
            first = pool.key_field("first")
            row, used, merged = _assign(
                *(times, slots, first, *fields, self._gap_ns, closed_ns),
                *(pool.spare, row, windows, merges, merged),
            )
            self.wait(pool.spare[:used], watermark_ns)
            pool.take_spare(used)
        return windows, merges[:merged]

    def closed_ns(self, watermark_ns: int) -> int:
        """Return the time up to which a row is late: a session of it alone would be closed.

        So no session that is open begins before the last row of one that is closed.
        """
        return max(watermark_ns - self._lateness_ns - self._gap_ns, EARLIEST_NS)

    def starts_ns(self, windows: Int64s) -> Int64s:
        """Return when sessions start: the times of their first rows."""
        return self._pool.field("start")[windows]

    def ends_ns(self, windows: Int64s) -> Int64s:
        """Return when sessions end: a gap after their last rows."""
        return self._pool.field("last")[windows] + self._gap_ns

    def shown_bounds_ns(self, windows: Int64s) -> tuple[Int64s, Int64s]:
        """Return when sessions start and end as their results say it, in whole microseconds.

        An end is rounded up, and is the event time of the results, too. Else one with ns would be
        behind the end that its result names, where who groups by that end no longer expects it.
        """
        starts, ends = self.starts_ns(windows), self.ends_ns(windows)
        up = _later(ends, NS_PER_US - 1)
        return starts - starts % NS_PER_US, up - up % NS_PER_US

    def alive(self, windows: Int64s) -> Int64s:
        """Return those of these sessions that are still there, once each, by their ends."""
        windows = np.unique(windows)
        windows = windows[self._pool.field("group")[windows] != NONE]
        return windows[np.lexsort((windows, self.starts_ns(windows), self.ends_ns(windows)))]

    def wait(self, windows: Int64s, watermark_ns: int) -> None:
        """Let sessions wait for their ends; those that have ended, until they are closed."""
        due = self.ends_ns(windows)
        due = np.where(due > watermark_ns, due, _later(due, self._lateness_ns))
        buckets = due // self._bucket_ns
        for bucket in np.unique(buckets).tolist():
            parts = self._waiting.setdefault(bucket, [])
            parts.append(windows[buckets == bucket])
            while len(parts) > 1 and len(parts[-2]) <= len(parts[-1]):
                parts[-2:] = [np.concatenate(parts[-2:])]

    @property
    def waiting(self) -> Waiting:
        """The sessions that wait, as they do now; it does not change any more."""
        return {bucket: tuple(parts) for bucket, parts in self._waiting.items()}

    def wait_again(self, waiting: Waiting) -> None:
        """Let those sessions wait that did when that was `waiting`, and no others."""
        self._waiting = {bucket: list(parts) for bucket, parts in waiting.items()}

    def forget_waiting(self) -> None:
        """Let no session wait any more."""
        self._waiting.clear()

    def pass_watermark(self, before_ns: int, watermark_ns: int) -> tuple[Int64s, Int64s]:
        """Return what has ended and what is closed, as the watermark goes on.

        Args:
            before_ns: the watermark before.
            watermark_ns: the watermark now; the greatest int64 closes all sessions.

        Returns:
            ended: the sessions that have ended since, by their ends.
            closed: those that take no rows any more. The pool no longer links them to their keys;
                the caller frees them.
        """
        due = [bucket for bucket in self._waiting if bucket * self._bucket_ns <= watermark_ns]
        if not due:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        # Others than those that are alive were merged or closed.
        windows = self.alive(
            np.concatenate([w for bucket in due for w in self._waiting.pop(bucket)])
        )
        ends = self.ends_ns(windows)
        ended = (ends <= watermark_ns) & (ends > before_ns)
        closed = _later(ends, self._lateness_ns) <= watermark_ns
        self.wait(windows[~closed], watermark_ns)
        pool = self._pool
        pool.note_chains(pool.field("group")[windows[closed]])
        _unlink(windows[closed], pool.key_field("first"), pool.field("next"), pool.field("group"))
        return windows[ended], windows[closed]


def _later(times: Int64s, by_ns: int) -> Int64s:
    """Return times that much later, or the latest there is."""
    return np.minimum(times, LATEST_NS - by_ns) + by_ns


def independent_runs(merges: Int64s) -> list[tuple[int, int]]:
    """Cut merges, (into, from) in order, into runs without a session that is merged twice."""
    bounds, touched = [0], set[int]()
    for number, (into, gone) in enumerate(merges.tolist()):
        if into in touched or gone in touched:
            bounds.append(number)
            touched.clear()
        touched |= {into, gone}
    bounds.append(len(merges))
    return [(a, b) for a, b in itertools.pairwise(bounds) if a < b]


def merged_into(windows: Int64s, merges: Int64s) -> Int64s:
    """Return the session to which each of these belongs after merges, (into, from) in order."""
    if not len(merges):
        return windows
    final: dict[int, int] = {}
    for into, gone in reversed(merges.tolist()):  # what `into` is merged into is known already
        final[gone] = final.get(into, into)
    gone, kept = np.array(sorted(final.items()), np.int64).T
    at = np.minimum(np.searchsorted(gone, windows), len(gone) - 1)
    return np.where(gone[at] == windows, kept[at], windows)


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
        closed: a row at this time or before is late.
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
        if time <= closed:
            windows[at] = into
            continue
        before, session = np.int64(NONE), first[key]
        while session != NONE:
            after = following[session]
            if time - gap <= last[session] and start[session] <= time + gap:
                if into == NONE:
                    into = before = session
                else:
                    following[before] = after
                    merges[merged, 0], merges[merged, 1] = into, session
                    merged += 1
                start[into] = min(start[into], start[session], time)
                last[into] = max(last[into], last[session], time)
            else:
                before = session
            session = after
        if into == NONE:
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
