"""`SlotObjects`: Python objects by slot, indexed as a numpy array of objects would be.

Behind a seal an object is pickled before it changes for the first time. By these images the objects
go back to the seal, and a thread that writes a snapshot reads what was sealed.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..sealing import Epochs

__all__ = ["SealedObjects", "SlotObjects"]

Int64s = npt.NDArray[np.int64]


class _Dropped(NamedTuple):
    """An object that its slot has no more: nobody changes it."""

    value: Any


_Images: TypeAlias = "dict[int, bytes | _Dropped]"
"""What slots had at a seal, of those that have changed since: pickled, if it may change."""


class SlotObjects:
    """The objects of one field; a slot without one holds None.

    Slots are positions in a log that reserves far more addresses than it uses, so the objects are
    in a mapping, not in an array of that length.
    """

    __slots__ = ("_epochs", "_newest", "_objects")

    def __init__(self) -> None:
        self._objects: dict[int, Any] = {}
        self._epochs: Epochs[_Images] = Epochs()
        self._newest: _Images | None = None

    def __getitem__(self, slots: int | Int64s) -> Any:
        """Return the object of a slot, or those of an array of slots, object (n,)."""
        if not isinstance(slots, np.ndarray):
            return self._objects.get(int(slots))
        found = np.empty(len(slots), object)
        get = self._objects.get
        for row, slot in enumerate(slots.tolist()):
            found[row] = get(slot)
        return found

    def __setitem__(self, slots: int | Int64s, values: Any) -> None:
        """Set the object of a slot, or those of an array of slots in order."""
        if isinstance(slots, np.ndarray):
            self._objects.update(zip(slots.tolist(), values, strict=True))
        else:
            self._objects[int(slots)] = values

    def note(self, slots: Int64s) -> None:
        """Note that the objects of these slots are about to change."""
        images = self._newest
        if images is None:
            return
        get = self._objects.get
        for slot in slots.tolist():
            if slot not in images:
                images[slot] = pickle.dumps(get(slot))

    def drop(self, slots: Int64s) -> None:
        """Forget the objects of these slots."""
        images = self._newest
        for slot in slots.tolist():
            if images is not None and slot not in images:
                images[slot] = _Dropped(self._objects.get(slot))
            self._objects.pop(slot, None)

    def seal(self, epoch: int) -> None:
        """Let the objects as they are now be some to go back to: O(1)."""
        self._newest = {}
        self._epochs.add(epoch, self._newest)

    def sealed(self, epoch: int) -> SealedObjects:
        """Return what another thread may read of a seal."""
        return SealedObjects(self._objects, self._epochs, epoch)

    def roll_back(self, epoch: int) -> None:
        """Go back to the objects of a seal; raise ValueError if there is none."""
        behind = [images for one, images in self._epochs.items() if one >= epoch]
        for images in reversed(behind):
            for slot, image in images.items():
                kept = _object_of(image)
                if kept is None:
                    self._objects.pop(slot, None)
                else:
                    self._objects[slot] = kept
        self._newest = self._epochs.back_to(epoch)
        self._newest.clear()

    def release(self, epoch: int) -> None:
        """Give up going back before a seal; raise ValueError if there is none."""
        self._epochs.release(epoch)

    def forget_seals(self) -> None:
        """Give up all seals."""
        self._epochs, self._newest = Epochs(), None


def _object_of(image: bytes | _Dropped) -> Any:
    if isinstance(image, _Dropped):
        return image.value
    return pickle.loads(image)  # noqa: S301  # our own dump


@dataclass(frozen=True)
class SealedObjects:
    """The objects of one field at a seal, read beside the loop that goes on changing them."""

    _objects: dict[int, Any]
    _epochs: Epochs[_Images]
    _epoch: int

    def read(self, slots: Int64s) -> Iterator[bytes]:
        """Yield the objects of these slots, pickled.

        One that changes meanwhile has an image before it does so, which is then found.
        """
        for slot in slots.tolist():
            try:
                now = pickle.dumps(self._objects.get(slot))
            except Exception:
                image = self._image(slot)
                if image is None:
                    raise
            else:
                image = self._image(slot)
            if image is None:
                yield now
            else:
                yield pickle.dumps(image.value) if isinstance(image, _Dropped) else image

    def _image(self, slot: int) -> bytes | _Dropped | None:
        for epoch, images in list(self._epochs.items()):
            if epoch >= self._epoch and slot in images:
                return images[slot]
        return None
