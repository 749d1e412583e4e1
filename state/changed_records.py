"""Which records of a store have changed since a seal, as a thread finds out that writes them."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .sealed_records import SealedRecords

__all__ = ["ChangedRecords"]

Slots = npt.NDArray[np.int64]


class ChangedRecords:
    """The records that have changed in a segment, and in those of earlier changes.

    Earlier ones are let go once it is known which they are: each merge of versions would keep all
    that were ever merged.
    """

    def __init__(self, sealed: SealedRecords, earlier: Sequence[ChangedRecords] = ()) -> None:
        self.sealed = sealed
        self._earlier = tuple(earlier)
        self._counted = sealed.changes + sum(one.count for one in earlier)
        self._slots: Slots | None = None
        self._finding = threading.Lock()  # the loop and the thread that writes may both ask

    @property
    def count(self) -> int:
        """How many they are, or more as long as nobody has asked which ones."""
        return self._counted if self._slots is None else len(self._slots)

    def settle(self) -> None:
        """Find out what has changed, unless the thread that wrote it has: it is for later ones."""
        _ = self.slots

    @property
    def slots(self) -> Slots:
        """The records, ascending: int64 (n,)."""
        with self._finding:
            if self._slots is None:
                earlier = [one.slots for one in self._earlier]
                self._slots = np.unique(np.concatenate([*earlier, self.sealed.changed()]))
                self._earlier = ()
            return self._slots
