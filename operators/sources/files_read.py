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
from typing import Any, TypeAlias

__all__ = ["FileKey", "FilesRead", "SizesRead", "owner_of"]

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


class SizesRead:
    """The sizes of the files that were read last: one that grows was not complete."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def note(self, path: str, size: int) -> None:
        """Note the size of a file that was read."""
        self._sizes[path] = size
        if len(self._sizes) > _WATCHED_FILES:
            del self._sizes[next(iter(self._sizes))]

    def grown(self) -> list[str]:
        """Return the paths of files that have grown, each once."""
        grown: list[str] = []
        for path, size in list(self._sizes.items()):
            try:
                now = os.stat(path).st_size
            except OSError:
                now = -1  # moved away
            if now > size:
                grown.append(path)
            if now > size or now < 0:
                del self._sizes[path]
        return grown


def owner_of(name: str, parallelism: int) -> int:
    """Return the instance that reads a file; the same in every process and on every machine."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % parallelism


def _key_of(value: Sequence[Any]) -> FileKey:
    time_ns, name = value
    return time_ns, name
