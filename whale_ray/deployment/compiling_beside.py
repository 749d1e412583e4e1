"""Lets a second process compile a part of what a first job calls, where nothing is compiled yet.

Numba compiles one function at a time in a process, for ten seconds and more until the first row of
the first job on a machine. Another process then compiles a half of it meanwhile: what a job comes
to last, and takes longest. Whichever process comes first to a function compiles it, and the other
waits for it (`transport/compiling_in_turn.py`): nothing is compiled twice, and no job depends on
this process. It ends when it is done, and with the process that started it.

`python -m whale_ray.deployment.compiling_beside PID`: that process' id.
"""

from __future__ import annotations

import atexit
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
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


def compile_beside(launch: Launch = subprocess.Popen) -> None:
    """Start a process that compiles, if nothing is compiled and there is a processor for it.

    To be called before this process compiles what reads and writes messages, as every worker does:
    where that is kept, nothing is started.
    """
    called = payload.read_body
    is_alone = len(os.sched_getaffinity(0)) < 2
    if is_alone or not may_be_kept(called) or versions_are_kept(called):
        return
    from .processes.fork_server import child_environment

    # A process group of its own: Ctrl-C is for the job. What it printed would come unasked, and
    # who reads all that this process prints would wait for its end.
    process = launch(
        [sys.executable, "-m", __name__, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
        env=child_environment(),
    )
    atexit.register(_end, process, os.getpid())


def _end(process: subprocess.Popen[Any], parent: int) -> None:
    if os.getpid() == parent:  # not in what was forked from it
        process.kill()
        process.wait()


def compile_part(is_wanted: Callable[[], bool]) -> None:
    """Compile a half of what a job with keys calls, as long as `is_wanted` says so."""
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
    parent = int(sys.argv[1])
    compile_part(lambda: os.getppid() == parent)


if __name__ == "__main__":
    main()
