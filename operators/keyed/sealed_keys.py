"""What checkpoints ask of a keyed process: its declared state, and what it keeps beside that."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ...state.declarations import StateDeclaration
from ..sealing import Epochs, SealingByDump

if TYPE_CHECKING:
    from ..instance_context import InstanceContext
    from ..snapshots import StateChunk
    from .changed_keys import StateVersions
    from .keyed_state import KeyedState

__all__ = ["SealedKeys"]


class SealedKeys(SealingByDump):
    """Seals and snapshots of an object that serves all keys of a worker."""

    declared: ClassVar[Mapping[str, StateDeclaration]] = {}  # a plain dict: classes are pickled
    """The declarations of the class by name, those of its base classes first."""

    _state: KeyedState | None = None
    _versions: StateVersions | None = None

    def seal(self, epoch: int) -> None:
        """Keep the declared state, and pickled what else is in `self`; raise UsageError."""
        from ..pickled_attributes import pickled_attributes

        self._epochs_beside.add(epoch, pickled_attributes(self._beside(), self._opened()))
        super().seal(epoch)

    def roll_back(self, epoch: int) -> None:
        """See `Sealing.roll_back`."""
        from ..pickled_attributes import attributes_of

        kept = self._epochs_beside.back_to(epoch)
        for name in self._beside():
            del vars(self)[name]
        vars(self).update(attributes_of(kept, self._opened()))
        super().roll_back(epoch)

    def release(self, epoch: int) -> None:
        """See `Sealing.release`."""
        self._epochs_beside.release(epoch)
        super().release(epoch)

    def chunks(self, epoch: int) -> Sequence[StateChunk]:
        """See `Sealing.chunks`: all keys, and those that changed since (`changed_keys`)."""
        if self._state is None:
            return ()
        if self._versions is None:
            self._versions = self._new_versions(self._state, ())
        return self._versions.chunks(epoch)

    def take(self, chunks: Sequence[StateChunk], *, whole: bool) -> None:
        """See `Sealing.take`."""
        from .changed_keys import latest_rows

        chunks = list(chunks)  # each is read from its file once
        for rows in latest_rows(chunks, self._opened().keys[0], self._opened().state_budget):
            self.load(rows)
        if not whole or self._state is None or not all(chunk.identity for chunk in chunks):
            return
        if self._state.dumps_as(chunks[0].rows):  # else another version of the class wrote them
            self._versions = self._new_versions(self._state, chunks)

    def _new_versions(self, state: KeyedState, chunks: Sequence[StateChunk]) -> StateVersions:
        from .changed_keys import StateVersions

        return StateVersions(state, f"keys-{self._opened().attempt}", chunks)

    def kept_beside(self) -> bytes | None:
        """See `Sealing.kept_beside`: attributes that are not declared."""
        from ..pickled_attributes import pickled_attributes

        return pickled_attributes(self._beside(), self._opened())

    def take_beside(self, kept: bytes) -> None:
        """See `Sealing.take_beside`."""
        from ..pickled_attributes import attributes_of

        vars(self).update(attributes_of(kept, self._opened()))

    def _forget(self) -> None:
        if self._state is not None:
            self._state.forget()
        for name in ("_state", "_compiled", "_versions", *self.declared):
            vars(self).pop(name, None)

    @property
    def _epochs_beside(self) -> Epochs[bytes]:
        epochs: Epochs[bytes] = vars(self).setdefault("_sealed_beside", Epochs())
        return epochs

    @abstractmethod
    def _beside(self) -> dict[str, Any]:
        """Return what a class keeps in `self` that is neither declared nor our own."""

    @abstractmethod
    def _opened(self) -> InstanceContext:
        """Return the context; raise UsageError if the object was not opened."""
