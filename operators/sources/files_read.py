"""Which files of a growing folder an instance has read, in bounded memory.

Files have an order, by name or by time. The last ones that were read are remembered by name. All
that come before them, up to the floor, count as read, but for those that are owed: they were there
when other instances went on, and nobody had read them. So a file that appears late, with an earlier
name, is read as long as the ones after it are remembered, and the memory does not grow.

Each file belongs to one instance, by a hash of its name.
"""

from __future__ import annotations

import hashlib
import os
from bisect import insort
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, TypeAlias

__all__ = ["FileKey", "FilesRead", "LastRead", "owner_of"]

FileKey: TypeAlias = tuple[int, str]
"""What files are ordered by: the time of change in ns, 0 if they are ordered by name; the name."""

_WATCHED_FILES = 100


class FilesRead:
    """The files that one instance has read.

    Args:
        keeps: how many are remembered by name.
        floor: files up to this one count as read; None: there is none.
        remembered: those after the floor that were read.
        owed: those that were not, though they may come before the floor.
    """

    def __init__(
        self,
        keeps: int,
        floor: FileKey | None = None,
        remembered: Iterable[FileKey] = (),
        owed: Iterable[FileKey] = (),
    ) -> None:
        self._keeps = keeps
        self.floor = floor
        self._remembered: list[FileKey] = []
        self._names: set[str] = set()
        self._owed = {name: (time_ns, name) for time_ns, name in owed}
        for key in remembered:
            self._remember(key)

    @classmethod
    def from_json(cls, value: dict[str, Any], keeps: int) -> FilesRead:
        """Return what `to_json` described."""
        floor = value["floor"]
        read, owed = (map(_key_of, value[name]) for name in ("read", "owed"))
        return cls(keeps, None if floor is None else _key_of(floor), read, owed)

    def to_json(self) -> dict[str, Any]:
        """Return it as values of JSON."""
        return {
            "floor": self.floor and list(self.floor),
            "read": [list(key) for key in self._remembered],
            "owed": [list(key) for key in self._owed.values()],
        }

    @classmethod
    def divided(
        cls,
        olds: Sequence[FilesRead],
        listed: Iterable[FileKey],
        begun: Iterable[str],
        instance: int,
        parallelism: int,
    ) -> FilesRead:
        """Return what one of `parallelism` instances knows of its files from all old instances.

        Args:
            olds: of every old instance, in order.
            listed: the instance's files that are there now.
            begun: the names of files of which a part was read.
            instance: the new instance.
            parallelism: the number of new instances.
        """
        floor = max((old.floor for old in olds if old.floor is not None), default=None)
        mine = [
            key
            for old in olds
            for key in old._remembered
            if owner_of(key[1], parallelism) == instance
        ]
        made = cls(olds[0]._keeps, floor, mine)
        if made.floor is not None:
            known = [key for old in olds for key in old._owed.values()]
            partly = set(begun)
            for key in (*known, *listed):
                name = key[1]
                before = olds[owner_of(name, len(olds))]
                is_mine = owner_of(name, parallelism) == instance
                if is_mine and key <= made.floor and name not in partly and not before.has(key):
                    made.owe(key)
        return made

    def has(self, key: FileKey) -> bool:
        """Return whether a file was read, or counts as read."""
        if key[1] in self._names:
            return True
        return key[1] not in self._owed and self.floor is not None and key <= self.floor

    def is_late(self, key: FileKey) -> bool:
        """Return whether a file that has just appeared counts as read, and was not."""
        return self.has(key) and key[1] not in self._names

    @property
    def owed(self) -> frozenset[str]:
        """The names of files that were not read though they may come before the floor."""
        return frozenset(self._owed)

    def owe(self, key: FileKey) -> None:
        """Note that a file is not read though files after it may be."""
        self._owed[key[1]] = key

    def forget(self, name: str) -> None:
        """Owe a file no more."""
        self._owed.pop(name, None)

    def add(self, key: FileKey) -> None:
        """Note that a file was read."""
        self.forget(key[1])
        self._remember(key)

    def _remember(self, key: FileKey) -> None:
        if self.floor is not None and key <= self.floor:
            return
        insort(self._remembered, key)
        self._names.add(key[1])
        if len(self._remembered) > self._keeps:
            self.floor = self._remembered.pop(0)
            self._names.discard(self.floor[1])


class LastRead:
    """What the files that were read last were like then, to notice those that are others since.

    Args:
        files: name, size in bytes and time of change in ns of each, the one read last at the end.
    """

    def __init__(self, files: Iterable[tuple[str, int, int]] = ()) -> None:
        self._files: dict[str, tuple[int, int]] = {}
        for name, size, mtime_ns in files:
            self.note(name, size, mtime_ns)

    @classmethod
    def divided(cls, olds: Iterable[Any], instance: int, parallelism: int) -> LastRead:
        """Return what one of `parallelism` instances knows from the `to_json` of old ones.

        Where they knew more files than one does, those stay that each has read last.
        """
        newest_first = zip_longest(*(reversed(old) for old in olds))
        known = [one for rank in newest_first for one in rank if one is not None]
        mine = [(n, s, t) for n, s, t in known if owner_of(n, parallelism) == instance]
        return cls(reversed(mine))

    def to_json(self) -> list[list[Any]]:
        """Return it as values of JSON."""
        return [[name, *like] for name, like in self._files.items()]

    def note(self, name: str, size: int, mtime_ns: int) -> None:
        """Note what a file was like that was read."""
        self._files[name] = size, mtime_ns
        if len(self._files) > _WATCHED_FILES:
            del self._files[next(iter(self._files))]

    def changed(self, folder: str) -> list[tuple[str, bool]]:
        """Return the names of files that are others now, each once, and whether they have grown."""
        changed: list[tuple[str, bool]] = []
        for name, (size, mtime_ns) in list(self._files.items()):
            try:
                now = os.stat(os.path.join(folder, name))
            except OSError:
                del self._files[name]  # moved away
                continue
            if (now.st_size, now.st_mtime_ns) != (size, mtime_ns):
                changed.append((name, now.st_size > size))
                del self._files[name]
        return changed


def owner_of(name: str, parallelism: int) -> int:
    """Return the instance that reads a file; the same in every process and on every machine."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % parallelism


def _key_of(value: Sequence[Any]) -> FileKey:
    time_ns, name = value
    return time_ns, name
