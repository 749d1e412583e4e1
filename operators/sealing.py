"""`Sealing`: what checkpoints and handovers ask of the state of an operator on one worker.

Ready-made operators with state are `Sealing`. State that can do more than that says so by its type:
`Survives`, `KeepsBeside`. An *epoch* is a number; those of one operator increase. Between `seal(n)`
and `release(n)` the operator can go back to what it kept at the seal, and its state of any virtual
nodes can be returned as rows and taken by other instances.

The functions below do the same for every operator: of a user's class that defines `dump` and `load`
these are all that is needed; of any other the object is pickled, and stays whole.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..state.watermarks import WATERMARK_NONE
from .process import CoProcess, InstanceContext, Process, call_method, gives_rows
from .snapshots import StateChunk, Survivor

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..transport.wire.batch import Batch

__all__ = [
    "Epochs",
    "KeepsBeside",
    "Sealing",
    "SealingByDump",
    "Survives",
    "beside_of",
    "chunks_of",
    "survivor_of",
    "take_beside",
    "take_chunks",
    "take_over",
]

Kept = TypeVar("Kept")
Operator = Process | CoProcess


class Sealing(ABC):
    """State that can be sealed, taken back, and moved by virtual node."""

    _context: Any
    """The `InstanceContext`, once the operator is opened."""

    @abstractmethod
    def seal(self, epoch: int) -> None:
        """Keep what there is now, as the state of an epoch; raise ValueError unless it is new."""

    @abstractmethod
    def roll_back(self, epoch: int) -> None:
        """Go back to the state of an epoch; later seals are gone, this one stays.

        Raises:
            ValueError: there is no such seal, or it was released.
        """

    @abstractmethod
    def release(self, epoch: int) -> None:
        """Give up going back before an epoch, and what only that needed; raise as `roll_back`."""

    @abstractmethod
    def dump(self, nodes: npt.NDArray[np.int64]) -> Iterable[Batch]:
        """Return the state of some virtual nodes, see `Process.dump`."""

    @abstractmethod
    def load(self, batch: Batch) -> None:
        """Take state that another instance returned, see `Process.load`."""

    def chunks(self, epoch: int) -> Sequence[StateChunk]:
        """Return the state for the snapshot of an epoch; raise UsageError if it cannot be.

        Chunks of an earlier snapshot that are still valid are returned again, with the same
        identity.
        """
        return _chunks_of(self, self._context)

    def take(self, chunks: Sequence[StateChunk], *, whole: bool) -> None:
        """Take the state of a snapshot, before the first row.

        Args:
            chunks: what `chunks` of another object returned.
            whole: whether the object continues where that one was, with the same keys.
        """
        for chunk in chunks:
            self.load(chunk.rows)


class Survives(ABC):
    """State that outlives its object, and goes back to an epoch by itself, without its chunks."""

    @abstractmethod
    def survivor(self, epoch: int) -> Survivor | None:
        """Return the state itself, sealed by `Sealing.chunks`; None if there is none yet."""

    @abstractmethod
    def take_over(self, survivor: Survivor) -> None:
        """Take the state of an object like this one that is gone, before the first row."""


class KeepsBeside(ABC):
    """State of which something belongs to no key."""

    @abstractmethod
    def kept_beside(self) -> bytes:
        """Return what belongs to no key, pickled; raise UsageError if it cannot be."""

    @abstractmethod
    def take_beside(self, kept: bytes) -> None:
        """Take what `kept_beside` of another object returned."""


class Epochs(dict[int, Kept]):
    """What was kept at each seal that can be gone back to, by epoch."""

    def add(self, epoch: int, kept: Kept) -> None:
        """Add a seal; raise ValueError unless its epoch is later than all others."""
        if self and epoch <= max(self):
            msg = f"epoch {epoch} after epoch {max(self)}"
            raise ValueError(msg)
        self[epoch] = kept

    def back_to(self, epoch: int) -> Kept:
        """Return what was kept at a seal and forget the later ones; raise ValueError if none."""
        self._check(epoch)
        for later in [one for one in self if one > epoch]:
            del self[later]
        return self[epoch]

    def release(self, epoch: int) -> None:
        """Forget the seals before one; raise ValueError if there is no such seal."""
        self._check(epoch)
        for earlier in [one for one in self if one < epoch]:
            del self[earlier]

    def _check(self, epoch: int) -> None:
        if epoch not in self:
            msg = f"no seal of epoch {epoch}; there are {list(self)}"
            raise ValueError(msg)


class SealingByDump(Sealing):
    """Seals by a dump of all virtual nodes: O(state). For operators that can forget all."""

    def __init__(self) -> None:
        self._watermark_ns = WATERMARK_NONE
        self._epochs: Epochs[tuple[int, list[Batch]]] = Epochs()

    @abstractmethod
    def _forget(self) -> None:
        """Forget all keys, and give their memory back."""

    def seal(self, epoch: int) -> None:
        """See `Sealing.seal`."""
        kept = _dumped(self, self._context)
        self._epochs.add(epoch, (self._watermark_ns, kept))

    def roll_back(self, epoch: int) -> None:
        """See `Sealing.roll_back`."""
        watermark_ns, kept = self._epochs.back_to(epoch)
        self._forget()
        self._watermark_ns = watermark_ns
        for batch in kept:
            self.load(batch)

    def release(self, epoch: int) -> None:
        """See `Sealing.release`."""
        self._epochs.release(epoch)


def _dumped(operator: Sealing | Operator, context: InstanceContext) -> list[Batch]:
    """Return a dump of all virtual nodes, copied: what an operator keeps may continue changing."""
    import numpy as np

    return [batch.copy() for batch in operator.dump(np.arange(context.virtual_nodes))]


def chunks_of(operator: Operator, context: InstanceContext, epoch: int) -> Sequence[StateChunk]:
    """Return what an object keeps by virtual node, for a snapshot."""
    if isinstance(operator, Sealing):
        return operator.chunks(epoch)
    return _chunks_of(operator, context) if gives_rows(operator) else ()


def take_chunks(operator: Operator, chunks: Sequence[StateChunk], *, whole: bool) -> None:
    """Give an opened object what `chunks_of` returned; `whole` is as for `Sealing.take`."""
    if isinstance(operator, Sealing):
        operator.take(chunks, whole=whole)
        return
    for chunk in chunks:
        call_method(operator.load, chunk.rows)


def survivor_of(operator: Operator, epoch: int) -> Survivor | None:
    """Return the state that outlives an object, whose chunks were taken for an epoch."""
    return operator.survivor(epoch) if isinstance(operator, Survives) else None


def take_over(operator: Operator, survivor: Survivor) -> None:
    """Give an opened object what `survivor_of` returned for another one like it."""
    assert isinstance(operator, Survives)
    operator.take_over(survivor)


def beside_of(operator: Operator, context: InstanceContext) -> bytes | None:
    """Return what an object keeps that belongs to no key, pickled; None if that is nothing.

    Raises:
        UsageError: it cannot be pickled.
    """
    if isinstance(operator, KeepsBeside):
        return operator.kept_beside()
    if isinstance(operator, Sealing) or gives_rows(operator):
        return None
    from .pickled_attributes import pickled_attributes

    return pickled_attributes(operator, vars(operator), context)


def take_beside(operator: Operator, kept: bytes, context: InstanceContext) -> None:
    """Give an opened object what `beside_of` returned."""
    if isinstance(operator, KeepsBeside):
        operator.take_beside(kept)
        return
    from .pickled_attributes import take_attributes

    take_attributes(operator, kept, context)


def _chunks_of(operator: Sealing | Operator, context: InstanceContext) -> Sequence[StateChunk]:
    return [StateChunk(batch) for batch in _dumped(operator, context)]
