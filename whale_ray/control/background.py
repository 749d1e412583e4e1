"""Carries out calls that may take long, or hang, beside the controller's loop; waits are bounded.

On a virtual clock calls are carried out at once, so that a run is the same each time.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from ..configs.errors import OutputError
from ..configs.units import NS_PER_MS
from ..transport.clock import Clock, SystemClock

T = TypeVar("T")

POLL_NS = 2_000_000
"""How soon a loop that waits for a result asks for it; later ever more rarely."""

_RESULTS_MAX = 64


@dataclass(frozen=True)
class _Call(Generic[T]):
    """A call under way: what its failure means, and until when it is waited for.

    `start` begins it; None once it has begun.
    """

    number: int
    who: str
    failed: Callable[[BaseException], T]
    begun_ns: int
    deadline_ns: int
    awaited: bool
    start: Callable[[], None] | None = None

    def late(self) -> T:
        """Return what it means that it did not end in time."""
        waited_ms = (self.deadline_ns - self.begun_ns) // NS_PER_MS
        return self.failed(OutputError(f"{self.who} did not answer within {waited_ms:,} ms"))

    def asked_at_ns(self, now_ns: int) -> int:
        """Return when to ask for its result again: after half as long as it has taken so far."""
        if not self.awaited:
            return self.deadline_ns
        return min(now_ns + max(POLL_NS, (now_ns - self.begun_ns) // 2), self.deadline_ns)


def carry_out_within(call: Callable[[], object], who: str, timeout_s: float, clock: Clock) -> None:
    """Carry out a call in a thread of its own, and leave it behind if it hangs.

    Raises:
        OutputError: `who` did not answer in time.
        BaseException: what the call raised.
    """
    if not isinstance(clock, SystemClock):
        call()
        return
    raised: list[BaseException] = []

    def carry_out() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  # whatever a user's sink raises
            raised.append(error)

    thread = threading.Thread(target=carry_out, name=f"waits for {who}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if raised:
        raise raised[0]
    if thread.is_alive():
        msg = f"{who} did not answer within {timeout_s:.0f} s"
        raise OutputError(msg)


class Background(Generic[T]):
    """Carries out one call at a time of each kind, in a thread of its own.

    A call that is not through in time has failed. Further ones of its kind begin once it has
    returned, so that no two of them ever run beside each other; one whose turn does not come in
    time has failed, too.

    `wake` is called when a result is there, in the thread of its call.
    """

    def __init__(self, clock: Clock, wake: Callable[[], None] = lambda: None) -> None:
        self._clock = clock
        self._wake = wake
        self._in_threads = isinstance(clock, SystemClock)
        self._number = 0
        self._calls: dict[str, _Call[T]] = {}
        self._threads: dict[str, threading.Thread] = {}
        self._results: queue.Queue[tuple[str, int, Callable[[], T]]] = queue.Queue(_RESULTS_MAX)

    def begin(
        self,
        kind: str,
        call: Callable[[], T],
        failed: Callable[[BaseException], T],
        timeout_ns: int,
        *,
        who: str,
        awaited: bool = True,
    ) -> None:
        """Begin a call; `poll` returns what it returned, or what `failed` makes of its error.

        `who` is to answer: the error of a call that is not through in time names it. Nobody asks
        for the result of one that is not `awaited`: it comes with another call of `poll`.
        """
        assert kind not in self._calls, "its result is awaited"
        self._number += 1
        number = self._number
        now_ns = self._clock.monotonic_ns()

        def carry_out() -> None:
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001  # whatever a user's sink raises
                self._results.put((kind, number, partial(failed, error)))
            else:
                self._results.put((kind, number, lambda: result))
            if awaited:
                self._wake()

        def start() -> None:
            thread = threading.Thread(target=carry_out, name=f"checkpoints: {kind}", daemon=True)
            self._threads[kind] = thread
            thread.start()

        begun = _Call(number, who, failed, now_ns, now_ns + timeout_ns, awaited)
        if not self._in_threads:
            self._calls[kind] = begun
            carry_out()
        elif self._is_running(kind):
            self._calls[kind] = replace(begun, start=start)
        else:
            self._calls[kind] = begun
            start()

    def is_busy(self, kind: str) -> bool:
        """Whether a call of a kind is under way."""
        return kind in self._calls

    def poll(self) -> list[T]:
        """Return the results of the calls that have ended, or are late."""
        for kind, call in list(self._calls.items()):
            if call.start is not None and not self._is_running(kind):
                self._calls[kind] = replace(call, start=None)
                call.start()
        found = []
        while not self._results.empty():
            kind, number, result = self._results.get()
            awaited = self._calls.get(kind)
            if awaited is not None and awaited.number == number:
                del self._calls[kind]
                found.append(result())
        now_ns = self._clock.monotonic_ns()
        for kind, call in list(self._calls.items()):
            if now_ns >= call.deadline_ns:
                del self._calls[kind]
                found.append(call.late())
        return found

    def has_returned(self, kind: str, timeout_s: float) -> bool:
        """Wait until no call of a kind runs, forgotten ones included; return False if one does."""
        thread = self._threads.get(kind)
        if thread is not None:
            thread.join(timeout_s)
        return not self._is_running(kind)

    def forget(self) -> None:
        """Expect no results any more; the calls continue, and their results are dropped."""
        self._calls.clear()

    @property
    def next_due_ns(self) -> int | None:
        """When `poll` is to be called again; None while nothing is under way."""
        now_ns = self._clock.monotonic_ns()
        return min((call.asked_at_ns(now_ns) for call in self._calls.values()), default=None)

    def _is_running(self, kind: str) -> bool:
        thread = self._threads.get(kind)
        return thread is not None and thread.is_alive()
