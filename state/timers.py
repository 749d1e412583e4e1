"""Timers of keys: a heap of (time, record), beside the times that the records hold; compiled.

The time in a record decides. The heap has at most one valid entry for it, whose time is in the
record, too (*queued*): it is no later than the record's time, so a timer that is moved back again
and again costs nothing until its entry comes up, and is then entered anew. Entries whose time is
not the queued one are out of date, and skipped.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from ..transport.atomics import inner, kernel, load, store
from .index import ALIVE, TYPE_PLACE, TYPE_SLOTS
from .store import KeyedStore

__all__ = ["NO_TIME", "TimerQueue"]

NO_TIME = int(np.iinfo(np.int64).max)
"""In a record: no timer is set. It is later than every time."""

_HEAP = numba.int64[:, ::1]


class TimerQueue:
    """The timers of one handle: the fields `name` and `queued` of a store's records."""

    def __init__(self, keyed: KeyedStore, name: str, queued: str) -> None:
        self._place = keyed.place
        self._queued = keyed.records[queued]
        self._words = (keyed.layout.word(name), keyed.layout.word(queued))
        self._heap = np.empty((64, 2), np.int64)
        self._size = 0

    def __len__(self) -> int:
        """Return the number of entries."""
        return self._size

    @property
    def earliest_ns(self) -> int | None:
        """The time of the first entry, which may be of no use any more."""
        return int(self._heap[0, 0]) if self._size else None

    def schedule(self, slots: npt.NDArray[np.int64]) -> None:
        """Enter the timers of these records as far as they are set and not entered yet."""
        if self._size + len(slots) > len(self._heap):
            grown = np.empty((2 * (self._size + len(slots)), 2), np.int64)
            grown[: self._size] = self._heap[: self._size]
            self._heap = grown
        self._size = _schedule(self._place, self._heap, self._size, *self._words, slots)

    def enter(self, slots: npt.NDArray[np.int64]) -> None:
        """Enter the timers of records that came from elsewhere, whatever these say of it."""
        self._queued[slots] = NO_TIME
        self.schedule(slots)

    def take_due(
        self, until_ns: int, at_most: int | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the records whose timers are at or before a time: slots, and slots without timer.

        The second ones had been entered and have no timer any more.

        Args:
            until_ns: the time.
            at_most: how many entries to look at, the earliest first; None: all.
        """
        room = self._size if at_most is None else min(self._size, at_most)
        due = np.empty(room, np.int64)
        unset = np.empty(room, np.int64)
        self._size, count, others = _take_due(
            self._place, self._heap, self._size, *self._words, until_ns, due, unset
        )
        return due[:count], unset[:others]


@inner
def _push(heap: Any, size: Any, time: Any, slot: Any) -> None:
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if heap[parent, 0] <= time:
            break
        heap[place, 0], heap[place, 1] = heap[parent, 0], heap[parent, 1]
        place = parent
    heap[place, 0], heap[place, 1] = time, slot


@inner
def _pop(heap: Any, size: Any) -> None:
    """Drop the first of `size` entries: the last one sinks from its place."""
    last = size - 1
    time, slot = heap[last, 0], heap[last, 1]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= last:
            break
        if child + 1 < last and heap[child + 1, 0] < heap[child, 0]:
            child += 1
        if heap[child, 0] >= time:
            break
        heap[place, 0], heap[place, 1] = heap[child, 0], heap[child, 1]
        place = child
    heap[place, 0], heap[place, 1] = time, slot


@kernel(
    numba.int64(TYPE_PLACE, _HEAP, numba.int64, numba.int64, numba.int64, TYPE_SLOTS),
    releases_gil=True,
)
def _schedule(
    place: Any, heap: Any, size: Any, timer_word: Any, queued_word: Any, slots: Any
) -> Any:
    for row in range(len(slots)):
        record = place[0] + slots[row] * place[1]
        time, queued = load(record + 8 * timer_word), load(record + 8 * queued_word)
        if time < queued:
            _push(heap, size, time, slots[row])
            size += 1
            store(record + 8 * queued_word, time)
    return size


@kernel(
    numba.types.UniTuple(numba.int64, 3)(
        *(TYPE_PLACE, _HEAP, numba.int64, numba.int64, numba.int64, numba.int64),
        *(numba.int64[::1], numba.int64[::1]),
    ),
    releases_gil=True,
)
def _take_due(
    place: Any,
    heap: Any,
    size: Any,
    timer_word: Any,
    queued_word: Any,
    until: Any,
    due: Any,
    unset: Any,
) -> Any:
    count, others, looked_at = 0, 0, 0
    while size > 0 and heap[0, 0] <= until and looked_at < len(due):
        looked_at += 1
        entered, slot = heap[0, 0], heap[0, 1]
        _pop(heap, size)
        size -= 1
        record = place[0] + slot * place[1]
        if (load(record + 8) & 0xFF) != ALIVE or load(record + 8 * queued_word) != entered:
            continue
        time = load(record + 8 * timer_word)
        store(record + 8 * queued_word, NO_TIME)
        if time == NO_TIME:
            unset[others] = slot
            others += 1
        elif time <= until:
            due[count] = slot
            count += 1
        else:
            _push(heap, size, time, slot)
            size += 1
            store(record + 8 * queued_word, time)
    return size, count, others
