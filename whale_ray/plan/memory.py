"""The free memory of this machine, as the kernel reports it.

Rings are in anonymous shared memory (memfd). It is limited by the machine's available memory and by
the memory limit of this process' control group (container), which /proc/meminfo does not include.
Where rings must be named files instead, the free space of `/dev/shm` limits them too; containers
often have no more than 64 MiB of it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..configs.settings import Settings

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
SHM = Path("/dev/shm")


@dataclass(frozen=True)
class FreeMemory:
    """Free memory in bytes."""

    shm_free_bytes: int | None
    """The free space of `/dev/shm`; None if rings are not files there."""
    memory_free_bytes: int
    """How much can be allocated before the machine swaps or the control group kills a process."""


def probe_memory(
    *,
    named_segments: bool = False,
    proc: Path = PROC,
    cgroup: Path = CGROUP,
    shm: Path = SHM,
) -> FreeMemory:
    """Read the free memory of this machine, within the limits of this process' control group.

    Args:
        named_segments: whether rings will be named files in /dev/shm.
        proc: the proc file system.
        cgroup: the file system of control groups.
        shm: the folder of named segments.
    """
    free = _available_bytes(proc / "meminfo")
    for group in _group_folders(proc / "self" / "cgroup", cgroup):
        free = min(free, _group_free_bytes(group, free))
    return FreeMemory(_shm_free_bytes(shm) if named_segments else None, free)


def memory_for_rings(settings: Settings) -> FreeMemory:
    """Read the free memory, and the free space of /dev/shm if the settings put rings there."""
    return probe_memory(named_segments=settings.transport.segment_kind == "named")


def _shm_free_bytes(shm: Path) -> int:
    try:
        status = os.statvfs(shm)
    except FileNotFoundError:
        return 0
    return status.f_bavail * status.f_frsize


def _available_bytes(meminfo: Path) -> int:
    try:
        text = meminfo.read_text(encoding="ascii")
    except FileNotFoundError:  # not Linux: POSIX reports only the total memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return 0


def _group_folders(membership: Path, root: Path) -> list[Path]:
    """Return the folders of this process' memory control group and of all that contain it.

    A parent's limit binds as well. Inside a container the kernel may name a path that is not
    mounted there; the mounted root then stands for the group.
    """
    try:
        lines = membership.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers == "":
            base = root
        elif "memory" in controllers.split(","):
            base = root / "memory"
        else:
            continue
        inner = base / name.lstrip("/")
        folders += [base, *(path for path in (inner, *inner.parents) if base in path.parents)]
    return folders


def _group_free_bytes(group: Path, otherwise: int) -> int:
    """Return what a control group may still allocate; page cache it can drop counts as free."""
    for limit_name, usage_name, cache_name in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit = _number_in(group / limit_name)
        if limit is None:
            continue
        used = _number_in(group / usage_name) or 0
        droppable = _statistic(group / "memory.stat", cache_name)
        return max(0, limit - max(0, used - droppable))
    return otherwise


def _number_in(path: Path) -> int | None:
    """Return the number in a file; None for "max" or a missing file."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _statistic(path: Path, name: str) -> int:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.split()[:1] == [name]), 0)
