"""What files were like when they had been read, in bounded memory.

A position says how many of the files, in reading order, an instance has passed, and keeps digests
of their names, sizes and times of change: one for each file while there are few, else one for each
group of files that follow one another. Files that nobody has come to may still change.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from ...configs.errors import InputError

__all__ = ["FilesPassed"]

_GROUPS_MAX = 64
_DIGEST_BYTES = 6

Likeness = tuple[str, int, int]
"""A file's name, size in bytes, and time of change in ns; -1 for one that is not there."""


class FilesPassed:
    """Follows one instance through the files, and notes what each was like when it was begun.

    Files between two that the instance reads belong to others; they count as passed, too.

    Args:
        files: all files, in reading order.
    """

    def __init__(self, files: Sequence[str]) -> None:
        self._files = files
        self._passed = 0
        self._digests: list[str] = []
        self._now: tuple[int, Likeness] | None = None

    @classmethod
    def of_positions(
        cls, files: Sequence[str], positions: Sequence[Mapping[str, Any]], remedy: str
    ) -> FilesPassed:
        """Check that files that were passed are as they were; return what all positions know.

        Raises:
            InputError: one has changed; the message ends with the remedy.
        """
        self = cls(files)
        known = [one for one in positions if one.get("passed")]
        for one in sorted(known, key=lambda one: int(one["passed"])):
            self._pass(one["passed"])
            for group, (then, now) in enumerate(zip(one["digests"], self._digests, strict=True)):
                if then != now:
                    raise InputError(self._changed(group, remedy))
        return self

    def begin(self, number: int) -> None:
        """Note that a file is begun, so those before it have been passed."""
        self._pass(number)
        if number >= self._passed:
            self._now = number, _likeness(self._files[number])

    def end(self) -> None:
        """Note that the file begun last has been passed."""
        if self._now is not None:
            self._pass(self._now[0] + 1)

    def facts(self) -> dict[str, Any]:
        """Return what a position says of them."""
        return {"passed": self._passed, "digests": self._digests}

    @property
    def _group_size(self) -> int:
        return -(-len(self._files) // _GROUPS_MAX)

    def _pass(self, stop: int) -> None:
        """Add the files before `stop` that have not been passed to the digests."""
        for number in range(self._passed, stop):
            noted, like = self._now or (None, None)
            if noted != number or like is None:
                like = _likeness(self._files[number])
            group = number // self._group_size
            before = "".join(self._digests[group:])
            digest = hashlib.blake2b(
                f"{before}/{like!r}".encode("utf-8", "surrogateescape"), digest_size=_DIGEST_BYTES
            )
            self._digests = [*self._digests[:group], digest.hexdigest()]  # the old list is kept
        self._passed = max(self._passed, stop)

    def _changed(self, group: int, remedy: str) -> str:
        first = group * self._group_size
        files = self._files[first : min(first + self._group_size, self._passed)]
        newest = max(files, key=lambda file: _likeness(file)[2])
        which = ""
        if len(files) > 1:
            which = f", or another of the {len(files):,} files from {files[0]!r} to {files[-1]!r},"
        return (
            f"{newest}{which} was read before the checkpoint, and has changed since: its size or "
            f"its time of change is another; {remedy}"
        )


def _likeness(path: str) -> Likeness:
    name = os.path.basename(path)
    try:
        found = os.stat(path)
    except OSError:
        return name, -1, -1  # others that read it say what is wrong
    return name, found.st_size, found.st_mtime_ns
