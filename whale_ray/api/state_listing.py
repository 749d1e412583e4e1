"""What checkpoints there are in a folder, how large, and what changed between two of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..configs.errors import InputError
from ..state.epochs.checkpoint_store import CheckpointStore
from ..state.epochs.manifest import Manifest, OperatorPart, chunks_of
from ..state.epochs.store_names import ManifestName
from .state_reading import operator_rows

if TYPE_CHECKING:
    from ..transport.wire.batch import Batch

__all__ = ["EpochEntry", "OperatorDiff", "OperatorEntry", "diff_of", "epochs_in", "operators_of"]

_BOOKKEEPING = (" id", " queued")
"""Ends of columns that say where something lies in memory, not what is known."""


@dataclass(frozen=True)
class EpochEntry:
    """A checkpoint in a folder.

    Attributes:
        epoch: its number.
        job: the id of the job that wrote it.
        topology: the topology's name; "" if it is damaged.
        created_ms: wall clock, ms since 1970 in UTC.
        nbytes: of all its files.
        new_nbytes: of those that no checkpoint before it in the list has.
        savepoint: whether a user asked for it.
        ended: "stopped", "drained" or "finished" if the job ended after it; "publishing" if it has
            all output of a bounded job, which may not be visible in all sinks; else "".
        restored: (job, epoch) of each restore before it, the latest last.
        manifest: the name of its manifest.
        damage: why it cannot be read, "" if it can.
    """

    epoch: int
    job: str
    topology: str
    created_ms: int
    nbytes: int
    new_nbytes: int
    savepoint: bool
    ended: str
    restored: tuple[tuple[str, int], ...]
    manifest: str
    damage: str = ""


@dataclass(frozen=True)
class OperatorEntry:
    """What one operator has in a checkpoint.

    Attributes:
        operator: its id.
        kind: such as "source".
        level: of its state: "declared", "rows", "opaque", or "" if it has none.
        parallelism: its number of instances.
        nbytes: of its files.
        rows: of its state, as `read_state` returns them; None for an opaque one.
        position: of each source's object, as JSON.
    """

    operator: str
    kind: str
    level: str
    parallelism: int
    nbytes: int
    rows: int | None
    position: tuple[Any, ...] = ()


@dataclass(frozen=True)
class OperatorDiff:
    """What changed of an operator's state from one checkpoint to another.

    Attributes:
        operator: its id.
        added: keys that only the second has.
        removed: keys that only the first has.
        changed: keys whose values differ.
        same: keys whose values do not.
        whole: of what is not kept by key: "same", "changed", "added" or "removed", else "".
    """

    operator: str
    added: int = 0
    removed: int = 0
    changed: int = 0
    same: int = 0
    whole: str = ""


def epochs_in(store: CheckpointStore) -> list[EpochEntry]:
    """Return the checkpoints in a folder, the oldest first.

    Raises:
        InputError: the folder cannot be read.
    """
    found: list[EpochEntry] = []
    seen: set[str] = set()
    for name in store.manifests():
        parsed = ManifestName.of(name)
        assert parsed is not None
        try:
            manifest = store.read_manifest(name)
        except InputError as error:
            if name not in store.manifests():
                continue  # a job that runs has removed it meanwhile
            empty = (0, 0, 0, False, "", (), name, str(error))
            found.append(EpochEntry(parsed.epoch, parsed.job, "", *empty))
            continue
        chunks = chunks_of(manifest.parts)
        new = sum(one.nbytes for name, one in chunks.items() if name not in seen)
        seen |= chunks.keys()
        found.append(
            EpochEntry(
                manifest.epoch,
                manifest.lineage.job,
                manifest.topology,
                manifest.created_ms,
                sum(one.nbytes for one in chunks.values()),
                new,
                manifest.savepoint,
                _end_of(manifest),
                manifest.lineage.restored,
                name,
            )
        )
    return found


def _end_of(manifest: Manifest) -> str:
    """Return how the job ended at a checkpoint, or behind it."""
    if manifest.finished:
        return "drained" if manifest.drained else "finished"
    if manifest.publisher:
        return "publishing"
    return "stopped" if manifest.stopped else ""


def operators_of(store: CheckpointStore, manifest: Manifest) -> list[OperatorEntry]:
    """Return what each operator has in a checkpoint; counts the rows, so all chunks are read.

    Raises:
        InputError: the folder cannot be read.
        DamagedCheckpointError: a chunk is missing or damaged.
    """
    return [
        _entry(store, manifest, operator, list(parts)) for operator, parts in _by_operator(manifest)
    ]


def _entry(
    store: CheckpointStore, manifest: Manifest, operator: str, parts: Sequence[OperatorPart]
) -> OperatorEntry:
    from ..operators.keyed.dumped_state import declared_values

    record = manifest.operators.get(operator, {})
    level = str(record.get("level", ""))
    rows = None
    if declared_values(record.get("state", ())) is not None:  # several rows of a key are one there
        rows = len(_hashed(store, manifest, operator)[0])
    elif level != "opaque":
        rows = sum(batch.num_rows for batch in operator_rows(store, manifest, operator))
    return OperatorEntry(
        operator,
        str(record.get("kind", "")),
        level,
        max((part.parallelism for part in parts), default=0),
        sum(chunk.nbytes for chunk in chunks_of(parts).values()),
        rows,
        tuple(part.position for part in parts if part.position is not None),
    )


def _by_operator(manifest: Manifest) -> Iterator[tuple[str, list[OperatorPart]]]:
    names = dict.fromkeys((*manifest.operators, *(part.operator_id for part in manifest.parts)))
    for name in names:
        yield name, [part for part in manifest.parts if part.operator_id == name]


def diff_of(store: CheckpointStore, first: Manifest, second: Manifest) -> list[OperatorDiff]:
    """Return what changed from one checkpoint to another, by operator.

    Rows are compared by hashes of 64 bits, so that state of any size takes 16 bytes per row.

    Raises:
        InputError: the folder cannot be read.
        DamagedCheckpointError: a chunk is missing or damaged.
    """
    before, after = dict(_by_operator(first)), dict(_by_operator(second))
    return [
        _diff(store, first, second, name, before.get(name, []), after.get(name, []))
        for name in dict.fromkeys((*before, *after))
    ]


def _diff(
    store: CheckpointStore,
    first: Manifest,
    second: Manifest,
    name: str,
    before: list[OperatorPart],
    after: list[OperatorPart],
) -> OperatorDiff:
    if not before or not after:
        return OperatorDiff(name, whole="removed" if before else "added" if after else "same")
    levels = [manifest.operators.get(name, {}).get("level") for manifest in (first, second)]
    # An opaque operator has chunks, too, if rows wait for it.
    if "opaque" in levels or not any(part.chunks for part in (*before, *after)):
        return OperatorDiff(name, whole="same" if _whole(before) == _whole(after) else "changed")
    keys, hashes = _hashed(store, first, name)
    others, other_hashes = _hashed(store, second, name)
    common, here, there = np.intersect1d(keys, others, return_indices=True)
    same = int(np.count_nonzero(hashes[here] == other_hashes[there]))
    return OperatorDiff(
        name,
        added=len(others) - len(common),
        removed=len(keys) - len(common),
        changed=len(common) - same,
        same=same,
    )


def _whole(parts: list[OperatorPart]) -> list[Any]:
    """Return what tells whether a state that is not kept by key is another one."""
    return [
        (part.instances, part.position, None if part.values is None else part.values.crc32)
        for part in sorted(parts, key=lambda part: part.instances)
    ]


def _hashed(store: CheckpointStore, manifest: Manifest, operator: str) -> tuple[Any, Any]:
    """Return the hashes of all keys, sorted, and of what is known of each: uint64 (keys,)."""
    keys, values = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)]
    groupings = manifest.operators.get(operator, {}).get("key", ())
    for batch in operator_rows(store, manifest, operator):
        names = batch.schema.names
        of_key = next((key for key in groupings if key and set(key) <= set(names)), None)
        if of_key is None:
            of_key = [name for name in names if not name.startswith("#")]
        keys.append(_hashes(batch, of_key))
        values.append(_hashes(batch, [name for name in names if not name.endswith(_BOOKKEEPING)]))
    found, where = np.unique(np.concatenate(keys), return_inverse=True)
    sums = np.zeros(len(found), np.uint64)
    np.add.at(sums, where, np.concatenate(values))  # the rows of a key have no order
    return found, sums


def _hashes(batch: Batch, names: Sequence[str]) -> Any:
    from ..state.keys import hash_keys

    return hash_keys(batch, names)[0]
