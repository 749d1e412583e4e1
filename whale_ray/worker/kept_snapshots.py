"""The snapshots of a worker's last epochs, in memory: a survivor goes back without reading a store.

State that survives its object (`Survivor`) goes back by itself, so its snapshots take no memory.
Of other state they are what was handed to be written: batches that never change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

from ..operators.snapshots import OperatorSnapshot
from ..state.watermarks import WATERMARK_END

__all__ = ["KeptSnapshots", "ObjectKey"]

ObjectKey: TypeAlias = tuple[str, tuple[int, ...], int]
"""An operator object: the operator's id, its instances, and the operator's parallelism."""


class KeptSnapshots:
    """Snapshots of the operator objects of one worker, by epoch; across all attempts of a job."""

    def __init__(self) -> None:
        self._epochs: dict[int, dict[ObjectKey, OperatorSnapshot]] = {}
        self._ended: dict[ObjectKey, tuple[int, OperatorSnapshot]] = {}
        self._counted = 0

    def remember(self, epoch: int, snapshots: Iterable[OperatorSnapshot]) -> None:
        """Add snapshots of an epoch; of an object that has ended, they are of all later ones too.

        Args:
            epoch: of the marker; of objects that ended, the first epoch that lies behind their end.
            snapshots: of some objects of the worker.
        """
        here = self._epochs.setdefault(epoch, {})
        for one in snapshots:
            key = (one.operator_id, one.instances, one.parallelism)
            if one.watermark_ns == WATERMARK_END:
                self._ended.setdefault(key, (epoch, one))
            else:
                here[key] = one

    def forget(self, epoch: int) -> None:
        """Discard a failed epoch, and all before it that are newer than the last complete one."""
        for gone in [one for one in self._epochs if self._counted < one <= epoch]:
            del self._epochs[gone]

    def forget_before(self, epoch: int) -> None:
        """Give up the epochs before one that counts: nobody goes back to them.

        State that survives learns of it, so only the worker's loop may call this.
        """
        self._counted = epoch
        for kept in self._epochs.get(epoch, {}).values():
            if kept.survivor is not None:
                kept.survivor.release()
        for earlier in [one for one in self._epochs if one < epoch]:
            del self._epochs[earlier]

    def forget_after(self, epoch: int) -> None:
        """Give up the epochs after one, to which the attempt that begins has gone back."""
        self._counted = epoch
        for later in [one for one in self._epochs if one > epoch]:
            del self._epochs[later]
        self._ended = {key: kept for key, kept in self._ended.items() if kept[0] <= epoch}

    def at(self, epoch: int) -> Mapping[ObjectKey, OperatorSnapshot]:
        """Return what is kept of an epoch; nothing of an epoch that was given up."""
        if epoch not in self._epochs:
            return {}
        ended = {key: one for key, (since, one) in self._ended.items() if since <= epoch}
        return ended | self._epochs[epoch]
