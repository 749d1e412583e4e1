"""Work in a process of its own whose memory the kernel limits, pages of files included.

The limit is a control group (version 1 or 2) below the one in which this process is; making one
takes privileges, and a kernel that lets them. A process that is killed meanwhile leaves its group
behind, without processes once its work has ended: the next one removes it.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["NoLimitError", "run_within"]

_GROUPS = Path("/sys/fs/cgroup")
_PREFIX = "whale-ray-"
_FORK = multiprocessing.get_context("fork")


class NoLimitError(Exception):
    """The kernel does not let this process limit memory; the message says why."""


def run_within(nbytes: int, work: Callable[[], Any]) -> Any:
    """Return what `work` returns in a forked process that may take so much more memory.

    Raises:
        NoLimitError: there can be no such process.
        RuntimeError: the process ended without a result.
    """
    above, limit = _own_group()
    _remove_left_groups(above)
    group = above / f"{_PREFIX}{os.getpid()}"
    receiving, sending = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_work, args=(group, work, sending))
    try:
        group.mkdir()
        (group / limit).write_text(str(nbytes))
        process.start()
        sending.close()
        result = receiving.recv()
    except OSError as error:
        msg = f"{group}: {error.strerror}"
        raise NoLimitError(msg) from None
    except EOFError:
        msg = f"a process with {nbytes >> 20} MiB of memory ended without a result"
        raise RuntimeError(msg) from None
    finally:
        if process.pid is not None:
            process.join()
        if group.is_dir():
            group.rmdir()
    return result


def _remove_left_groups(above: Path) -> None:
    """Remove the groups of processes that have ended; a group with processes in it stays."""
    for group in above.glob(f"{_PREFIX}*"):
        if not Path("/proc", group.name.removeprefix(_PREFIX)).exists():
            with suppress(OSError):
                group.rmdir()


def _work(group: Path, work: Callable[[], Any], sending: Any) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))
    sending.send(work())


def _own_group() -> tuple[Path, str]:
    """Return the control group of this process, and the name of the file with its limit."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            return _GROUPS / "memory" / path.lstrip("/"), "memory.limit_in_bytes"
        if not controllers and (_GROUPS / "cgroup.controllers").exists():
            return _GROUPS / path.lstrip("/"), "memory.max"
    msg = "no control groups for memory"
    raise NoLimitError(msg)
