"""Runs the sides of a measurement concurrently, each in its own process.

Processes are forked, so that compiled functions are inherited. Each prepares itself, waits for the
others, and is timed on its own: wall time by the clock that all share, CPU time from the kernel's
account, read when all are done (a library's threads may still send after their own process has
finished).
"""

from __future__ import annotations

import multiprocessing
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self, TypeAlias

from ...testing.hosts.owners import end_with_parent
from ...transport.clock import SystemClock

Work: TypeAlias = Callable[[], object]
Role: TypeAlias = Callable[[], Work]
"""Prepares in its own process and returns the work that is timed."""

_CLOCK = SystemClock()
_START_TIMEOUT_S = 60.0
_WORK_TIMEOUT_S = 300.0


class ClosedAtExit:
    """A context manager that ends with `close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release what was created before the fork."""


@dataclass(frozen=True, slots=True)
class Timing:
    """One process's share of a measurement."""

    start_ns: int
    """On the clock that all processes share."""
    end_ns: int
    result: Any
    """The return value of the work."""
    cpu_ns: int = 0
    """CPU time of the process until all were done, system calls included."""


@dataclass(frozen=True, slots=True)
class Together:
    """The timings of concurrent processes, in the order of their roles."""

    timings: tuple[Timing, ...]

    @property
    def wall_ns(self) -> int:
        """From the first start to the last end."""
        starts = min(timing.start_ns for timing in self.timings)
        return max(timing.end_ns for timing in self.timings) - starts

    @property
    def cores(self) -> float:
        """CPU time of all per wall time."""
        return sum(timing.cpu_ns for timing in self.timings) / self.wall_ns


def run_together(roles: Sequence[Role]) -> Together:
    """Run each role in a process of its own; RuntimeError with the traceback if one fails."""
    context = multiprocessing.get_context("fork")
    processes = []
    connections: list[Connection] = []
    try:
        for role in roles:
            ours, theirs = context.Pipe()
            process = context.Process(target=_play, args=(role, theirs), daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            connections.append(ours)
        _gather(connections, _START_TIMEOUT_S)
        _send_all(connections, "go")
        timings = _gather(connections, _WORK_TIMEOUT_S)
        _send_all(connections, "account")
        cpu_ns = _gather(connections, _WORK_TIMEOUT_S)
        return Together(
            tuple(replace(timing, cpu_ns=cpu) for timing, cpu in zip(timings, cpu_ns, strict=True))
        )
    finally:
        for process, connection in zip(processes, connections, strict=True):
            connection.close()
            process.terminate()
            process.join()
            process.close()


@dataclass(frozen=True, slots=True)
class _Failure:
    """The answer of a process that failed."""

    traceback: str


def _play(role: Role, connection: Connection) -> None:
    # A compiled loop would spin for ever once its other side has ended.
    end_with_parent(signal.SIGKILL)
    try:
        work = role()
        connection.send("ready")
        connection.recv()
        before_ns = time.process_time_ns()
        start_ns = _CLOCK.monotonic_ns()
        result = work()
        connection.send(Timing(start_ns, _CLOCK.monotonic_ns(), result))
        connection.recv()
        connection.send(time.process_time_ns() - before_ns)
        connection.recv()  # until the driver has an answer from every process
    except EOFError:
        pass
    except Exception:  # noqa: BLE001 - whatever it was, the driver raises it
        connection.send(_Failure(traceback.format_exc()))


def _send_all(connections: Sequence[Connection], word: str) -> None:
    for connection in connections:
        connection.send(word)


def _gather(connections: Sequence[Connection], timeout_s: float) -> list[Any]:
    """Return one answer per process, in their order, as soon as all have answered."""
    answers: dict[Connection, Any] = {}
    while len(answers) < len(connections):
        ready = wait([c for c in connections if c not in answers], timeout_s)
        if not ready:
            msg = f"a process of the benchmark did not answer for {timeout_s:.0f} s"
            raise RuntimeError(msg)
        for connection in connections:
            if connection in ready:
                answers[connection] = _receive(connection)
    return [answers[connection] for connection in connections]


def _receive(connection: Connection) -> Any:
    try:
        answer = connection.recv()
    except EOFError as error:
        msg = "a process of the benchmark died"
        raise RuntimeError(msg) from error
    if isinstance(answer, _Failure):
        raise RuntimeError(answer.traceback)
    return answer
