"""Snapshots of groups by slice: all of them once, then those that have changed since.

A snapshot begins with the slices that are open; rows of others are of no use any more. Then come
*versions* of rows: the first has all groups, each later one those that were written to since the
one before, and what is read last of a group counts.

So that there are few files, and not much in them that is of no use any more, every `VERSIONS_MAX`
snapshots one version takes the place of all but the first. That one is made anew once it is half
of freed slices, or half of the groups have changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ...state.budget import StateBudget
from ...state.changed_records import ChangedRecords
from ...state.sealed_records import SealedRecords
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import Schema
from ..keyed.changed_keys import VERSIONS_MAX, rows_by_version
from ..sealing import Epochs
from ..snapshots import StateChunk
from .grouping import SLICE
from .sealed_groups import Part

__all__ = ["RowsOf", "SliceVersions", "latest_groups", "open_slices"]

Slots = npt.NDArray[np.int64]
Piece: TypeAlias = tuple[Part, Callable[[], Slots]]
RowsOf: TypeAlias = Callable[[Sequence[Piece]], Batch]

_ROWS_MIN = 1 << 16
"""From so many rows on a batch is large enough: each becomes a file."""

_OPEN = "#open"
_CONTENTS = Schema.of(**{_OPEN: "int64"})


@dataclass(frozen=True)
class _GroupVersion:
    """The rows of one version, and what tells how much of them is of use."""

    chunks: Sequence[StateChunk]
    rows: Mapping[Part, int] = field(default_factory=dict)
    changes: Mapping[Part, ChangedRecords] = field(default_factory=dict)


@dataclass(frozen=True)
class _GroupSnapshot:
    contents: StateChunk | None = None
    slices: Sequence[int] = ()
    versions: Sequence[_GroupVersion] = ()


class SliceVersions:
    """The versions of one operator's groups.

    Attributes:
        name: of the object, unlike that of any other of the job, for the chunks' identities.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._last = _GroupSnapshot()
        self._epochs: Epochs[_GroupSnapshot] = Epochs()

    def chunks(
        self,
        epoch: int,
        parts: Mapping[Part, SealedRecords],
        slices: Sequence[int],
        groups: int,
        rows_of: RowsOf,
    ) -> Sequence[StateChunk]:
        """Return the versions; one for this epoch is made if anything has changed.

        Args:
            epoch: of the seal.
            parts: what was sealed.
            slices: those that are open.
            groups: how many there are.
            rows_of: returns records as rows; called by another thread.
        """
        versions = list(self._last.versions)
        changes = {part: ChangedRecords(one) for part, one in parts.items() if one.changes}
        if not versions or _is_due_anew(versions, parts, changes, groups):
            versions = [self._all(epoch, parts, rows_of)]
        elif changes:
            if len(versions) > VERSIONS_MAX:
                changes = _merged(versions[1:], parts, changes)
                del versions[1:]
            versions.append(self._changed(epoch, changes, rows_of))
        contents = self._last.contents
        if contents is None or slices != self._last.slices:
            contents = StateChunk(_contents(slices), f"{self.name}-{epoch}-slices")
        self._last = _GroupSnapshot(contents, slices, versions)
        self._epochs.add(epoch, self._last)
        return [contents, *(chunk for one in versions for chunk in one.chunks)]

    def has_seal(self, epoch: int) -> bool:
        """Return whether there are versions of an epoch."""
        return epoch in self._epochs

    def roll_back(self, epoch: int) -> None:
        """Go back to the versions of an epoch; raise ValueError if there are none."""
        self._last = self._epochs.back_to(epoch)

    def release(self, epoch: int) -> None:
        """Give up going back before an epoch, whose versions are in files; raise ValueError."""
        for version in self._epochs[epoch].versions:
            for one in version.changes.values():
                one.settle()
        self._epochs.release(epoch)

    def _all(
        self, epoch: int, parts: Mapping[Part, SealedRecords], rows_of: RowsOf
    ) -> _GroupVersion:
        pieces = (
            (part, -(-one.count // one.pieces), partial(one.piece, number))
            for part, one in parts.items()
            for number in range(one.pieces)
        )
        rows: dict[Part, int] = {
            part: one.count for part, one in parts.items() if isinstance(part, int)
        }
        return _GroupVersion(self._named(epoch, _together(pieces), rows_of), rows)

    def _changed(
        self, epoch: int, changes: Mapping[Part, ChangedRecords], rows_of: RowsOf
    ) -> _GroupVersion:
        pieces = ((part, one.count, partial(_slots_of, one)) for part, one in changes.items())
        return _GroupVersion(self._named(epoch, _together(pieces), rows_of), changes=changes)

    def _named(
        self, epoch: int, batches: Iterable[Sequence[Piece]], rows_of: RowsOf
    ) -> list[StateChunk]:
        return [
            StateChunk(partial(rows_of, pieces), f"{self.name}-{epoch}-{number}")
            for number, pieces in enumerate(batches)
        ]


def _is_due_anew(
    versions: Sequence[_GroupVersion],
    parts: Mapping[Part, SealedRecords],
    changes: Mapping[Part, ChangedRecords],
    groups: int,
) -> bool:
    first, *later = versions
    written = sum(first.rows.values())
    if 2 * sum(rows for part, rows in first.rows.items() if part in parts) < written:
        return True
    count = sum(
        one.count
        for some in (changes, *(version.changes for version in later))
        for part, one in some.items()
        if isinstance(part, int)
    )
    return 2 * count > groups


def _merged(
    versions: Sequence[_GroupVersion],
    parts: Mapping[Part, SealedRecords],
    changes: Mapping[Part, ChangedRecords],
) -> dict[Part, ChangedRecords]:
    """Return what has changed since the first version, of what is still there."""
    found = {}
    for part, sealed in parts.items():
        earlier = [one.changes[part] for one in versions if part in one.changes]
        if earlier or part in changes:
            found[part] = ChangedRecords(sealed, earlier)
    return found


def _together(pieces: Iterable[tuple[Part, int, Callable[[], Slots]]]) -> Iterator[list[Piece]]:
    """Yield small pieces of several stores together; each field of sets by itself."""
    batch: list[Piece] = []
    rows = 0
    for part, count, find in pieces:
        if batch and (isinstance(part, str) or rows >= _ROWS_MIN):
            yield batch
            batch, rows = [], 0
        batch.append((part, find))
        rows += count
    if batch:
        yield batch


def _slots_of(changes: ChangedRecords) -> Slots:
    return changes.slots


def _contents(slices: Sequence[int]) -> Batch:
    return Batch(_CONTENTS, [Column.of(np.array(slices, np.int64))], len(slices))


def latest_groups(
    chunks: Sequence[StateChunk], keys: Sequence[str], budget: StateBudget
) -> Iterator[Batch]:
    """Yield the groups of a snapshot as rows, each once; without the values of their sets.

    Args:
        chunks: of one object, with the slices that are open; those of groups are read twice.
        keys: the key columns.
        budget: as large a one is made for the groups.
    """
    found = [rows for rows in map(open_slices, (one.rows for one in chunks)) if rows is not None]
    groups = [one for one in chunks if SLICE in one.rows.schema]
    groups = [one for one in groups if one.rows.schema == groups[0].rows.schema]
    if groups:
        named = (SLICE, *keys)
        for rows in rows_by_version(groups, range(len(groups)), named, budget):
            yield rows.filter(np.isin(rows.column(SLICE).data, found[-1]))


def open_slices(batch: Batch) -> npt.NDArray[np.int64] | None:
    """Return the slices that are open, if that is what a batch of a snapshot tells."""
    return batch.column(_OPEN).data if _OPEN in batch.schema else None
