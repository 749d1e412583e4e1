"""Which records of a store have changed since a seal, as a thread finds out that writes them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from .sealed_records import SealedRecords

__all__ = ["ChangedRecords"]

Slots = npt.NDArray[np.int64]


class ChangedRecords:
    """The records that have changed in a segment, and in those of earlier changes."""

    def __init__(self, sealed: SealedRecords, earlier: Sequence[ChangedRecords] = ()) -> None:
        self.sealed = sealed
        self._earlier = tuple(earlier)
        self._counted = sealed.changes + sum(one.count for one in earlier)

    @property
    def count(self) -> int:
        """How many they are, or more as long as nobody has asked which ones."""
        known = vars(self).get("slots")
        return self._counted if known is None else len(known)

    def settle(self) -> None:
        """Find out what has changed, unless the thread that wrote it has: it is for later ones."""
        _ = self.slots

    @cached_property
    def slots(self) -> Slots:
        """The records, ascending: int64 (n,)."""
        return np.unique(
            np.concatenate([*(one.slots for one in self._earlier), self.sealed.changed()])
        )
