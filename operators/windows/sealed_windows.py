"""`SealedWindows`: the base of operators with windows, and what checkpoints ask of them.

At a marker the windows are only sealed. What has changed since the marker before becomes rows in
the thread that writes snapshots, and where the worker survives, the windows go back in memory.
Those of slices are told apart by `slice_versions`; those of keys, as declared state is, by
`changed_keys`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from ...state.watermarks import WATERMARK_NONE
from ...transport.wire.batch import Batch
from ..process import InputOrder, InstanceContext, Process
from ..sealing import Epochs, Sealing, Survives
from ..snapshots import StateChunk, Survivor
from .grouping import LATE, OUTPUTS, SLICE
from .slice_versions import Piece, SliceVersions, open_slices

if TYPE_CHECKING:
    from ...transport.wire.types import Schema
    from .group_state import GroupState
    from .sealed_groups import SealedGroups

__all__ = ["SealedSlices", "SealedWindows", "dated"]


@dataclass(frozen=True)
class _WindowsSurvivor:
    """An operator whose groups can go back to an epoch; see `Survivor`."""

    operator: SealedWindows
    epoch: int

    def release(self) -> None:
        """See `Survivor.release`."""
        self.operator.release(self.epoch)


class _SealedInPlace(Protocol):
    """Windows that can be sealed: a `GroupState` or a `WindowPool`."""

    def has_seal(self, epoch: int) -> bool: ...
    def seal(self, epoch: int) -> None: ...
    def roll_back(self, epoch: int) -> None: ...
    def release(self, epoch: int) -> None: ...
    def drop(self) -> None: ...


class _WindowVersions(Protocol):
    """What snapshots had of them."""

    def has_seal(self, epoch: int) -> bool: ...
    def roll_back(self, epoch: int) -> None: ...
    def release(self, epoch: int) -> None: ...


class SealedWindows(Process, Sealing, Survives):
    """An operator whose windows are in `_groups`, which can be sealed; rows may come late."""

    per_worker: ClassVar[bool] = True
    outputs: ClassVar[tuple[str, ...]] = OUTPUTS
    takes_late_rows: ClassVar[bool] = True
    late_outputs: ClassVar[tuple[str, ...]] = (LATE,)
    input_order: ClassVar[InputOrder | None] = "arrival"
    surviving: ClassVar[tuple[str, ...]] = (
        *("_groups", "_versions", "_epochs", "_watermark_ns", "_input"),
    )
    """The attributes that another object takes over."""
    remedy: str
    """How a user can let it keep less, see `StateBudget.advise`."""

    _input: Schema
    """The columns of its rows, once there are groups."""

    def __init__(self) -> None:
        self._groups: _SealedInPlace | None = None
        self._versions: _WindowVersions | None = None
        self._watermark_ns = WATERMARK_NONE
        self._epochs: Epochs[tuple[int, Any]] = Epochs()

    def open(self, context: InstanceContext) -> None:
        """Take the operator's name and memory; the columns are known with the first rows."""
        self._context = context
        self._watermark_ns = context.watermark_ns
        context.state_budget.advise(context.operator_id, self.remedy)

    def _keep_in(self, groups: _SealedInPlace, columns: Schema) -> None:
        """Keep windows in `groups`, which were made for the columns of the first rows."""
        self._groups, self._input = groups, columns

    def seal(self, epoch: int) -> None:
        """See `Sealing.seal`."""
        self._epochs.add(epoch, (self._watermark_ns, self._beside()))
        if self._groups is not None:
            self._groups.seal(epoch)

    def roll_back(self, epoch: int) -> None:
        """See `Sealing.roll_back`."""
        self._watermark_ns, beside = self._epochs.back_to(epoch)
        if self._groups is not None and self._groups.has_seal(epoch):
            self._groups.roll_back(epoch)
            if self._versions is not None and self._versions.has_seal(epoch):
                self._versions.roll_back(epoch)
        else:
            self._forget()
        self._go_back(beside)

    def release(self, epoch: int) -> None:
        """See `Sealing.release`."""
        self._epochs.release(epoch)
        if self._versions is not None and self._versions.has_seal(epoch):
            self._versions.release(epoch)
        if self._groups is not None and self._groups.has_seal(epoch):
            self._groups.release(epoch)

    def chunks(self, epoch: int) -> Sequence[StateChunk]:
        """See `Sealing.chunks`: the input's columns, then windows by when they have changed."""
        self.seal(epoch)
        if self._groups is None:
            return ()
        columns = StateChunk(Batch.empty(self._input), f"{self._snapshots_name}-columns")
        return [columns, *self._versioned(epoch)]

    def survivor(self, epoch: int) -> Survivor | None:
        """See `Survives.survivor`."""
        return None if self._groups is None else _WindowsSurvivor(self, epoch)

    def take_over(self, survivor: Survivor) -> None:
        """See `Survives.take_over`."""
        assert isinstance(survivor, _WindowsSurvivor)
        before = survivor.operator
        before.roll_back(survivor.epoch)
        vars(self).update({name: getattr(before, name) for name in self.surviving})
        self._go_back(self._epochs[survivor.epoch][1])

    @property
    def _snapshots_name(self) -> str:
        """A name unlike that of any other object of the operator."""
        return f"windows-{self._context.attempt}"

    @abstractmethod
    def _versioned(self, epoch: int) -> Sequence[StateChunk]:
        """Return the windows, which were sealed."""

    def _beside(self) -> Any:
        """Return what is kept beside the groups, which does not change any more."""

    def _go_back(self, beside: Any) -> None:
        """Take what was kept beside the groups, which are those of that time."""

    def _forget(self) -> None:
        """Forget all groups and seals of them, and give their memory back."""
        self._versions = None
        if self._groups is not None:
            self._groups.drop()


