"""The store of checkpoints: chunk files, and manifests that list them, below one folder.

A manifest counts once `write_manifest` has returned. Then it is durable, and so is a small file
that names it: whoever looks for the newest one later can tell a manifest that was never finished,
which it passes over, from one that was and is damaged, which it refuses. That file is also read by
its name, so that a listing that is out of date hides nothing that is durable.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Collection

from ...configs.errors import DamagedCheckpointError
from .manifest import ChunkFile, Manifest, decode_manifest, encode_manifest
from .retention import kept_manifests, removable_chunks
from .sealed_json import seal, unseal
from .store_files import StoreFiles, files_at
from .store_names import (
    CHUNKS,
    CLAIMS,
    MANIFESTS,
    NEWEST,
    ChunkName,
    ManifestName,
    claim_name,
    claim_number,
    manifest_names,
    newest_name,
)

__all__ = ["CheckpointStore"]

_log = logging.getLogger(__name__)

_NEWEST = "note of the newest manifest"
_NEWEST_VERSION = 1


class CheckpointStore:
    """Chunk files and manifests below a folder. Many may read; one job writes.

    Args:
        files: the folder.
    """

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._durable: frozenset[str] | None = None  # what the one job that writes knows itself

    @classmethod
    def at(cls, url: str) -> CheckpointStore:
        """Return the store at a path of a local directory, or at a URL that fsspec knows.

        Nothing is read or written.

        Raises:
            ResourceError: fsspec, or what it takes for this kind of URL, is not installed.
            InputError: the URL is not understood.
        """
        return cls(files_at(url))

    @property
    def url(self) -> str:
        """The folder's absolute path, or its URL."""
        return self._files.url

    # --- chunks -----------------------------------------------------------------------------------

    def write_chunk(self, name: str, data: bytes) -> ChunkFile:
        """Write a chunk file, durably; from any thread of any process of the job.

        Args:
            name: of `store_names.chunk_name`. The CRC of the data is added to it, so that no file
                is ever replaced by another one.
            data: its bytes.

        Raises:
            OutputError: it cannot be written, such as for want of room.
        """
        if ChunkName.of(name) is None:
            msg = f"{name!r} is not the name of a chunk file"
            raise ValueError(msg)
        crc32 = zlib.crc32(data)
        file = ChunkFile(f"{name}-{crc32:08x}", len(data), crc32)
        self._files.put(file.name, data)
        return file

    def read_chunk(self, file: ChunkFile) -> bytes:
        """Return the bytes of a chunk file.

        Raises:
            DamagedCheckpointError: it is missing, or is not what was written.
            InputError: the folder cannot be read.
        """
        data = self._files.get(file.name)
        remedy = "restore from another epoch or savepoint (`whale-ray state` lists them)"
        if data is None:
            msg = f"the checkpoint folder {self.url!r} lacks {file.name}; {remedy}"
            raise DamagedCheckpointError(msg)
        if len(data) != file.nbytes:
            what = f"has {len(data):,} bytes instead of {file.nbytes:,}"
        elif zlib.crc32(data) != file.crc32:
            what = "has other bytes than were written"
        else:
            return data
        msg = f"{file.name} in the checkpoint folder {self.url!r} {what}; {remedy}"
        raise DamagedCheckpointError(msg)

    # --- manifests --------------------------------------------------------------------------------

    def write_manifest(self, manifest: Manifest) -> str:
        """Write a manifest, and return its name once it is durable: then the epoch counts.

        All chunk files that it lists must have been written.

        Raises:
            OutputError: it cannot be written, or it is unknown whether it was; it may turn up.
            ValueError, TypeError: see `encode_manifest`.
        """
        name = ManifestName(0, manifest.epoch, manifest.lineage.job)
        if self._durable is None:
            self._durable = self._durable_names()
        self._files.put(str(name), encode_manifest(manifest, self._durable))
        self._files.put(newest_name(name.claim), seal(_NEWEST, _NEWEST_VERSION, str(name)))
        self._durable |= {str(name)}
        return str(name)

    def read_manifest(self, name: str) -> Manifest:
        """Return a manifest.

        Raises:
            DamagedCheckpointError: it is missing, cut short or damaged.
            InputError: it is of a newer version, or the folder cannot be read.
        """
        return self._read(name)[0]

    def manifests(self) -> list[str]:
        """Return the names of all manifests, also of damaged ones, the newest last."""
        listed = set(self._files.names(MANIFESTS))
        unseen = (name for name in self._durable_names() - listed if self._files.get(name))
        return list(map(str, manifest_names((*listed, *unseen))))

    def newest(self, job: str | None = None) -> Manifest | None:
        """Return the newest manifest, None if there is none; with `job`, of those that it wrote.

        One that was never finished is passed over, and logged.

        Raises:
            DamagedCheckpointError: one that was durable is gone, cut short or damaged: to go on
                from one before it unasked would lose or repeat results.
            InputError: the newest is of a newer version, or the folder cannot be read.
        """
        name = self.newest_name(job)
        return None if name is None else self.read_manifest(name)

    def newest_name(self, job: str | None = None) -> str | None:
        """Return the name of the manifest that `newest` returns; it is whole."""
        last = self._last_durable()
        unseen = () if last is None else (str(last),)
        for name in reversed(manifest_names((*self._files.names(MANIFESTS), *unseen))):
            if job is not None and name.job != job:
                continue
            try:
                self.read_manifest(str(name))
            except DamagedCheckpointError as error:
                if last is not None and name <= last:
                    msg = (
                        f"{error}; it was whole once, and results behind it may be out already: to"
                        " go on from an earlier epoch all the same, name its manifest"
                        f" ({self.url}/{MANIFESTS}/…; `whale-ray state` lists them)"
                    )
                    raise DamagedCheckpointError(msg) from None
                _log.warning("%s: it was never finished, and is passed over", error)
            else:
                return str(name)
        return None

    # --- what nobody needs any more ---------------------------------------------------------------

    def remove_unlisted(self, keep: int, needed: Collection[str] = ()) -> int:
        """Remove old manifests, and chunk files that nobody may need; return how many files.

        Args:
            keep: so many of the newest manifests stay, at least 1; savepoints stay beside them.
            needed: further manifests that stay: what a job was restored from, as long as it has
                none of its own.

        Raises:
            DamagedCheckpointError: a manifest that stays is damaged. Nothing is removed then, since
                nobody knows what it lists.
            InputError: the folder cannot be read, or a manifest is of a newer version; the same.
            OutputError: something cannot be removed.
        """
        assert keep >= 1
        durable = self._durable_names()
        last = self._last_durable()
        if last is None:
            return 0
        manifests = {}
        for name in self.manifests():
            try:
                manifests[name] = self.read_manifest(name)
            except DamagedCheckpointError:
                if name in durable:
                    raise
        kept = kept_manifests(manifests, durable, keep, needed)
        stay = {name: manifests[name] for name in kept}
        # Manifests go first: a crash in between leaves files that nothing lists, not the reverse.
        gone = [name for name in manifests if name not in kept]
        gone += removable_chunks(self._files.names(CHUNKS), stay, last.job)
        for name in gone:
            self._files.remove(name)
        self._durable = durable & kept
        return len(gone)

    # --- what is durable --------------------------------------------------------------------------

    def _last_durable(self) -> ManifestName | None:
        """Return the newest manifest that is known to be durable; it may be damaged by now."""
        for number in reversed(self._claim_numbers()):
            where = newest_name(number)
            data = self._files.get(where)
            if data is not None:
                return ManifestName.of(unseal(_NEWEST, _NEWEST_VERSION, data, self._where(where)))
        return None

    def _durable_names(self) -> frozenset[str]:
        """Return the names of all manifests that are known to be durable; some may be gone."""
        if self._durable is not None:
            return self._durable
        last = self._last_durable()
        if last is None:
            return frozenset()
        return self._read(str(last))[1] | {str(last)}

    def _claim_numbers(self) -> list[int]:
        """Return the numbers of all claims, also of those that a listing does not show yet."""
        names = (*self._files.names(CLAIMS), *self._files.names(NEWEST))
        numbers = {0, *map(claim_number, names)}
        while self._files.get(claim_name(max(numbers) + 1)) is not None:
            numbers.add(max(numbers) + 1)
        return sorted(numbers)

    def _read(self, name: str) -> tuple[Manifest, frozenset[str]]:
        data = self._files.get(name)
        if data is None:
            msg = f"the checkpoint folder {self.url!r} lacks {name}"
            raise DamagedCheckpointError(msg)
        return decode_manifest(data, self._where(name))

    def _where(self, name: str) -> str:
        return f"{name} in the checkpoint folder {self.url!r}"
