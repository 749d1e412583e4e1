"""Starting and ending Java so that an interrupt at any moment leaves no process of it.

Neither py4j nor RayDP stand an exception from a signal handler amid a call: they lose the process
that they have just started, or take the answer to one question for that to the next.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from ..transport.clock import SystemClock

T = TypeVar("T")

_MARKS = (b"_PYSPARK_DRIVER_CONN_INFO_PATH=", b"_RAYDP_APPMASTER_CONN_INFO_PATH=")
"""Variables that pyspark and RayDP give to the Java processes that they start, and to no others."""

_POLL_S = 0.05
_GIVE_UP_NS = 60_000_000_000
"""On a Ray of others an actor that is starting Java ends by itself, but not at once."""


def start_apart(start: Callable[[], T]) -> T:
    """Call, in a thread of its own, what starts Java; return what it returns, raise what it raises.

    An interrupt finds the calling thread, which waits; see `starting_apart`.
    """
    with starting_apart(start) as started:
        return started.result()


@contextmanager
def starting_apart(start: Callable[[], T]) -> Iterator[Future[T]]:
    """Call, in a thread of its own, what starts Java, while the block runs.

    If an error or an interrupt leaves the block, the Java processes end that have come up, and that
    come up meanwhile, and with them the call.
    """
    future: Future[T] = Future()

    def call() -> None:
        try:
            future.set_result(start())
        except BaseException as error:  # noqa: BLE001  # raised again in the calling thread
            future.set_exception(error)

    thread = threading.Thread(target=call, name="Spark's start", daemon=True)
    try:
        thread.start()
        yield future
    except BaseException:
        _end_with_java(thread)
        raise


@contextmanager
def stopped_afterwards(stop: Callable[[], None], abandon: Callable[[], None]) -> Iterator[None]:
    """Stop a session on leaving the block; where an interrupt leaves it, end Java and `abandon` it.

    Java may then be amid an hour of work, and the connection to it amid an answer.
    """
    try:
        yield
    except Exception:
        stop()
        raise
    except BaseException:
        end_javas()
        with suppress(Exception), warnings.catch_warnings(action="ignore"):  # Java does not answer
            abandon()
        raise
    else:
        stop()


def end_javas() -> None:
    """Kill the Java processes that this process, or a Ray that it started, runs for Spark."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        with suppress(OSError, psutil.NoSuchProcess):  # it ended, or is another user's
            variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            if any(variable.startswith(_MARKS) for variable in variables):
                process.kill()


def _end_with_java(thread: threading.Thread) -> None:
    clock = SystemClock()
    until_ns = clock.monotonic_ns() + _GIVE_UP_NS
    while clock.monotonic_ns() < until_ns:
        with suppress(KeyboardInterrupt):  # who asks again is not faster
            end_javas()
            thread.join(_POLL_S)
            if not thread.is_alive():
                break
    end_javas()
