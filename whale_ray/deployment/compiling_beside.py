"""Lets a second process compile a part of what a first job calls, where nothing is compiled yet.

Numba compiles one function at a time in a process, for ten seconds and more until the first row of
the first job on a machine. Another process then compiles a part of it meanwhile: what a job comes
to last, and takes longest. Whichever process comes first to a function that is called from Python
compiles it, and the other waits for it (`transport/compiling_in_turn.py`). A job runs without this
process as well. It ends when it is done, or with the process that started it; if that was killed,
behind the function at hand.

`python -m whale_ray.deployment.compiling_beside PID`: that process' id.
"""

from __future__ import annotations

import atexit
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from ..transport.kept_functions import may_be_kept, versions_are_kept
from ..transport.wire import payload

__all__ = ["compile_beside"]

_FUNCTIONS = (
    ("..state.index", "find_or_insert"),
    ("..state.keys", "_counting_sort"),
    ("..operators.event_time_kernels", "scale_times"),
    ("..state.index_kernels", "rehash"),
    ("..state.index_kernels", "scan"),
)
"""Modules and functions of declared types that most jobs with keys call, slow ones first."""

Launch = Callable[..., "subprocess.Popen[Any]"]
"""Starts a process; called like `subprocess.Popen`."""

_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_OOM_SCORE = Path("/proc/self/oom_score_adj")

_started: list[subprocess.Popen[Any]] = []
"""What this process has started: one at most, even if that could keep nothing."""


def compile_beside(launch: Launch = subprocess.Popen) -> None:
    """Start a process that compiles, if nothing is compiled and there is a processor for it.

    To be called before this process compiles what reads and writes messages, as every worker does:
    where that is kept, nothing is started. Nor is it a second time.
    """
    for process in _started:
        process.poll()  # it may have ended since
    called = payload.read_body
    if _started or called.overloads or _processors() < 2:
        return
    if not may_be_kept(called) or versions_are_kept(called):
        return
    if not sys.executable or getattr(sys, "frozen", False):  # that is another program than Python
        return
    from .processes.fork_server import child_environment

    # A process group of its own: Ctrl-C is for the job. What it printed would come unasked, and
    # who reads all that this process prints would wait for its end.
    with suppress(OSError):  # as where no more processes are allowed
        process = launch(
            [sys.executable, "-P", "-m", __name__, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
            env=child_environment(),
        )
        _started.append(process)
        atexit.register(_end, process, os.getpid())


def _processors() -> float:
    """Return how many processors this process may use at once, as a container limits them."""
    allowed = len(os.sched_getaffinity(0))
    try:
        quota, period = _CPU_QUOTA.read_text().split()
        return min(allowed, int(quota) / int(period))
    except (OSError, ValueError):  # there is no such file, or it says "max"
        return allowed


def _end(process: subprocess.Popen[Any], parent: int) -> None:
    if os.getpid() == parent:  # not in what was forked from it
        process.kill()
        process.wait()


def compile_part(is_wanted: Callable[[], bool]) -> None:
    """Compile a part of what a job with keys calls, as long as `is_wanted` says so."""
    if is_wanted():
        _rearrange_rows()
    for module, name in _FUNCTIONS:
        if not is_wanted():
            return
        getattr(import_module(module, __package__), name).compile_now()


def _rearrange_rows() -> None:
    """Call what copies rows and takes some of them; the types of its arguments are not declared."""
    import numpy as np

    from ..transport.wire.batch import Batch

    Batch.from_pydict({"flag": np.array([True, False])}).copy().take(np.array([1, 0]))


def main() -> None:
    """Compile as long as the process lives whose id is the argument."""
    gc.disable()  # it ends soon, and looking for garbage takes a twentieth of the time
    with suppress(OSError):
        _OOM_SCORE.write_text("1000")  # where memory is short, this process ends and not the job's
    parent = int(sys.argv[1])
    compile_part(lambda: os.getppid() == parent)


if __name__ == "__main__":
    main()
