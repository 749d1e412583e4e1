"""Who owns the namespaces and folders of hosts, and what is taken away when the owner is gone.

All names of one `NamespaceHosts` begin with its mark, `whale-ray-PID-START-RANDOM`: the owning
process, when it was started (a process number is used again), and a random part.
"""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from ...configs.errors import ResourceError
from ...transport.clock import SystemClock
from .commands import ip

NAMESPACES = Path("/run/netns")
"""Where `ip netns` keeps the names."""

FOLDERS = Path("/tmp")
"""Where hosts keep files. Not TMPDIR: sockets are among them, and their paths end at 107 bytes."""

_MARK = re.compile(r"whale-ray-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]{4}(?=-|$)")
_END_TIMEOUT_NS = 10_000_000_000
_POLL_S = 0.05
_PR_SET_PDEATHSIG = 1
_C_LIBRARY = ctypes.CDLL(None)
_CLOCK = SystemClock()


def end_with_parent(number: int, parent: int | None = None) -> None:
    """Have the kernel send this process a signal when the one that started it is gone.

    To the kernel the parent is the thread that started it. What is called from `preexec_fn` names
    the `parent`: if that one was gone before the kernel was told, this process ends at once.
    """
    _C_LIBRARY.prctl(_PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def new_mark() -> str:
    """Return a mark of this process that no other object here has."""
    return f"whale-ray-{os.getpid()}-{_started(os.getpid())}-{secrets.token_hex(2)}"


def folder_of(mark: str) -> Path:
    """Return where the hosts of a mark keep files."""
    return FOLDERS / mark


def namespaces_of(mark: str) -> list[str]:
    """Return the names of the namespaces there are of a mark."""
    return sorted(path.name for path in _entries(NAMESPACES) if path.name.startswith(f"{mark}-"))


def processes_in(namespaces: Iterable[str]) -> list[psutil.Process]:
    """Return the processes within namespaces, other than this one."""
    inodes = set()
    for name in namespaces:
        with suppress(OSError):  # it is gone
            inodes.add(os.stat(NAMESPACES / name).st_ino)
    found = []
    for pid in psutil.pids():
        with suppress(OSError, psutil.NoSuchProcess):  # it ended meanwhile
            if pid != os.getpid() and os.stat(f"/proc/{pid}/ns/net").st_ino in inodes:
                found.append(psutil.Process(pid))
    return found


def kill_all_in(namespaces: Sequence[str]) -> None:
    """Kill what runs in namespaces and wait for it; raises ResourceError if it does not end."""
    deadline_ns = _CLOCK.monotonic_ns() + _END_TIMEOUT_NS
    alive = set(processes_in(namespaces))
    while alive:
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=_POLL_S)
        # Those in there again, too: what was killed may have started another.
        alive = {one for one in alive.union(processes_in(namespaces)) if not has_ended(one)}
        if alive and _CLOCK.monotonic_ns() > deadline_ns:
            pids = sorted(one.pid for one in alive)
            msg = f"killed, but not ended: processes {', '.join(map(str, pids))}"
            raise ResourceError(msg)


def has_ended(process: psutil.Process) -> bool:
    """Tell whether a process has ended, reaped or not: init may reap an orphan late, or never."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def remove(mark: str) -> None:
    """Kill what runs in the namespaces of a mark, then take them and its folder away.

    May be called twice, and when only a part is there.

    Raises:
        ResourceError: something could not be taken away; the message names it.
    """
    names = namespaces_of(mark)
    kill_all_in(names)
    for name in names:
        with suppress(ResourceError):  # judged by what is left
            ip("netns", "delete", name)
    shutil.rmtree(folder_of(mark), ignore_errors=True)
    if left := namespaces_of(mark):
        msg = f"cannot remove the network namespaces {', '.join(left)}"
        raise ResourceError(msg)


def sweep() -> list[str]:
    """Take away what owners that are gone have left; return their marks."""
    places = (*_entries(NAMESPACES), *_entries(FOLDERS))
    marks = {found[0]: found for path in places if (found := _MARK.match(path.name))}
    gone = sorted(
        mark for mark, found in marks.items() if _started(int(found["pid"])) != int(found["start"])
    )
    for mark in gone:
        remove(mark)
    return gone


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _started(pid: int) -> int:
    """Return when a process was started, in clock ticks since boot; 0 if it does not run."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])
