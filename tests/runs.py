"""Keeps test runs on one machine apart: a number and a temporary folder for each run, and locks.

The workers of one run (pytest-xdist) count as runs of their own here.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from whale_ray.operators.sinks.held_folders import FolderHold, remove_unless_held
from whale_ray.spark.java import PROCESS_OPTION
from whale_ray.testing.hosts.owners import has_ended

_VARIABLE = "WHALE_RAY_TEST_RUN"
"""Inherited by every process that a test starts, so that orphans are found as well."""


_RAY_PATIENCE = {
    "RAY_gcs_server_port_wait_time_s": "240",  # 30 by default
    "RAY_agent_register_timeout_ms": "240000",  # 30,000 by default; then the raylet ends
    "RAY_worker_register_timeout_seconds": "240",  # 60 by default
    "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "240",  # 60 by default
    "RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "240",  # 30 by default
}
"""How long Ray waits for its own processes to start: where many runs share a machine that is long,
and no test is about it."""

_FOLDER_PREFIX = "whale-test-"
"""Short, since the paths of Ray's sockets, which are below that folder, may have 107 bytes."""

COMM_BYTES = 15
"""The kernel keeps no more of a process' name."""

QUICK_JAVA = "-XX:TieredStopAtLevel=1"
"""Java compiles without optimizing: programs are so short in tests that this halves their time."""


def begin_run() -> None:
    """Give this process and those that it starts from now on a run number of their own.

    It also sets the time limits that Ray reads when it is imported.
    """
    os.environ[_VARIABLE] = uuid.uuid4().hex
    os.environ.update(_RAY_PATIENCE)


def options_of_sparks(folder: str) -> tuple[str, str]:
    """Return a variable of the environment, with the options of Spark's Java in a run.

    Sessions that tests start without whale-ray end together with the programs that started them,
    at any moment; so they need the options that whale-ray gives its own.
    """
    return "SPARK_SUBMIT_OPTS", f"{PROCESS_OPTION} -Djava.io.tmpdir={folder} {QUICK_JAVA}"


def is_of_this_run(pid: int) -> bool:
    """Return whether a process belongs to the same run as this one, or is this one."""
    if pid == os.getpid():
        return True  # /proc shows what it was started with
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # it ended meanwhile, or is another user's
        return False
    return f"{_VARIABLE}={os.environ[_VARIABLE]}".encode() in environment.split(b"\0")


def living(name: str) -> Iterator[psutil.Process]:
    """Find the live processes of this run whose name begins with a prefix.

    Only processes of that name are examined, so that this is fast: they may be about to end.
    """
    for command in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError, psutil.NoSuchProcess):  # others come and go
            if not command.read_text().startswith(name[:COMM_BYTES]):
                continue
            process = psutil.Process(int(command.parent.name))
            # A process of Ray writes its title over its environment.
            ours = is_of_this_run(process.pid) or any(
                is_of_this_run(parent.pid) for parent in process.parents()
            )
            if ours and not has_ended(process):
                yield process


def await_ends(processes: Iterable[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait for processes to end; return those that have not."""
    until_s = time.monotonic() + timeout_s
    while True:
        processes = [process for process in processes if not has_ended(process)]
        if not processes or time.monotonic() >= until_s:
            return processes
        psutil.wait_procs(processes, timeout=0.05)


def rest() -> None:
    """Leave the processors to what a test waits for, before it looks again."""
    threading.Event().wait(0.02)


@contextmanager
def alone_in(place: Path) -> Iterator[None]:
    """Hold a folder that all runs share; wait for another run's test, which has a time limit."""
    folder = os.open(place, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


@contextmanager
def temporary_folder() -> Iterator[str]:
    """Make a temporary folder for this run, which holds a lock on it, and remove it at the end."""
    hold = None
    while hold is None:  # another run has removed it before it was locked
        path = tempfile.mkdtemp(prefix=_FOLDER_PREFIX)
        hold = FolderHold.take(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        hold.close()


def remove_folders_of_dead_runs() -> None:
    """Remove the temporary folders that nobody has locked: their runs were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*"):
        remove_unless_held(str(folder))


def commands_below(process: psutil.Process) -> Iterator[str]:
    """Yield the command lines of all processes that a process has started, and these in turn."""
    for child in process.children(recursive=True):
        try:
            yield " ".join(child.cmdline())
        except psutil.Error:
            continue  # it has ended
