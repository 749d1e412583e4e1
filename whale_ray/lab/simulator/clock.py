"""Virtual time: a clock that stands still between events, and the queue that moves it.

Events at the same time happen in the order in which they were posted, so a run never depends on how
a heap breaks ties. Nothing here reads a real clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

_CANCELLED_MIN = 64
"""The queue is cleaned only once it has this many cancelled timers."""


class SimulatedClock:
    """The clock of a simulation, a `transport.clock.Clock`; only its event queue moves it."""

    __slots__ = ("now_ns",)

    def __init__(self, start_ns: int = 0) -> None:
        self.now_ns = start_ns
        """The virtual time in nanoseconds; written by the event queue alone."""

    def monotonic_ns(self) -> int:
        """Return the virtual time in nanoseconds."""
        return self.now_ns

    def wall_ns(self) -> int:
        """Return the virtual time in nanoseconds, read as time since 1970-01-01 UTC."""
        return self.now_ns

    def sleep_ns(self, duration_ns: int) -> NoReturn:
        """Refuse: a state machine must not block the simulation; it returns WakeAt instead."""
        msg = f"a simulated node cannot sleep for {duration_ns} ns: it returns WakeAt"
        raise RuntimeError(msg)


class Timer:
    """An event that can be cancelled until it happens."""

    __slots__ = ("_queue", "cancelled")

    def __init__(self, queue: EventQueue) -> None:
        """Only `EventQueue.timer` makes timers."""
        self._queue = queue
        self.cancelled = False
        """Whether it was cancelled or has happened."""

    def cancel(self) -> None:
        """Cancel the event; does nothing if it has happened."""
        if not self.cancelled:
            self.cancelled = True
            self._queue.note_cancelled()


_Entry: TypeAlias = tuple[int, int, Timer | None, Callable[..., object], tuple[Any, ...]]
"""Time, number (unique, so nothing after it is ever compared), timer, what to call, with what."""


class EventQueue:
    """Future events, by time and then by the order in which they were posted."""

    __slots__ = ("_cancelled", "_heap", "_number", "clock")

    def __init__(self, clock: SimulatedClock | None = None) -> None:
        """Begin with no events at the time of `clock`, by default 0."""
        self.clock = SimulatedClock() if clock is None else clock
        self._heap: list[_Entry] = []
        self._number = 0
        self._cancelled = 0

    def __len__(self) -> int:
        """Return the number of events that will happen."""
        return len(self._heap) - self._cancelled

    @property
    def next_ns(self) -> int | None:
        """When the next event happens; None if there is none."""
        heap = self._heap
        while heap:
            timer = heap[0][2]
            if timer is None or not timer.cancelled:
                return heap[0][0]
            heapq.heappop(heap)
            self._cancelled -= 1
        return None

    def post(self, time_ns: int, call: Callable[..., object], *arguments: Any) -> None:
        """Schedule `call(*arguments)` at `time_ns`; ValueError if that is in the past."""
        if time_ns < self.clock.now_ns:
            self._refuse(time_ns)
        self._number += 1
        heapq.heappush(self._heap, (time_ns, self._number, None, call, arguments))

    def timer(self, time_ns: int, call: Callable[..., object], *arguments: Any) -> Timer:
        """Do as `post`, and return a handle that can cancel it."""
        if time_ns < self.clock.now_ns:
            self._refuse(time_ns)
        timer = Timer(self)
        self._number += 1
        heapq.heappush(self._heap, (time_ns, self._number, timer, call, arguments))
        return timer

    def _refuse(self, time_ns: int) -> NoReturn:
        msg = f"an event at {time_ns} ns: it is {self.clock.now_ns} ns already"
        raise ValueError(msg)

    def run(self, until_ns: int, events_max: int, done: Callable[[], bool] | None = None) -> int:
        """Run at most `events_max` events, none after `until_ns`; return their number.

        Stops earlier once `done`, which is called before every event, returns True.
        """
        heap, clock, pop = self._heap, self.clock, heapq.heappop
        count = 0
        while heap and count < events_max and heap[0][0] <= until_ns:
            if done is not None and done():
                break
            time_ns, _, timer, call, arguments = pop(heap)
            if timer is not None:
                if timer.cancelled:
                    self._cancelled -= 1
                    continue
                timer.cancelled = True
            clock.now_ns = time_ns
            count += 1
            call(*arguments)
        return count

    def advance_to(self, time_ns: int) -> None:
        """Move the clock to `time_ns`; ValueError if an event is to happen before that."""
        due_ns = self.next_ns
        if time_ns < self.clock.now_ns or (due_ns is not None and due_ns < time_ns):
            msg = f"the clock at {self.clock.now_ns} ns cannot pass over {due_ns} to {time_ns} ns"
            raise ValueError(msg)
        self.clock.now_ns = time_ns

    def note_cancelled(self) -> None:
        """Count a cancelled timer; timers call this."""
        self._cancelled += 1
        if self._cancelled > _CANCELLED_MIN and self._cancelled * 2 > len(self._heap):
            # In place: `step` and `next_ns` may hold a reference while an event cancels timers.
            self._heap[:] = [
                entry for entry in self._heap if entry[2] is None or not entry[2].cancelled
            ]
            heapq.heapify(self._heap)
            self._cancelled = 0
