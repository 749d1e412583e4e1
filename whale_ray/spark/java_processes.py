"""Start and end Java so that an interrupt at any moment leaves no process of Spark running.

Neither py4j nor RayDP tolerates an exception from a signal handler during a call: they lose the
process that they have just started, or mistake the response to one request for that to the next.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ..transport.clock import SystemClock

if TYPE_CHECKING:
    import psutil

T = TypeVar("T")

_JAVA_MARKS = (b"_PYSPARK_DRIVER_CONN_INFO_PATH=", b"_RAYDP_APPMASTER_CONN_INFO_PATH=")
"""Environment variables that pyspark and RayDP set only for the Java processes that they start."""

_PYTHON_MARK = b"PYTHON_WORKER_FACTORY_SECRET="
"""An environment variable that Spark sets only for the Python processes that it starts."""

_EXECUTOR_CLASS = b"io.ray.runtime.runner.worker.DefaultWorker"

_POLL_S = 0.05
_GIVE_UP_NS = 60_000_000_000
"""In a cluster that was not started here, an actor that starts Java ends by itself, but later."""


def start_apart(start: Callable[[], T]) -> T:
    """Call a function that starts Java in a new thread; return its result or raise its error.

    An interrupt arrives in the calling thread, which only waits; see `starting_apart`.
    """
    with starting_apart(start) as started:
        return started.result()


@contextmanager
def starting_apart(start: Callable[[], T]) -> Iterator[Future[T]]:
    """Call a function that starts Java in a new thread while the block runs.

    If an error or an interrupt leaves the block, all Java processes that the function has started
    or still starts are killed, which ends the call.
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
    """Stop a session at the end of the block; after an interrupt, kill Java and call `abandon`.

    At an interrupt Java may have work for an hour, and its connection may be in use.
    """
    try:
        yield
    except Exception:
        stop()
        raise
    except BaseException:
        kill_spark_processes()
        with suppress(Exception), warnings.catch_warnings(action="ignore"):  # Java does not answer
            abandon()
        raise
    else:
        stop()


def kill_spark_processes() -> None:
    """Kill Spark's Java and Python processes that this process, or a Ray that it started, runs.

    A Python worker ends by SIGHUP once its Java has ended, but not one that was forked just then,
    or whose function ignores it: it would compute for ever.
    """
    import psutil

    below = psutil.Process().children(recursive=True)
    workers = [process for process in below if _is_marked(process, _PYTHON_MARK)]
    for process in below:
        if _is_marked(process, *_JAVA_MARKS) or _is_executor(process):
            _kill(process)
    for process in workers:  # after Java, which would start others
        with suppress(psutil.NoSuchProcess):
            workers_of_it = process.children()
            for each in (process, *workers_of_it):
                _kill(each)


def _is_marked(process: psutil.Process, *marks: bytes) -> bool:
    """Return whether a process was started with one of these environment variables."""
    try:
        variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is another user's
        return False
    return any(variable.startswith(marks) for variable in variables)


def _is_executor(process: psutil.Process) -> bool:
    """Return whether a process is a Java worker of Ray; RayDP runs Spark's executors in these."""
    try:
        return _EXECUTOR_CLASS in Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _kill(process: psutil.Process) -> None:
    import psutil

    with suppress(psutil.NoSuchProcess):
        process.kill()


def _end_with_java(thread: threading.Thread) -> None:
    clock = SystemClock()
    until_ns = clock.monotonic_ns() + _GIVE_UP_NS
    while clock.monotonic_ns() < until_ns:
        with suppress(KeyboardInterrupt):  # a second Ctrl-C must not skip the clean-up
            kill_spark_processes()
            thread.join(_POLL_S)
            if not thread.is_alive():
                break
    kill_spark_processes()
