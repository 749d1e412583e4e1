"""What checkpoints ask of a keyed process: its declared state, and what it keeps beside that."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from ...state.declarations import StateDeclaration
from ..sealing import Epochs, KeepsBeside, Sealing, Survives
from ..snapshots import StateChunk, Survivor

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from ..instance_context import InstanceContext
    from .changed_keys import StateVersions
    from .keyed_state import KeyedState

__all__ = ["KeysSurvivor", "SealedKeys"]


@dataclass(frozen=True)
class KeysSurvivor:
    """Declared state that can go back to an epoch; see `Survivor`."""

    state: KeyedState
    versions: StateVersions
    epoch: int

    def release(self) -> None:
        """See `Survivor.release`."""
        self.versions.release(self.epoch)
        self.state.release(self.epoch)

    def roll_back(self) -> None:
        """Go back to the epoch."""
        self.versions.roll_back(self.epoch)
        self.state.roll_back(self.epoch)


AS_LOADED = 0
"""The epoch of the seal of state that was loaded, and has not changed since."""


class SealedKeys(Sealing, Survives, KeepsBeside):
    """Seals and snapshots of an object that serves all keys of a worker."""

    declared: ClassVar[Mapping[str, StateDeclaration]] = {}  # a plain dict: classes are pickled
    """The declarations of the class by name, those of its base classes first."""

    _state: KeyedState | None = None
    _versions: StateVersions | None = None
    _watermark_ns: int

    def seal(self, epoch: int) -> None:
        """Seal the declared state, and keep what else is in `self`, pickled; raise UsageError."""
        from ..pickled_attributes import pickled_attributes

        beside = pickled_attributes(self, self._beside(), self._opened())
        self._epochs.add(epoch, (self._watermark_ns, beside))
        if self._state is not None:
            self._state.seal(epoch)

    def roll_back(self, epoch: int) -> None:
        """See `Sealing.roll_back`."""
        from ..pickled_attributes import saves_itself, take_attributes

        self._watermark_ns, beside = self._epochs.back_to(epoch)
        for name in () if saves_itself(self) else self._beside():
            del vars(self)[name]
        take_attributes(self, beside, self._opened())
        if self._state is not None and self._state.has_seal(epoch):
            self._state.roll_back(epoch)
        else:
            self._forget()

    def release(self, epoch: int) -> None:
        """See `Sealing.release`."""
        self._epochs.release(epoch)
        if self._state is not None and self._state.has_seal(epoch):
            self._state.release(epoch)

    def chunks(self, epoch: int) -> Sequence[StateChunk]:
        """See `Sealing.chunks`: all keys, and those that changed since (`changed_keys`)."""
        if self._state is None:
            return ()
        if self._versions is None:
            self._versions = self._new_versions(())
        state = self._state
        state.seal(epoch)
        made_now = state.made_now if state.has_entries else None
        return self._versions.chunks(epoch, state.sealed(epoch), len(state.store), made_now)

    def survivor(self, epoch: int) -> Survivor | None:
        """See `Survives.survivor`."""
        if self._state is None or self._versions is None:
            return None
        return KeysSurvivor(self._state, self._versions, epoch)

    def take_over(self, survivor: Survivor) -> None:
        """See `Survives.take_over`."""
        assert isinstance(survivor, KeysSurvivor)
        survivor.roll_back()
        self._versions = survivor.versions
        self._know(survivor.state)

    def take(self, chunks: Sequence[StateChunk], *, whole: bool) -> None:
        """See `Sealing.take`."""
        from .changed_keys import is_a_version, latest_rows

        read = list(chunks)  # each is read from its file once
        for rows in latest_rows(read, self._opened().keys[0], self._opened().state_budget):
            self.load(rows)
        if not whole or self._state is None or not all(chunk.identity for chunk in read):
            return
        if self._state.dumps_as(read[0].rows):  # else another version of the class wrote them
            loaded: list[list[StateChunk]] = [[]]
            for number, chunk in enumerate(read):
                if is_a_version(chunk.rows):
                    loaded.append([])
                again = partial(_rows_at, chunks, number)  # the state is in memory once
                loaded[-1].append(StateChunk(again, chunk.identity))
            self._versions = self._new_versions(loaded)
            self._state.seal(AS_LOADED)

    def _know(self, state: KeyedState) -> None:
        """Take state with its handles."""
        object.__setattr__(self, "_state", state)
        vars(self).update(state.handles)

    def _new_versions(self, loaded: Sequence[Sequence[StateChunk]]) -> StateVersions:
        from .changed_keys import StateVersions

        return StateVersions(f"keys-{self._opened().attempt}", loaded)

    def kept_beside(self) -> bytes:
        """See `KeepsBeside.kept_beside`: attributes that are not declared."""
        from ..pickled_attributes import pickled_attributes

        return pickled_attributes(self, self._beside(), self._opened())

    def take_beside(self, kept: bytes) -> None:
        """See `KeepsBeside.take_beside`."""
        from ..pickled_attributes import take_attributes

        take_attributes(self, kept, self._opened())

    def _forget(self) -> None:
        if self._state is not None:
            self._state.forget()
        for name in ("_state", "_compiled", "_versions", *self.declared):
            vars(self).pop(name, None)

    @property
    def _epochs(self) -> Epochs[tuple[int, bytes]]:
        epochs: Epochs[tuple[int, bytes]] = vars(self).setdefault("_sealed", Epochs())
        return epochs

    @abstractmethod
    def _beside(self) -> dict[str, Any]:
        """Return what a class keeps in `self` that is neither declared nor our own."""

    @abstractmethod
    def _opened(self) -> InstanceContext:
        """Return the context; raise UsageError if the object was not opened."""


def _rows_at(chunks: Sequence[StateChunk], place: int) -> Batch:
    return chunks[place].rows
