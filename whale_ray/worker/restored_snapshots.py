"""The snapshots of a manifest's epoch, for the operator objects of one worker to take over.

What the worker has kept in memory is taken from there. Everything else is read when an object first
asks for it: one with the instances it had asks for what it kept alone, so a survivor reads nothing
but the manifest. A chunk from the store has its file's name as its identity, so that an object that
passes it on unchanged can spare writing it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from ..operators.snapshot_files import chunk_from_bytes, values_from_bytes
from ..operators.snapshots import OperatorSnapshot, StateChunk
from ..state.epochs.manifest import ChunkFile, Manifest, OperatorPart
from .kept_snapshots import ObjectKey

if TYPE_CHECKING:
    from ..transport.wire.batch import Batch

__all__ = ["KnownFiles", "known_files", "snapshots_of"]

ReadFile = Callable[[ChunkFile], bytes]

KnownFiles: TypeAlias = dict[tuple[str, tuple[int, ...]], dict[str, ChunkFile]]
"""Files of chunks by identity, of each object: operator and instances."""


def snapshots_of(
    manifest: Manifest,
    read: ReadFile,
    kept: Mapping[ObjectKey, OperatorSnapshot] = MappingProxyType({}),
) -> dict[str, list[OperatorSnapshot]]:
    """Return the snapshots of all operator objects of an epoch, by operator id.

    Args:
        manifest: of the epoch.
        read: returns the bytes of a file, such as `CheckpointStore.read_chunk`; what it raises
            comes out where a snapshot is used.
        kept: what the worker still has of this very epoch, see `KeptSnapshots.at`.
    """
    found: dict[str, list[OperatorSnapshot]] = {}
    for part in manifest.parts:
        own = kept.get((part.operator_id, part.instances, part.parallelism))
        one = _stored(part, read) if own is None else _own(own, part, read)
        found.setdefault(part.operator_id, []).append(one)
    return found


def known_files(manifest: Manifest, kept: Mapping[ObjectKey, OperatorSnapshot]) -> KnownFiles:
    """Return the files of chunks by identity, of each object: none of them is written again.

    Args:
        manifest: of the job's own.
        kept: as for `snapshots_of`.
    """
    found: KnownFiles = {}
    for part in manifest.parts:
        own = kept.get((part.operator_id, part.instances, part.parallelism))
        files = {file.name: file for file in part.chunks}
        if own is not None:
            pairs = zip(own.chunks, part.chunks, strict=True)
            files |= {one.identity: file for one, file in pairs if one.identity is not None}
        found[part.operator_id, part.instances] = files
    return found


def _own(own: OperatorSnapshot, part: OperatorPart, read: ReadFile) -> OperatorSnapshot:
    """Return what the worker has kept; what it holds no rows of is in files."""
    stored = _StoredChunks(part.chunks, read)
    chunks = [
        replace(one, held=partial(_rows_at, stored, place)) if callable(one.held) else one
        for place, one in enumerate(own.chunks)
    ]
    return replace(own, position=part.position, chunks=chunks)


def _rows_at(chunks: Sequence[StateChunk], place: int) -> Batch:
    return chunks[place].rows


def _stored(part: OperatorPart, read: ReadFile) -> OperatorSnapshot:
    return OperatorSnapshot(
        part.operator_id,
        part.instances,
        part.parallelism,
        part.watermark_ns,
        _StoredChunks(part.chunks, read),
        _StoredValues(part.values, read),
        part.position,
    )


class _StoredChunks(Sequence[StateChunk]):
    """Chunks in files, each read whenever asked for: together they may not fit into memory."""

    def __init__(self, files: Sequence[ChunkFile], read: ReadFile) -> None:
        self._files, self._read = files, read

    def __len__(self) -> int:
        return len(self._files)

    @overload
    def __getitem__(self, place: int) -> StateChunk: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[StateChunk]: ...
    def __getitem__(self, place: int | slice) -> StateChunk | Sequence[StateChunk]:
        if isinstance(place, slice):
            return _StoredChunks(self._files[place], self._read)
        file = self._files[place]
        return replace(chunk_from_bytes(self._read(file)), identity=file.name)


class _StoredValues(Mapping[str, Any]):
    """Values in a file, which is read when one of them is first asked for."""

    def __init__(self, file: ChunkFile | None, read: ReadFile) -> None:
        self._file, self._read = file, read

    @cached_property
    def _values(self) -> Mapping[str, Any]:
        return {} if self._file is None else values_from_bytes(self._read(self._file))

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
