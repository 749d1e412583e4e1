"""Which files of a growing folder an instance has read, in bounded memory.

Files have an order, by name or by time. The last ones that were read are remembered by name. All
that come before them, up to the floor, count as read, but for those that are owed: they were there
when other instances went on, and nobody had read them. So a file that appears late, with an earlier
name, is read as long as the ones after it are remembered, and the memory does not grow.

Each file belongs to one instance, by a hash of its name.

Of the files that are remembered, and of those that were read last, it is also known what they were
like, so that another file of such a name is not taken for the one that was read.
"""

from __future__ import annotations

import errno
import hashlib
import os
from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice, zip_longest
from typing import Any, TypeAlias

__all__ = [
    "UNKNOWN",
    "FileKey",
    "FilesRead",
    "LastRead",
    "Like",
    "leads_nowhere",
    "like_of",
    "owner_of",
]

FileKey: TypeAlias = tuple[int, str]
"""What files are ordered by: the time of change in ns, 0 if they are ordered by name; the name."""

Like: TypeAlias = tuple[int, int]
"""What a file is told by from others of its name: size in bytes, time of change in ns."""

UNKNOWN: Like = (-1, 0)
"""No file is like this."""

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
        self._keys: dict[str, FileKey] = {}
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
        if key[1] in self._keys:
            return True
        return key[1] not in self._owed and self.floor is not None and key <= self.floor

    def is_late(self, key: FileKey) -> bool:
        """Return whether a file that has just appeared counts as read, and was not."""
        return self.has(key) and key[1] not in self._keys

    @property
    def remembered(self) -> Collection[str]:
        """The names of the files that are remembered."""
        return self._keys.keys()

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
        """Note that a file was read, or that one that was read has another time now."""
        self.forget(key[1])
        before = self._keys.get(key[1])
        if before == key:
            return
        if before is not None:
            del self._keys[key[1]]
            del self._remembered[bisect_left(self._remembered, before)]
        self._remember(key)

    def _remember(self, key: FileKey) -> None:
        if self.floor is not None and key <= self.floor:
            return
        insort(self._remembered, key)
        self._keys[key[1]] = key
        if len(self._remembered) > self._keeps:
            self.floor = self._remembered.pop(0)
            del self._keys[self.floor[1]]


class LastRead:
    """What files were like when they were read, to notice others of their names.

    Those that were read last are known, and those that are remembered, also when they are gone.

    Args:
        files: name, size in bytes and time of change in ns of each, and whether it was told that
            it is another one; the one read last at the end.
        remembered: the names that are remembered; maybe of files of which nothing else is known.
    """

    def __init__(self, files: Iterable[Sequence[Any]] = (), remembered: Iterable[str] = ()) -> None:
        self._likes: dict[str, Like] = dict.fromkeys(remembered, UNKNOWN)
        self._told = set(self._likes)
        for name, size, mtime_ns, *told in files:  # checkpoints of before have no `told`
            self.note(name, (size, mtime_ns), told=told == [True])

    @classmethod
    def divided(
        cls, olds: Iterable[Any], remembered: Iterable[str], instance: int, parallelism: int
    ) -> LastRead:
        """Return what one of `parallelism` instances knows from the `to_json` of old ones.

        Where they knew more files than one does, those stay that each has read last.
        """
        newest_first = zip_longest(*(reversed(old) for old in olds))
        known = [one for rank in newest_first for one in rank if one is not None]
        mine = [one for one in known if owner_of(one[0], parallelism) == instance]
        return cls(reversed(mine), remembered)

    def to_json(self) -> list[list[Any]]:
        """Return it as values of JSON."""
        return [[name, *like, name in self._told] for name, like in self._likes.items()]

    def __contains__(self, name: str) -> bool:
        return name in self._likes

    def note(self, name: str, like: Like, *, told: bool = False) -> None:
        """Note what a file is like that was read, or left out.

        Args:
            name: that of the file.
            like: what it is like.
            told: it was left out and counted, so its changes are not told any more.
        """
        self._likes.pop(name, None)  # to the end: it is the one read last
        self._likes[name] = like
        (self._told.add if told else self._told.discard)(name)

    def trim(self, remembered: Collection[str]) -> None:
        """Forget the files that were not read last, and are not remembered."""
        older = list(islice(self._likes, max(0, len(self._likes) - _WATCHED_FILES)))
        for name in older:
            if name not in remembered:
                del self._likes[name]
                self._told.discard(name)

    def to_compare(self, found: Mapping[str, FileKey], listed: Collection[str] | None) -> list[str]:
        """Return the names of the files whose likeness is to be looked at now.

        That takes a call for each, so it is not done for all at every look.

        Args:
            found: the files that are there.
            listed: the names that were there at the last look; None: this is the first one.
        """
        last = set(islice(reversed(self._likes), _WATCHED_FILES))
        return sorted(
            name
            for name in self._likes.keys() & found.keys()
            if name in last
            or listed is None
            or name not in listed
            or found[name][0] not in (0, self._likes[name][1])  # 0: files are ordered by name
        )

    def miss(self, found: Collection[str]) -> None:
        """Note which files are gone, so that it is told if others of their names appear."""
        self._told.intersection_update(found)

    def replace(self, name: str, now: Like) -> Like | None:
        """Take what a file is like now; return what it was like, if it is to be told.

        Of a file that was left out, and is still there, further changes are not told.
        """
        was = self._likes[name]
        if was == now:
            return None
        self._likes[name] = now
        if name in self._told:
            return None
        self._told.add(name)
        return was


def like_of(path: str) -> Like:
    """Return what a file is like now.

    Raises:
        OSError: it is gone, or out of reach.
    """
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def leads_nowhere(error: OSError) -> bool:
    """Return whether a path leads to no file: it is gone, or a link to nothing or to itself."""
    return error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def owner_of(name: str, parallelism: int) -> int:
    """Return the instance that reads a file; the same in every process and on every machine."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % parallelism


def _key_of(value: Sequence[Any]) -> FileKey:
    time_ns, name = value
    return time_ns, name
