"""Looks for new partitions beside the worker's loop, which may not wait for a broker's answer.

It also shows that the cluster is there: a consumer whose partitions are quiet hears nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...transport.clock import Clock
    from .partitions import Partition

__all__ = ["PartitionWatch"]


class PartitionWatch:
    """Asks for all partitions again and again, each time in a thread of its own.

    Args:
        ask: returns all partitions; may block; raises `error_type`.
        error_type: of errors that may pass.
        clock: tells when to ask.
        every_ns: from one answer to the next question.
    """

    def __init__(
        self,
        ask: Callable[[], Sequence[Partition]],
        error_type: type[Exception],
        clock: Clock,
        every_ns: int,
    ) -> None:
        self._ask = ask
        self._error_type = error_type
        self._clock = clock
        self._every_ns = every_ns
        self._due_ns = clock.monotonic_ns() + every_ns
        self._thread: threading.Thread | None = None
        self._answer: Sequence[Partition] | None = None
        self._fails_since_ns: int | None = None
        self.error: Any = None
        """Why the last question had no answer; None if it had one."""

    def look(self) -> Sequence[Partition] | None:
        """Return all partitions if there is a new answer; ask if it is time. Never blocks."""
        if self._thread is not None:
            if self._thread.is_alive():
                return None
            self._thread = None
            self._due_ns = self._clock.monotonic_ns() + self._every_ns
            answer, self._answer = self._answer, None
            return answer
        if self._clock.monotonic_ns() >= self._due_ns:
            self._thread = threading.Thread(target=self._run, name="kafka-partitions", daemon=True)
            self._thread.start()
        return None

    @property
    def failing_ns(self) -> int:
        """For how long there has been no answer, 0 if the last question had one."""
        since_ns = self._fails_since_ns
        return 0 if since_ns is None else self._clock.monotonic_ns() - since_ns

    def close(self) -> None:
        """Wait for the present question, if any."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        try:
            self._answer = self._ask()
        except self._error_type as error:
            self.error = error.args[0]
            if self._fails_since_ns is None:
                self._fails_since_ns = self._clock.monotonic_ns()
        else:
            self.error, self._fails_since_ns = None, None
