"""The names in a folder, listed again only when it may have changed.

A folder of many names takes long to list, its times do not. But they have steps: whatever is added
within the same step as the last listing does not change them. And there are file systems that do
not keep them up. So the folder is listed once in a while although they are the same, less and less
often.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..transport.clock import Clock

_PAUSE_MIN_NS = 50_000_000
_PAUSE_MAX_NS = 5_000_000_000


class FolderNames:
    """Follows the names in a folder, which need not be there."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._known: frozenset[str] = frozenset()
        self._path = path
        self._clock = clock
        self._state: tuple[int, ...] | None = None
        self._pause_ns = _PAUSE_MIN_NS
        self._list_ns = clock.monotonic_ns()

    def added(self) -> frozenset[str] | None:
        """Return the names that were not there at the last listing; None if it is not listed now.

        Raises:
            OSError: the folder cannot be read.
        """
        state = self._look()
        now_ns = self._clock.monotonic_ns()
        if state != self._state:
            self._pause_ns = _PAUSE_MIN_NS
        elif now_ns < self._list_ns:
            return None
        else:
            self._pause_ns = min(2 * self._pause_ns, _PAUSE_MAX_NS)
        self._state = state
        self._list_ns = now_ns + self._pause_ns
        before, self._known = self._known, self._listed()
        return self._known - before

    def _look(self) -> tuple[int, ...] | None:
        """Return what changes with the names; it is looked at before they are listed."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_nlink, found.st_mtime_ns

    def _listed(self) -> frozenset[str]:
        try:
            return frozenset(os.listdir(self._path))
        except FileNotFoundError:
            return frozenset()