class SealedSlices(SealedWindows):
    """Windows whose groups are freed by slice."""

    _groups: GroupState | None
    _versions: SliceVersions | None

    def __init__(self) -> None:
        super().__init__()
        self._latest_ns: int | None = None

    def take(self, chunks: Sequence[StateChunk], *, whole: bool) -> None:
        """See `Sealing.take`; the next snapshot has all groups."""
        open_now = None
        for chunk in chunks:
            rows = chunk.rows
            if (found := open_slices(rows)) is not None:
                open_now = found
            elif open_now is not None and SLICE in rows.schema:
                self.load(rows.filter(np.isin(rows.column(SLICE).data, open_now)))
            else:
                self.load(rows)
        self._settle_loaded()

    def _versioned(self, epoch: int) -> Sequence[StateChunk]:
        assert self._groups is not None
        if self._versions is None:
            self._versions = SliceVersions(self._snapshots_name)
        sealed = self._groups.sealed(epoch)
        rows_of = partial(_dated_rows, sealed, self._latest_ns)
        return self._versions.chunks(epoch, sealed.parts, sealed.slices, len(self._groups), rows_of)

    def _note_time(self, batch: Batch) -> None:
        """Keep the latest event time of all rows."""
        if batch.times is not None and batch.num_rows:
            latest_ns = int(batch.times.max())
            if self._latest_ns is None or latest_ns > self._latest_ns:
                self._latest_ns = latest_ns

    def _settle_loaded(self) -> None:
        """Do what must be done with groups once all of them are loaded."""


def dated(batch: Batch, latest_ns: int | None) -> Batch:
    """Return rows of a snapshot with the latest event time of all rows."""
    times = None if latest_ns is None else np.full(batch.num_rows, latest_ns)
    return batch.with_times(times)


def _dated_rows(sealed: SealedGroups, latest_ns: int | None, pieces: Sequence[Piece]) -> Batch:
    return dated(sealed.rows(pieces), latest_ns)
