"""Snapshots of keyed state that hold what has changed: all keys once, then those since.

A snapshot is a row of *versions*. The first has all keys; each later one begins with a batch of the
keys that are gone, which is how it is told from the one before, and goes on with what is kept for
the keys that were written to since. A key is what the latest version says that has it.

So that there are few files, and not much in them that is of no use any more, every `VERSIONS_MAX`
snapshots one version takes the place of all but the first; once more than half of the keys have
changed since the first one, that is made anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...state.budget import StateBudget
from ...state.index import ALIVE
from ...state.keys import hash_keys
from ...state.records import RecordField, RecordLayout
from ...state.store import KeyedStore
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import DataType, Field, Schema
from ..snapshots import StateChunk

if TYPE_CHECKING:
    from .keyed_state import KeyedState

__all__ = ["ChangedKeys", "StateVersions", "is_a_version", "latest_rows"]

Slots = npt.NDArray[np.int64]

VERSIONS_MAX = 16
"""How many versions behind the first one a snapshot has at most."""

GONE = "#gone"
"""The column of a batch that begins a version: the keys that are gone since the one before."""

_SINCE_LAST, _SINCE_FIRST = 1, 2


class ChangedKeys:
    """Which keys of a store were written to or deleted since the last version, and the first."""

    def __init__(self, store: KeyedStore) -> None:
        self._store = store
        self._marks = np.zeros(len(store.records), np.uint8)  # takes memory where it is written to
        self._stop = 0
        self._gone: list[tuple[int, Batch]] = []

    def note(self, slots: Slots) -> None:
        """Note records that may have been written to."""
        if len(slots):
            self._marks[slots] = _SINCE_LAST | _SINCE_FIRST
            self._stop = max(self._stop, int(slots.max()) + 1)

    def note_gone(self, slots: Slots) -> None:
        """Note records that are about to be deleted; those that are not alive are skipped."""
        slots = self._alive(slots)
        if len(slots):
            self._gone.append((_SINCE_LAST | _SINCE_FIRST, self._store.keys_of(slots)))

    def take(self, *, since_first: bool) -> tuple[Batch, Slots]:
        """Return the keys that are gone, and the records of those that changed, since a version.

        What was noted counts as part of the version that is made now.
        """
        wanted = _SINCE_FIRST if since_first else _SINCE_LAST
        marks = self._marks[: self._stop]
        slots = self._alive(np.flatnonzero(marks & wanted))
        gone = [keys for mark, keys in self._gone if mark & wanted]
        marks &= ~np.uint8(_SINCE_LAST)
        self._gone = [(_SINCE_FIRST, keys) for _, keys in self._gone]
        schema = self._store.layout.keys
        return (Batch.concat(gone) if gone else Batch.empty(schema)), slots

    def forget(self) -> None:
        """Begin anew: all keys are part of the version that is made now."""
        self._marks[: self._stop] = 0
        self._stop = 0
        self._gone = []

    @property
    def since_first(self) -> int:
        """How many keys have changed, or are gone, since the first version."""
        changed = int(np.count_nonzero(self._marks[: self._stop]))
        return changed + sum(keys.num_rows for _, keys in self._gone)

    def _alive(self, slots: Slots) -> Slots:
        links = self._store.records["#link"][slots]
        return slots[(links & np.uint64(0xFF)) == ALIVE]


class StateVersions:
    """The versions of one operator's state.

    Args:
        state: of the operator on this worker.
        name: of the object, unlike that of any other of the job, for the chunks' identities.
        chunks: the versions that the state was loaded from, if they have identities.
    """

    def __init__(self, state: KeyedState, name: str, chunks: Sequence[StateChunk] = ()) -> None:
        self._state, self._name = state, name
        self._changed = state.note_changes()
        self._first: list[StateChunk] = []
        self._later: list[list[StateChunk]] = []
        for chunk in chunks:
            if is_a_version(chunk.rows):
                self._later.append([])
            (self._later[-1] if self._later else self._first).append(chunk)

    def chunks(self, epoch: int) -> Sequence[StateChunk]:
        """Return the versions of the state as it is now; one for this epoch is made."""
        self._state.settle()
        anew = not self._first or 2 * self._changed.since_first > len(self._state.store)
        if anew:
            self._changed.forget()
            self._first = self._named(epoch, self._state.export_all())
            self._later = []
        else:
            merged = len(self._later) >= VERSIONS_MAX
            gone, slots = self._changed.take(since_first=merged)
            if merged:
                self._later = []
            if gone.num_rows or len(slots):
                batches = [_marked(gone), *self._state.export(slots)]
                self._later.append(self._named(epoch, batches))
        return [chunk for version in (self._first, *self._later) for chunk in version]

    def _named(self, epoch: int, batches: Sequence[Batch]) -> list[StateChunk]:
        return [
            StateChunk(batch, f"{self._name}-{epoch}-{number}")
            for number, batch in enumerate(batches)
            if batch.num_rows or number == 0
        ]


def is_a_version(batch: Batch) -> bool:
    """Return whether a batch begins a version, other than the first."""
    return GONE in batch.schema


def latest_rows(
    chunks: Sequence[StateChunk], keys: Sequence[str], budget: StateBudget
) -> Iterator[Batch]:
    """Yield the rows of the latest version of each key.

    Args:
        chunks: of one object; read twice if there are several versions.
        keys: the key columns.
        budget: as large a one is made for the keys of later versions.
    """
    versions, number = [], 0
    for chunk in chunks:
        number += is_a_version(chunk.rows)
        versions.append(number)
    if not number:
        yield from (chunk.rows for chunk in chunks)
        return
    layout = RecordLayout(chunks[0].rows.schema.select(keys), [_LATEST])
    own = StateBudget(budget.limit_bytes, budget.disk_bytes_max, budget.disk_folder)
    store = KeyedStore(layout, own, "versions")
    for version, chunk in zip(versions, chunks, strict=True):
        if version:
            slots = store.slots(*_hashed(chunk.rows, keys))
            store.records[_LATEST.name][slots] = version
    for version, chunk in zip(versions, chunks, strict=True):
        if not is_a_version(chunk.rows):
            found = store.find(*_hashed(chunk.rows, keys))
            latest = np.where(found < 0, 0, store.records[_LATEST.name][found])
            yield chunk.rows.filter(latest <= version)


_LATEST = RecordField("latest", np.dtype(np.int64))
_BOOL = DataType.parse("bool")


def _hashed(rows: Batch, keys: Sequence[str]) -> tuple[npt.NDArray[np.uint64], Batch]:
    return hash_keys(rows, keys)[0], rows.select(keys)


def _marked(gone: Batch) -> Batch:
    schema = Schema((*gone.schema, Field(GONE, _BOOL)))
    column = Column(_BOOL, np.ones(gone.num_rows, np.bool_))
    return Batch(schema, [*gone.columns, column], gone.num_rows)
