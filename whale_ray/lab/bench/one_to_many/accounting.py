"""Processor time of a job's processes on this machine, by their role.

The suite reads the kernel's account in /proc, so the processes need not report anything. They are
recognized by the names that the members of a job set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

__all__ = ["ROLES", "Role", "Spent", "find_members", "role_of", "spent"]

Role = Literal["source", "source's relay", "relays", "workers"]
ROLES: tuple[Role, ...] = ("source", "source's relay", "relays", "workers")

_PROC = Path("/proc")
_NAME = re.compile(r"whale (worker|relay) (\d+)")


@dataclass(frozen=True)
class Spent:
    """Processor time so far, in ns, by role."""

    by_role: Mapping[Role, int]

    @property
    def total_ns(self) -> int:
        """Of all."""
        return sum(self.by_role.values())

    @property
    def source_ns(self) -> int:
        """Of the source's host: the source's worker and its host's relay."""
        return self.by_role["source"] + self.by_role["source's relay"]

    def since(self, before: Spent) -> Spent:
        """Return the time spent since `before`."""
        return Spent({role: self.by_role[role] - before.by_role[role] for role in ROLES})


def role_of(name: str) -> Role | None:
    """Return the role of the process of a name; worker 0 and host 0 serve the source alone."""
    found = _NAME.match(name)
    if found is None:
        return None
    kind, number = found.groups()
    if kind == "worker":
        return "workers" if int(number) else "source"
    return "relays" if int(number) else "source's relay"


def find_members(root: int) -> dict[int, Role]:
    """Return the members of jobs among the descendants of process `root`, by process id."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            head, _, tail = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue  # it has just ended
        pid = int(entry.name)
        names[pid] = head.partition("(")[2]
        parents[pid] = int(tail.split()[1])
    members: dict[int, Role] = {}
    for pid, name in names.items():
        role = role_of(name)
        if role is not None and _descends(pid, root, parents):
            members[pid] = role
    return members


def _descends(pid: int, root: int, parents: Mapping[int, int]) -> bool:
    while pid in parents and pid != root:
        pid = parents[pid]
    return pid == root


def spent(members: Mapping[int, Role]) -> Spent:
    """Return the processor time of the members so far; one that has ended counts as 0."""
    by_role: dict[Role, int] = dict.fromkeys(ROLES, 0)
    for pid, role in members.items():
        by_role[role] += _ran_ns(pid)
    return Spent(by_role)


def _ran_ns(pid: int) -> int:
    ran_ns = 0
    try:
        for thread in (_PROC / str(pid) / "task").iterdir():
            ran_ns += int((thread / "schedstat").read_text().split()[0])
    except OSError:
        return ran_ns
    return ran_ns
