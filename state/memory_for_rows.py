"""`MemoryForRows`: memory of the state for rows that wait to be taken together.

It is taken from the records, which lie on the disk anyway; but not from the index, as far as that
is possible: an index on the disk costs each row more than fewer rows in a pass.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["MemoryForRows", "SetsAside"]

_SHARES = (2, 4, 8, 16)
"""The first of these parts of the memory for state for which there is room is taken."""
_LEFT_PART = 4
"""This part of what was taken is kept, even if the index goes to the disk for it."""


class SetsAside(Protocol):
    """State whose records can go to the disk to make room, as those of a `KeyedStore`."""

    @property
    def has_room_for_keys(self) -> bool:
        """See `KeyedStore.has_room_for_keys`."""

    def set_aside(self, nbytes: int) -> bool:
        """See `KeyedStore.set_aside`."""

    def give_back(self, nbytes: int) -> None:
        """See `KeyedStore.give_back`."""


class MemoryForRows:
    """Takes memory of one operator's state, and gives it back as the index needs it.

    Args:
        state: whose memory it is.
        limit_bytes: the worker's memory for state.
        bytes_min, bytes_max: less is of no use, and more is not taken.

    Attributes:
        nbytes: how much is taken.
    """

    def __init__(
        self, state: SetsAside, limit_bytes: int, *, bytes_min: int = 1, bytes_max: int
    ) -> None:
        self._state, self._bytes_min = state, bytes_min
        self._shares = [min(limit_bytes // one, bytes_max) for one in _SHARES]
        self._least_bytes = 0
        self.nbytes = 0

    def take(self) -> bool:
        """Take memory unless that is done; return whether there is any."""
        if self.nbytes:
            return True
        for share in self._shares:
            if share >= self._bytes_min and self._state.set_aside(share):
                self.nbytes = share
                self._least_bytes = max(share // _LEFT_PART, self._bytes_min)
                self.leave_room()
                return True
        return False

    def leave_room(self) -> None:
        """Give memory back as long as the index could not grow in what is left."""
        while not self._state.has_room_for_keys and self.nbytes // 2 >= self._least_bytes:
            given_back = self.nbytes - self.nbytes // 2
            self._state.give_back(given_back)
            self.nbytes -= given_back

    def close(self) -> None:
        """Give all memory back."""
        self._state.give_back(self.nbytes)
        self.nbytes = 0
