"""What a worker tells of itself: counters of its operators, its load, its time without work.

Its loop writes them, and any thread reads them at any time, as they are, so that nobody waits for
the end of a turn. What operators are asked for, such as the gauges of a user's reader, is asked by
the loop alone, in the turn after somebody wanted to know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ..configs.errors import WhaleError
from ..metrics.counters import MemberCounters, RingLoad, TransportMetrics, cpu_time_ns
from ..metrics.loads import EdgeLoad, WorkerLoad

if TYPE_CHECKING:
    from ..tasks.stage_task import StageTask
    from ..transport.clock import Clock
    from .rings import RingSet
    from .stage_meter import StageMeter

__all__ = ["WorkerCounters"]


class WorkerCounters:
    """Those of worker `index`.

    `read` is called from any thread, all else by the loop; `wake` ends the loop's sleep.
    """

    def __init__(
        self, index: int, clock: Clock, meter: StageMeter, wake: Callable[[], None]
    ) -> None:
        self._index = index
        self._clock = clock
        self._meter = meter
        self._wake = wake
        self._tasks: Sequence[StageTask] = ()
        self._rings: RingSet | None = None
        self._is_asked = False
        self._failure: WhaleError | None = None
        self._turn_at_ns = 0  # when the turn under way began; 0 before the first, and at the end
        self._idle_since_ns: int | None = None
        self._idle_ns = 0

    def follow(self, tasks: Sequence[StageTask], rings: RingSet | None) -> None:
        """Tell of these tasks and rings from now on."""
        self._tasks, self._rings, self._failure = tasks, rings, None

    def begin_turn(self, now_ns: int) -> None:
        """Count the time since the last turn, as idle, or as blocked for tasks with full outputs.

        Raises:
            TransportError: a user's transport operator could not tell its counters.
        """
        elapsed_ns = now_ns - (self._turn_at_ns or now_ns)
        self._turn_at_ns = now_ns
        if self._idle_since_ns is not None:
            self._idle_ns += now_ns - self._idle_since_ns
            self._idle_since_ns = None
        for task in self._tasks:
            if task.blocked:
                task.count_blocked(elapsed_ns)
        if self._is_asked:
            self._update()

    def sleep_from(self, now_ns: int) -> None:
        """Count the time until the next turn as idle."""
        self._idle_since_ns = now_ns

    def end_turns(self) -> None:
        """Note that no turn is under way any more."""
        self._turn_at_ns = 0

    @property
    def is_asked(self) -> bool:
        """Whether the loop has not answered yet since somebody wanted to know."""
        return self._is_asked

    def last(self, attempt: int) -> MemberCounters:
        """Return the counters at the end, up to date; raises as `begin_turn`."""
        self._update()
        last = self._counters(attempt)
        self._check()
        return last

    def read(self, attempt: int) -> MemberCounters:
        """Return the counters of all local operators, and have them brought up to date."""
        self._is_asked = True
        with suppress(ValueError):  # another thread may be closing the board
            self._wake()
        return self._counters(attempt)

    def _update(self) -> None:
        """Ask the operators for what they do not count by themselves."""
        self._is_asked = False
        for task in self._tasks:
            task.update_metrics()
        self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _counters(self, attempt: int) -> MemberCounters:
        cpu_ns = cpu_time_ns()
        now_ns = self._clock.monotonic_ns()
        opened = self._rings
        rings: tuple[RingLoad, ...] = ()
        if opened is not None:
            with suppress(ValueError):  # another thread may be closing them
                rings = opened.loads()
        return MemberCounters(
            self._index,
            now_ns,
            cpu_ns,
            tuple(metrics for task in self._tasks for metrics in task.metrics),
            transports=() if opened is None else self._of_transports(opened),
            attempt=attempt,
            rings=rings,
            load=self._load(),
            turn_ns=now_ns - (self._turn_at_ns or now_ns),
        )

    def _of_transports(self, rings: RingSet) -> tuple[TransportMetrics, ...]:
        """Return the counters of users' transport operators; the loop fails if one of them does."""
        try:
            return rings.transports.metrics()
        except WhaleError as error:
            self._failure = error
            return ()

    def _load(self) -> WorkerLoad:
        sent: dict[int, EdgeLoad] = {}
        for task in self._tasks:
            for writer in task.writers:
                so_far = sent.get(writer.edge.id, EdgeLoad())
                sent[writer.edge.id] = so_far.plus(writer.sent)
        return WorkerLoad(self._index, self._meter.cpu_ns, sent, self._idle_ns)
