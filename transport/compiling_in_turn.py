"""Lets one process compile a function while others that need it wait, and then load what it kept.

The workers of a job begin at once and call the same functions. Each would compile them, and
machines with fewer processors than workers would take that many times longer.

A process that finds nothing kept locks one byte of a file in the folder of kept functions: which
byte, the function's name says. Locks of `fcntl.lockf` belong to a process, end with it, and are not
inherited by what it forks. Whoever has waited for too long, as for a process that is stopped in a
debugger, compiles the function itself; so does every process where the file cannot be locked.

Only the outermost of functions that call each other is locked, by a thread that holds numba's own
lock until it has unlocked it. So no two processes wait for each other, and a process has locked one
function at most: to close a file ends all locks that the process has on it.
"""

from __future__ import annotations

import fcntl
import os
import threading
from contextlib import suppress
from typing import Any, Final
from zlib import crc32

from numba.core.compiler_lock import global_compiler_lock

from .clock import SystemClock

__all__ = ["compile_in_turn"]

WAIT_MAX_NS: Final = 60_000_000_000
_POLL_NS: Final = 5_000_000
_FILE: Final = "whale-ray-compiling.lock"
_BYTES: Final = 1 << 31


class _Turn(threading.local):
    """What this thread compiles: within how many functions it is, and the file that it locked."""

    depth = 0
    locked: int | None = None


_turn = _Turn()


def compile_in_turn(dispatcher: Any) -> None:
    """Let other processes wait while this one compiles a dispatcher's function, and vice versa."""
    cache: Any = getattr(dispatcher, "_cache", None)
    if not hasattr(cache, "_cache_file"):
        return
    look, compile_version = cache.load_overload, dispatcher.compile
    at = crc32(cache._cache_file._index_name.encode()) % _BYTES

    def looks(signature: object, target: object) -> object:
        found = look(signature, target)
        if found is not None or _turn.depth != 1 or _turn.locked is not None:
            return found
        _turn.locked = _lock(cache.cache_path, at)
        return None if _turn.locked is None else look(signature, target)

    def compiles(signature: object) -> Any:
        with global_compiler_lock:
            _turn.depth += 1
            try:
                return compile_version(signature)
            finally:
                _turn.depth -= 1
                if not _turn.depth and _turn.locked is not None:
                    os.close(_turn.locked)  # this unlocks it
                    _turn.locked = None

    cache.load_overload, dispatcher.compile = looks, compiles


def _lock(folder: str, at: int) -> int | None:
    """Return the file in which a byte is locked now; None if there is none, or after a long wait.

    It may hold nothing: a byte beyond the end can be locked, too.
    """
    try:
        os.makedirs(folder, exist_ok=True)
        file = os.open(os.path.join(folder, _FILE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    clock = SystemClock()
    until_ns = clock.monotonic_ns() + WAIT_MAX_NS
    with suppress(OSError):  # the file system has no locks
        while clock.monotonic_ns() < until_ns:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, at)
            except (BlockingIOError, PermissionError):
                clock.sleep_ns(_POLL_NS)
            else:
                return file
    os.close(file)
    return None
