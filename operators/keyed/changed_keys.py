"""Snapshots of state by key that hold what has changed: all keys once, then those since.

A snapshot is a row of *versions*. The first has all keys; each later one begins with a batch of the
keys that are gone, which is how it is told from the one before, and continues with what is kept for
the keys that were written to since. A key is what the latest version says that has it.

So that there are few files, and not much in them that is of no use any more, every `VERSIONS_MAX`
snapshots one version takes the place of all but the first; once the later ones say as
much as of half of the keys, the first one is made anew.

At the marker the state is only sealed. The rows of a version are made by the thread that writes
them, from what was sealed. Declared lists and maps are found through indexes, which that thread
cannot read beside the loop, so it reads all entries. Only if few keys with lists or maps have
changed, their rows are made at the marker, through the index.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ...state.budget import StateBudget
from ...state.changed_records import ChangedRecords
from ...state.keys import hash_keys
from ...state.records import HEADER_WORDS, RecordField, RecordLayout, copy_of_records
from ...state.sealed_records import SealedRecords, is_alive
from ...state.store import KeyedStore
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import DataType, Field, Schema
from ..sealing import Epochs
from ..snapshots import StateChunk

__all__ = [
    "FindSlots",
    "SealedRows",
    "StateVersions",
    "all_slots",
    "is_a_version",
    "latest_rows",
    "pieces_of",
    "rows_by_version",
]

Slots = npt.NDArray[np.int64]
FindSlots: TypeAlias = Callable[[], Slots]
MakeRows: TypeAlias = Callable[[Slots], Iterable[Batch] | None]

VERSIONS_MAX = 16
"""How many versions behind the first one a snapshot has at most."""

MADE_NOW_MAX = 1 << 10
"""Of how many changed keys with lists or maps the rows are made at the marker at most."""

GONE = "#gone"
"""The column of a batch that begins a version: the keys that are gone since the one before."""


class _Changes(ChangedRecords):
    """The records of keys that have changed."""

    def __init__(self, sealed: SealedRecords, earlier: Sequence[_Changes]) -> None:
        super().__init__(sealed, earlier)
        self._before = tuple(earlier)
        self._gone: Batch | None = None
        self._telling = threading.Lock()

    @property
    def rows(self) -> int:
        """How many rows tell of them: the changed keys, and the gone ones once these are known."""
        return self.count + (0 if self._gone is None else self._gone.num_rows)

    def settle(self) -> None:
        """See `ChangedRecords.settle`."""
        _ = self.gone
        super().settle()

    @property
    def gone(self) -> Batch:
        """The keys that were there before and may be gone; if not, the version has them."""
        with self._telling:
            if self._gone is None:
                self._gone = Batch.concat(
                    [*(one.gone for one in self._before), self._removed_since()]
                )
                self._before = ()
            return self._gone

    def _removed_since(self) -> Batch:
        """Return those that are gone since the version before."""
        written = self.sealed.overwritten()  # a new record has no key that could be gone
        then, now = self.sealed.read(written, before=True), self.sealed.read(written)
        has_left = is_alive(then) & ~(is_alive(now) & _same_keys(self.sealed.layout, then, now))
        left = copy_of_records(then, np.flatnonzero(has_left))
        keys = self.sealed.layout.key_columns(left, slice(None), self.sealed.memory)
        return Batch(self.sealed.layout.keys, keys, len(left))


class _MadeRows:
    """Rows that were made at the marker, until they count."""

    def __init__(self, rows: Batch) -> None:
        self._rows: Batch | None = rows

    def __call__(self) -> Batch:
        assert self._rows is not None
        return self._rows

    def drop(self) -> None:
        """Give up the rows, which are in a file."""
        self._rows = None


class SealedRows(Protocol):
    """State by key at a seal, as the rows of a snapshot; read beside the loop."""

    @property
    def keys(self) -> SealedRecords:
        """The records of the keys: one that was written to says that its key has changed."""

    @property
    def parts(self) -> int:
        """How many batches tell what is kept for keys; each is loaded after those before it."""

    def pieces(self, part: int) -> Sequence[FindSlots]:
        """Return what finds the records of all keys, in pieces as one part had better be made."""

    def rows(self, slots: Slots, part: int) -> Batch:
        """Return what one part says of the keys of some records, without those that have no key.

        Args:
            slots: the records, ascending: int64 (n,).
            part: its number.
        """


class StateVersions:
    """The versions of one operator's state, which was sealed for each.

    Args:
        name: of the object, unlike that of any other of the job, for the chunks' identities.
        loaded: the versions that the state was loaded from just now.
    """

    def __init__(self, name: str, loaded: Sequence[Sequence[StateChunk]] = ()) -> None:
        self.name = name
        self._first: list[StateChunk] = []
        self._later: list[list[StateChunk]] = []
        self._changes: list[_Changes] = []  # of the later versions that were made here
        if loaded:
            self._first, *self._later = map(list, loaded)
        self._loaded = len(self._later)
        self._epochs: Epochs[tuple[list[StateChunk], list[list[StateChunk]], list[_Changes], int]]
        self._epochs = Epochs()

    def chunks(
        self, epoch: int, sealed: SealedRows, keys: int, made_now: MakeRows | None = None
    ) -> Sequence[StateChunk]:
        """Return the versions; one for this epoch is made if anything has changed.

        Args:
            epoch: of the seal.
            sealed: the state.
            keys: how many there are.
            made_now: returns the rows of the keys of records, or None if they are many; for state
                of which that is better done at the marker if they are few.
        """
        if self._is_due_anew(sealed.keys, keys):
            self._first, self._later = self._all(epoch, sealed), []
            self._changes, self._loaded = [], 0
        elif sealed.keys.changes:
            merges = len(self._later) >= VERSIONS_MAX
            changes = _Changes(sealed.keys, self._changes if merges else ())
            version = self._version(epoch, sealed, changes, made_now)
            self._later = [*([] if merges else self._later), version]
            self._changes = [*([] if merges else self._changes), changes]
        self._epochs.add(epoch, (self._first, self._later, self._changes, self._loaded))
        return [chunk for version in (self._first, *self._later) for chunk in version]

    def has_seal(self, epoch: int) -> bool:
        """Return whether there are versions of an epoch."""
        return epoch in self._epochs

    def roll_back(self, epoch: int) -> None:
        """Go back to the versions of an epoch; raise ValueError if there are none."""
        self._first, self._later, self._changes, self._loaded = self._epochs.back_to(epoch)

    def release(self, epoch: int) -> None:
        """Give up going back before an epoch, whose versions are in files; raise ValueError.

        Before that of the state, whose images say what has changed.
        """
        first, later, changes, _ = self._epochs[epoch]
        for one in changes:
            one.settle()
        self._epochs.release(epoch)
        for chunk in (one for version in (first, *later) for one in version):
            if isinstance(chunk.held, _MadeRows):
                chunk.held.drop()

    def _is_due_anew(self, sealed: SealedRecords, keys: int) -> bool:
        if not self._first or sealed.is_first:
            return True
        if self._loaded and len(self._later) >= VERSIONS_MAX:
            return True
        rows = sealed.changes + sum(one.rows for one in self._changes)
        return 2 * rows > keys

    def _all(self, epoch: int, sealed: SealedRows) -> list[StateChunk]:
        rows = [
            partial(_rows_of, sealed, find, part)
            for part in range(sealed.parts)
            for find in sealed.pieces(part)
        ]
        return self._named(epoch, rows)

    def _version(
        self, epoch: int, sealed: SealedRows, changes: _Changes, made_now: MakeRows | None
    ) -> list[StateChunk]:
        few = made_now is not None and changes.count <= MADE_NOW_MAX
        made = made_now(changes.slots) if few and made_now is not None else None
        if made is not None:
            return self._made(epoch, [_marked(changes.gone), *made])
        changed: FindSlots = partial(getattr, changes, "slots")
        parts = [partial(_rows_of, sealed, changed, part) for part in range(sealed.parts)]
        return self._named(epoch, [partial(_removed_rows, changes), *parts])

    def _made(self, epoch: int, batches: Iterable[Batch]) -> list[StateChunk]:
        rows = [_MadeRows(one) for n, one in enumerate(batches) if one.num_rows or n == 0]
        return self._named(epoch, rows)

    def _named(self, epoch: int, rows: Sequence[Callable[[], Batch]]) -> list[StateChunk]:
        return [
            StateChunk(make, f"{self.name}-{epoch}-{number}") for number, make in enumerate(rows)
        ]


def _rows_of(sealed: SealedRows, find: FindSlots, part: int) -> Batch:
    return sealed.rows(find(), part)


def pieces_of(keys: SealedRecords) -> Sequence[FindSlots]:
    """Return what finds all records, those without a key too, in pieces; at least in one."""
    return [partial(keys.piece, number) for number in range(keys.pieces)] or [_no_slots]


def all_slots(keys: SealedRecords) -> Slots:
    """Return all records, those without a key too, ascending: int64 (n,)."""
    return np.sort(np.concatenate([_no_slots(), *map(keys.piece, range(keys.pieces))]))


def _no_slots() -> Slots:
    return np.empty(0, np.int64)


def _removed_rows(changes: _Changes) -> Batch:
    return _marked(changes.gone)


def _same_keys(
    layout: RecordLayout, some: npt.NDArray[Any], others: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """Return which records have bit by bit the same key; texts lie at the same place."""
    shape = (len(some), layout.words)
    words, other_words = (one.view(np.uint64).reshape(shape) for one in (some, others))
    nulls = np.uint64(0xFFFFFFFF)
    same = (words[:, 0] == other_words[:, 0]) & (
        (words[:, 1] & nulls) == (other_words[:, 1] & nulls)
    )
    keys = slice(HEADER_WORDS, layout.fields_start)
    alike: npt.NDArray[np.bool_] = same & (words[:, keys] == other_words[:, keys]).all(axis=1)
    return alike


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
    yield from rows_by_version(chunks, versions, keys, budget)


def rows_by_version(
    chunks: Sequence[StateChunk], versions: Sequence[int], keys: Sequence[str], budget: StateBudget
) -> Iterator[Batch]:
    """Yield the rows of each key of the latest version that has it.

    Args:
        chunks: read twice; those that begin a version are left out.
        versions: of each chunk; all keys of version 0 are different.
        keys: the columns by which rows are told apart.
        budget: as large a one is made for the keys of later versions.
    """
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
