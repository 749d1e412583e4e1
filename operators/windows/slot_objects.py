"""`SlotObjects`: Python objects by slot, indexed as a numpy array of objects would be."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["SlotObjects"]


class SlotObjects:
    """The objects of one field; a slot without one holds None.

    Slots are positions in a log that reserves far more addresses than it uses, so the objects are
    in a mapping, not in an array of that length.
    """

    __slots__ = ("_objects",)

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}

    def __getitem__(self, slots: int | npt.NDArray[np.int64]) -> Any:
        """Return the object of a slot, or those of an array of slots, object (n,)."""
        if not isinstance(slots, np.ndarray):
            return self._objects.get(int(slots))
        found = np.empty(len(slots), object)
        get = self._objects.get
        for row, slot in enumerate(slots.tolist()):
            found[row] = get(slot)
        return found

    def __setitem__(self, slots: int | npt.NDArray[np.int64], values: Any) -> None:
        """Set the object of a slot, or those of an array of slots in order."""
        if isinstance(slots, np.ndarray):
            self._objects.update(zip(slots.tolist(), values, strict=True))
        else:
            self._objects[int(slots)] = values

    def drop(self, slots: npt.NDArray[np.int64]) -> None:
        """Forget the objects of these slots."""
        for slot in slots.tolist():
            self._objects.pop(slot, None)
