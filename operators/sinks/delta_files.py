"""The Parquet files of a Delta table: their names, their storage, and what the log says of them.

Files lie beside each other in the table's folder, also in a partitioned table, whose log says which
values each file has. A file that no log entry names is invisible to readers of the table.

A name says who wrote the file: `part-<instance>-<key>-<random>.parquet`, where the key is a digest
of the job and the operator. It says no epoch, since a file is begun before its epoch is known, and
cannot be renamed in an object store.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, BinaryIO
from uuid import uuid4

from .part_file import sync_folder

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.fs as pafs

    from .base import Staged

PUBLICATION = 0
"""The number of a bounded job's only commit; epochs are numbered from 1."""

_NAME = re.compile(r"part-\d{5,}-([0-9a-f]{16})-[0-9a-f]{8}\.parquet")


def key_of(token: str, operator_id: str) -> str:
    """Return the digest by which the files of a job's operator are recognized."""
    return blake2b(f"{token}\0{operator_id}".encode(), digest_size=8).hexdigest()


def new_name(instance: int, key: str) -> str:
    """Return a name that no other file has."""
    return f"part-{instance:05d}-{key}-{uuid4().hex[:8]}.parquet"


def key_in(name: str) -> str | None:
    """Return the key in a name; None if it is not that of such a file."""
    found = _NAME.fullmatch(name)
    return None if found is None else found[1]


@dataclass(frozen=True)
class DeltaFile:
    """A complete file, as the log describes it.

    Attributes:
        name: below the table.
        nbytes: its size.
        rows: in it.
        written_ms: when it was written, wall clock, ms since 1970.
        partition: the value of each column by which the table is partitioned, as text; None: null.
        statistics: of Delta's form, JSON.
    """

    name: str
    nbytes: int
    rows: int
    written_ms: int
    partition: Mapping[str, str | None]
    statistics: str

    def as_action(self) -> Any:
        """Return the entry that makes the file part of the table."""
        from deltalake.transaction import AddAction

        return AddAction(
            self.name, self.nbytes, self.partition, self.written_ms, True, self.statistics
        )


@dataclass(frozen=True)
class StagedFiles:
    """What one writer has staged at once, as the payload of `Staged`.

    Attributes:
        application: who will commit it, as it stands in the table's log.
        number: of the commit.
        files: complete ones.
    """

    application: str
    number: int
    files: tuple[DeltaFile, ...]

    def to_payload(self) -> bytes:
        """Return JSON, which a manifest keeps."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_payload(cls, payload: bytes) -> StagedFiles:
        """Return what `to_payload` was called for."""
        told = json.loads(payload)
        files = tuple(DeltaFile(**one) for one in told["files"])
        return cls(told["application"], told["number"], files)


def staged_files(staged: Iterable[Staged]) -> list[StagedFiles]:
    """Return what writers have staged, in their order."""
    return [StagedFiles.from_payload(part.payload) for part in staged if part.payload]


@dataclass(frozen=True)
class TableFolder:
    """The folder of a table, here or in an object store.

    Attributes:
        url: an absolute path, or a URL.
        options: of the object store, as deltalake takes them.
    """

    url: str
    options: Mapping[str, str] = field(repr=False)

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of a local or mounted file system."""
        return "://" not in self.url

    def path(self, name: str) -> str:
        """Return the path or the URL of a file."""
        return f"{self.url.rstrip('/')}/{name}"

    def create(self, name: str) -> BinaryIO:
        """Open a new file."""
        if self.is_local:
            os.makedirs(self.url, exist_ok=True)
            return open(self.path(name), "xb")
        stream: BinaryIO = self._store().open_output_stream(name)
        return stream

    def finish(self, name: str, stream: BinaryIO) -> tuple[int, int]:
        """Close a file so that it survives a crash; return its size, and when it was written, ms.

        A file in an object store is there once it is closed.
        """
        if self.is_local:
            stream.flush()
            os.fsync(stream.fileno())
            stream.close()
            sync_folder(self.url)
            found = os.stat(self.path(name))
            return found.st_size, found.st_mtime_ns // 1_000_000
        stream.close()
        info = self._store().get_file_info(name)
        return info.size, info.mtime_ns // 1_000_000

    def read(self, name: str) -> pa.Table:
        """Read a file."""
        import pyarrow.parquet as pq

        if self.is_local:
            with pq.ParquetFile(self.path(name)) as file:
                return file.read()
        with self._store().open_input_file(name) as stream, pq.ParquetFile(stream) as file:
            return file.read()

    def names(self) -> Iterator[str]:
        """Yield the names of the files that are in the folder; none if it is not there."""
        if self.is_local:
            try:
                yield from os.listdir(self.url)
            except FileNotFoundError:
                return
            return
        import pyarrow.fs as pafs

        for info in self._store().get_file_info(pafs.FileSelector("", allow_not_found=True)):
            if info.type is pafs.FileType.File:
                yield info.base_name

    def remove(self, name: str) -> None:
        """Remove a file; it may be gone."""
        try:
            if self.is_local:
                os.unlink(self.path(name))
            else:
                self._store().delete_file(name)
        except FileNotFoundError:
            return

    def sync_log(self, since: int) -> None:
        """Make the entries of a local table's log after a version survive a crash."""
        if not self.is_local:
            return
        log = self.path("_delta_log")
        for name in os.listdir(log):
            version, _, kind = name.partition(".")
            if kind == "json" and version.isdigit() and int(version) > since:
                with open(os.path.join(log, name), "rb") as stream:
                    os.fsync(stream.fileno())
        sync_folder(log)

    def _store(self) -> pafs.FileSystem:
        import pyarrow.fs as pafs
        from deltalake.fs import DeltaStorageHandler

        return pafs.PyFileSystem(DeltaStorageHandler(self.url, dict(self.options)))
