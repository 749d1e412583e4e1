"""The manifest of an epoch: what a restart needs, and where it lies. Pure; JSON in both directions.

A manifest names every chunk file that its epoch consists of, also those that earlier epochs have
written. What no kept manifest names may be removed. Chunks that are too small to be worth a file,
whose cost is that of its two syncs rather than of its bytes, are in the manifest itself.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ...configs.errors import DamagedCheckpointError
from .sealed_json import seal, unseal

__all__ = [
    "INLINE_BYTES_MAX",
    "ChunkFile",
    "InlineChunk",
    "Lineage",
    "Manifest",
    "OperatorPart",
    "chunk_files",
    "chunks_of",
    "decode_manifest",
    "encode_manifest",
    "how_it_ended",
]

MANIFEST_VERSION = 2
INLINE_BYTES_MAX = 4096
"""Up to so many bytes, what an epoch consists of is in its manifest."""

_KIND = "manifest"
_FILE_KEYS = {"name", "nbytes", "crc32"}


@dataclass(frozen=True)
class ChunkFile:
    """An immutable file of the store.

    Attributes:
        name: below the store's URL.
        nbytes: its size.
        crc32: of its bytes.
    """

    name: str
    nbytes: int
    crc32: int


@dataclass(frozen=True)
class InlineChunk(ChunkFile):
    """A chunk that has no file: it is in the manifests that list it.

    Attributes:
        name: as that of a file; it is known again by it.
        base64: its bytes.
    """

    base64: str

    @classmethod
    def of(cls, name: str, data: bytes) -> InlineChunk:
        """Return a chunk with these bytes."""
        return cls(name, len(data), zlib.crc32(data), b64encode(data).decode("ascii"))

    @property
    def data(self) -> bytes:
        """Its bytes."""
        return b64decode(self.base64)


@dataclass(frozen=True)
class Lineage:
    """Which job wrote an epoch, and from which epochs of which jobs it was restored.

    A sink identifies a commit by (lineage, epoch): by the epoch alone, a job that was restored from
    an older savepoint would find its commits made already, and lose what follows.

    Attributes:
        job: the id of the job.
        restored: (job, epoch) of each restore before it, the latest last.
    """

    job: str
    restored: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class OperatorPart:
    """What one operator object has added to an epoch; see `operators.snapshots.OperatorSnapshot`.

    Attributes:
        operator_id: the operator.
        instances: those that the object serves.
        parallelism: of the operator.
        watermark_ns: what it has seen of event time.
        chunks: files of its state by virtual node, or chunks in their place.
        values: the file of its other values, or a chunk in its place; None if there are none.
        position: of a source.
        staged: what a sink has staged and nobody has committed yet, oldest first; as JSON. A
            `payload` with the attributes of a `ChunkFile` is in that file.
    """

    operator_id: str
    instances: tuple[int, ...]
    parallelism: int
    watermark_ns: int
    chunks: tuple[ChunkFile, ...] = ()
    values: ChunkFile | None = None
    position: Mapping[str, Any] | None = None
    staged: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Manifest:
    """An epoch that counts.

    Attributes:
        epoch: its number.
        previous: the epoch before it that counts, 0 if none: sinks commit what was staged since.
        lineage: who wrote it.
        topology: the topology's name.
        created_ms: wall clock, ms since 1970.
        virtual_nodes: into how many parts keys are divided.
        parts: of all operator objects.
        operators: what identifies each operator to a later version of the topology: kind, level of
            state, key columns, state schema; by id.
        savepoint: a user asked for it: it is kept until the user removes it.
        stopped: the job was stopped at it.
        publisher: the job under whose id sinks publish what it names, which is all the output of a
            bounded job; "" if more was to come. Jobs that are restored from it inherit that id:
            nobody knows which sinks have published already, and they know it by the id.
        finished: the job has ended after it, and all its output is visible.
        drained: it was asked to end then, and had not read all of a source.
        versions: of the programs that wrote it.
    """

    epoch: int
    previous: int
    lineage: Lineage
    topology: str
    created_ms: int
    virtual_nodes: int
    parts: tuple[OperatorPart, ...]
    operators: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    savepoint: bool = False
    stopped: bool = False
    publisher: str = ""
    finished: bool = False
    drained: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)


def how_it_ended(manifest: Manifest) -> str:
    """Return how a job has finished, as a part of a sentence; a drained one kept nothing back."""
    if not manifest.drained:
        return "its output is complete"
    return (
        "it was drained: its inputs ended where they were, and open windows closed"
        " (job.stop(savepoint=True) stops a job that is to go on)"
    )


def chunks_of(parts: Iterable[OperatorPart]) -> dict[str, ChunkFile]:
    """Return all that operators have added to an epoch, by name: also what sinks have staged."""
    found: dict[str, ChunkFile] = {}
    for part in parts:
        for file in (*part.chunks, *([part.values] if part.values else ()), *_named(part.staged)):
            found[file.name] = file
    return found


def chunk_files(manifest: Manifest) -> dict[str, ChunkFile]:
    """Return all files that an epoch consists of, by name; chunks in the manifest are none."""
    found = chunks_of(manifest.parts)
    return {name: one for name, one in found.items() if not isinstance(one, InlineChunk)}


def _named(value: Any) -> Iterator[ChunkFile]:
    """Yield the chunk files that values of JSON name, at any depth."""
    if isinstance(value, Mapping):
        if value.keys() == _FILE_KEYS:
            yield ChunkFile(**value)
        else:
            yield from _named(tuple(value.values()))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _named(one)


def encode_manifest(manifest: Manifest, kept: Collection[str] = ()) -> bytes:
    """Return a manifest's file.

    Args:
        manifest: what it says.
        kept: the names of the manifests that are in the store beside it, which a listing of the
            store that is out of date may lack.

    Raises:
        ValueError, TypeError: a position, what a sink staged, or what identifies an operator is
            not of JSON.
    """
    return seal(_KIND, MANIFEST_VERSION, {"manifest": manifest, "kept": sorted(kept)})


def decode_manifest(data: bytes, name: str) -> tuple[Manifest, frozenset[str]]:
    """Return a manifest and the names of those that were in the store beside it.

    Args:
        data: the whole file.
        name: of the file, for messages.

    Raises:
        DamagedCheckpointError: it was cut short, or is damaged.
        InputError: it is something else, or of a newer version.
    """
    content = unseal(_KIND, MANIFEST_VERSION, data, name)
    try:
        return _manifest(content["manifest"]), frozenset(content["kept"])
    except (KeyError, TypeError) as error:
        msg = f"{name} is damaged: it lacks what a manifest has ({error})"
        raise DamagedCheckpointError(msg) from None


def _manifest(values: dict[str, Any]) -> Manifest:
    lineage = values["lineage"]
    restored = tuple((str(job), int(epoch)) for job, epoch in lineage["restored"])
    whole = {
        "lineage": Lineage(lineage["job"], restored),
        "parts": tuple(map(_part, values["parts"])),
    }
    return Manifest(**values | whole)


def _part(values: dict[str, Any]) -> OperatorPart:
    file = values["values"]
    return OperatorPart(
        **values
        | {
            "instances": tuple(values["instances"]),
            "chunks": tuple(map(_chunk, values["chunks"])),
            "values": None if file is None else _chunk(file),
            "staged": tuple(values["staged"]),
        }
    )


def _chunk(values: dict[str, Any]) -> ChunkFile:
    return InlineChunk(**values) if "base64" in values else ChunkFile(**values)
