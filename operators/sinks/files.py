"""The sinks of files: Parquet, CSV and JSON lines.

The output is always a folder of parts, one per sink instance that had rows, as in Spark:
`out/part-00003.parquet` is that of instance 3. All parts have the same schema. A result without
rows is one empty part, or none if its columns are unknown. Missing folders above the output are
created at the end. With checkpoints, an instance has one part for each epoch; see `epoch_parts`.
"""

from __future__ import annotations

import io
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from ...configs.errors import OutputError, system_reason
from ...configs.file_names import check_encodable
from ..arguments import check_bool, check_type, refuse
from .base import CommitId, Delivery, Sink, SinkResult, SinkWriter, Staged
from .epoch_part import EpochFolder, EpochPart
from .epoch_parts import EpochParts, drop_note, remove_if_spent
from .formats import CsvFormat, JsonLinesFormat, ParquetFormat, PartEncoder, PartFormat
from .held_folders import FolderHold
from .manifest import is_manifest, write_manifest
from .part_file import PartFile
from .staging import PART_PREFIX, OutputFolder
from .writer_schema import WriterSchema, common_schema

if TYPE_CHECKING:
    from typing import Self

    import pyarrow as pa

    from ...configs.settings import Settings
    from ...transport.wire.batch import Batch
    from ..process import InstanceContext

_COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")
"""Of Parquet files, as pyarrow names them, in any case."""


@dataclass(frozen=True)
class _Parts:
    """The parts of all instances; without rows, `empty` is the content of the only part."""

    staged: Sequence[Staged]
    names: list[str]
    files: Mapping[str, Staged]
    empty: bytes | None
    rows: int
    nbytes: int
    schema: bytes | None

    def are_in(self, folder: OutputFolder) -> bool:
        """Return whether exactly these parts were published in a folder."""
        if self.empty is None:
            return folder.holds(self.files)
        # The coordinator writes the part without rows, so its inode says nothing.
        return folder.holds_only(self.names[0], self.empty)


@dataclass(frozen=True)
class FileSink(Sink):
    """A folder of parts in one format."""

    publishes_parts: ClassVar[bool] = True
    delivery: ClassVar[Delivery | None] = "exactly once"

    folder: OutputFolder
    format: PartFormat
    given_path: str
    remedy: str = "make room or mend the folder, or name another output"
    checkpoints: str = ""
    """The folder or URL of the job's checkpoints; empty if it has none."""

    def configured(self, settings: Settings) -> Self:
        """Return this sink with the place of the job's checkpoints."""
        url = settings.checkpoints.url
        if not url or "://" in url:
            return replace(self, checkpoints=url)
        return replace(self, checkpoints=os.path.abspath(os.path.expanduser(url)))

    def check(self) -> None:
        """Raise `OutputError` if the output exists or cannot be written."""
        self.folder.check()

    def prepare(self, token: str, *, bounded: bool) -> None:
        """Clean up after dead jobs; for an unbounded job remove the output to overwrite, too."""
        with self.errors():
            self.folder.sweep()
            self.folder.check()
            if not bounded:
                self.folder.remove(token)

    def open(self, context: InstanceContext, token: str) -> SinkWriter:
        """Open one instance's part; no file is created before the first row."""
        return FileWriter(self, context.operator_id, context.instance, token)

    def publish(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Rename the hidden folder of staged parts to the output."""
        with self.errors():
            return self._publish(token, self._parts(staged), self.folder)

    def publish_partial(self, token: str, staged: Sequence[Staged]) -> SinkResult:
        """Publish beside the output: as `out.partial`, or under the next free name."""
        with self.errors():
            parts = self._parts(staged)
            self._take_back(token)
            places = map(self.folder.partial, itertools.count(1))
            place = next(one for one in places if one.is_free or parts.are_in(one))
            self.folder.hand_over(token, place)
            return self._publish(token, parts, place)

    def commit(self, commit: CommitId, staged: Sequence[Staged]) -> None:
        """Move the parts to the output."""
        with self.errors():
            common_schema(staged, self.describe())
            self._epochs(commit.lineage).commit(staged)

    def recover(self, token: str, staged: Sequence[Staged], *, bounded: bool) -> None:
        """Check that all parts are there, and remove those of epochs that do not count."""
        with self.errors():
            epochs = self._epochs(token)
            self._take_back(token)
            self.folder.sweep({*epochs.folders_of(staged), self.folder.hidden(token)})
            epochs.remove_spent()
            if not bounded:
                epochs.recover(staged)
                return
            parts = self._parts(staged)
            for place in (self.folder, *self._partial_outputs()):
                if place.was_published_by(token) or (parts.files and parts.are_in(place)):
                    return  # a job died behind its publication
            self.folder.check()
            epochs.gather(staged)

    def _partial_outputs(self) -> Iterator[OutputFolder]:
        """Yield the partial outputs that there are."""
        places = map(self.folder.partial, itertools.count(1))
        return itertools.takewhile(lambda one: os.path.lexists(one.path), places)

    def _take_back(self, token: str) -> None:
        """Undo `hand_over`, if its job died before the partial output was in its place."""
        for place in map(self.folder.partial, itertools.count(1)):
            place.hand_over(token, self.folder)
            if not os.path.lexists(place.path):
                break

    def lacks_output(self) -> bool:
        """See `Sink.lacks_output`: an empty folder, such as a mount point, is no output."""
        with self.errors():
            return not self._epochs("").has_output

    def _epochs(self, job: str) -> EpochParts:
        return EpochParts(self.folder, job, self.checkpoints)

    def with_files(self, token: str, staged: Sequence[Staged]) -> list[Staged]:
        """Return staged parts with payloads written to the hidden folder, for `publish`.

        Those that are published already are found in the output, and are not written again.
        """
        with self.errors():
            self._take_back(token)
            return self._epochs(token).with_files(staged, self.format.suffix)

    def discard(self, token: str) -> None:
        """Remove what an attempt staged."""
        self.folder.discard(token)
        for place in map(self.folder.partial, itertools.count(1)):
            is_last = not os.path.lexists(place.path)  # a partial output would get this name
            place.discard(token)
            if is_last:
                break

    @property
    def staged_as(self) -> str:
        """See `Sink.staged_as`."""
        return self.format.name

    def describe(self) -> str:
        """Return format and path, as the user wrote it."""
        return f"{self.format.name} {self.given_path}"

    def errors(self) -> AbstractContextManager[None]:
        """Convert errors of the file system and of the format to `OutputError`."""
        return _as_output_error(self.given_path, self.remedy)

    def _parts(self, staged: Sequence[Staged]) -> _Parts:
        schema = common_schema(staged, self.describe())
        files = {os.path.basename(part.path): part for part in staged if part.path is not None}
        empty = None if files or schema is None else self._empty_part(schema)
        return _Parts(
            staged,
            names=sorted(files) if empty is None else [self._part_name(0)],
            files=files,
            empty=empty,
            rows=sum(part.rows for part in staged),
            nbytes=sum(part.nbytes for part in staged) if empty is None else len(empty),
            schema=None if schema is None else schema.serialize().to_pybytes(),
        )

    def _publish(self, token: str, parts: _Parts, folder: OutputFolder) -> SinkResult:
        """Publish as `folder`, unless a coordinator that died has already done it."""
        if parts.are_in(folder):
            folder.discard(token)
        else:
            self._rename(token, parts, folder)
        drop_note(folder.path)
        self._epochs(token).release(parts.staged)
        return SinkResult(
            rows=parts.rows,
            nbytes=parts.nbytes,
            path=folder.path,
            parts=tuple(os.path.join(folder.path, name) for name in parts.names),
            format=self.format.name,
            schema=parts.schema,
            load_line=self.format.load_line(folder.path) if parts.names else "",
        )

    def _rename(self, token: str, parts: _Parts, folder: OutputFolder) -> None:
        hold = folder.hold_hidden(token)
        try:
            hidden = folder.hidden(token)
            epochs = EpochParts(folder, token, self.checkpoints)
            if not epochs.is_whole(parts.files):
                epochs.gather(parts.staged)
            if parts.empty is not None:
                with open(os.path.join(hidden, parts.names[0]), "wb") as stream:
                    stream.write(parts.empty)
                    stream.flush()
                    os.fsync(stream.fileno())
            found = sorted(name for name in os.listdir(hidden) if not is_manifest(name))
            if found != parts.names:
                msg = (
                    f"the staged parts of {self.given_path!r} are {found} instead of "
                    f"{parts.names}; did something else write there?"
                )
                raise OutputError(msg)
            write_manifest(hidden, parts.names, token)
            folder.publish(token)
        finally:
            hold.close()

    def _empty_part(self, schema: pa.Schema) -> bytes:
        stream = io.BytesIO()
        self.format.encoder(stream, schema).close()
        return stream.getvalue()

    def _part_name(self, instance: int) -> str:
        return f"{PART_PREFIX}{instance:05d}{self.format.suffix}"


class FileWriter(SinkWriter):
    """Writes one instance's part to a file without a name."""

    def __init__(self, sink: FileSink, operator_id: str, instance: int, token: str) -> None:
        self._sink = sink
        self._instance = instance
        self._token = token
        self._schema = WriterSchema(operator_id)
        self._file: PartFile | None = None
        self._encoder: PartEncoder | None = None
        self._rows = 0
        self._parts = 0
        self._staged: str | None = None
        self._hold: FolderHold | None = None
        with sink.errors():
            self._epochs = EpochFolder(sink._epochs(token))
        self._cut: list[EpochPart] = []

    def write(self, batch: Batch) -> None:
        """Encode the rows; see `SinkWriter.write`."""
        if self._sink.format.keeps_rows and not batch.owned:
            batch = batch.copy()
        with self._sink.errors():
            record = self._schema.conform(batch)
            if not record.num_rows:
                return
            if self._encoder is None:
                self._encoder = self._start(record.schema)
            self._encoder.write(record)
            self._rows += record.num_rows

    def stage(self) -> Staged:
        """Complete the part and link it into the hidden folder."""
        with self._sink.errors():
            if self._finish() is None:
                return self._receipt(None)
            self._hold = self._hold or self._sink.folder.hold_hidden(self._token)
            self._staged = self._link_hidden(f"{PART_PREFIX}{self._instance:05d}")
            return self._receipt(self._staged)

    def stage_epoch(self, epoch: int) -> Staged | None:
        """Complete a part and link it into the hidden folder, where it outlives this process."""
        stage = self.cut_epoch(epoch)
        return None if stage is None else stage()

    def cut_epoch(self, epoch: int) -> Callable[[], Staged] | None:
        """Set the part apart, which is then encoded to its end and synced beside the loop."""
        self._cut = [part for part in self._cut if not part.is_complete]
        for part in self._cut:
            part.check()
        if self._encoder is None or self._file is None:
            return None
        if not self._epochs.columns:
            assert self._schema.schema is not None
            self._epochs.columns = self._schema.schema.serialize().to_pybytes()
        receipt = Staged(self._instance, self._rows, schema=self._epochs.columns)
        part = EpochPart(self._sink, self._epochs, epoch, receipt, self._file, self._encoder)
        self._file, self._encoder, self._rows = None, None, 0
        self._cut.append(part)
        return part.complete

    def publish_part(self) -> Staged | None:
        """Complete a part and link it into the output at once."""
        with self._sink.errors():
            file = self._finish()
            if file is None:
                return None
            folder = self._sink.folder
            suffix = self._sink.format.suffix
            path, number = folder.add_part(file, self._instance, suffix, self._parts)
            self._parts = number + 1
            self._drop_file()
            receipt = self._receipt(path)
            self._rows = 0
            return receipt

    def abort(self) -> None:
        """Drop what was not published; closing a file without a name frees it."""
        if self._encoder is not None:
            self._encoder.drop()
            self._encoder = None
        self._drop_file()
        for part in self._cut:
            part.drop()
        self._cut.clear()
        self._epochs.close()
        if self._staged is not None:
            with suppress(OSError):
                os.unlink(self._staged)
            self._staged = None
        if self._hold is not None:
            self._hold.close()
            self._hold = None
        remove_if_spent(self._sink.folder.hidden(self._token))

    def _start(self, schema: pa.Schema) -> PartEncoder:
        self._sink.format.check(schema)
        if not self._epochs.is_held:
            # Other columns fail the job here; where they are staged, that would be tried again.
            columns = schema.serialize().to_pybytes()
            self._epochs.parts.check_columns(columns)
        name = self._sink._part_name(self._instance)
        self._file = self._sink.folder.new_file(self._token, name)
        return self._sink.format.encoder(self._file.stream, schema)

    def _finish(self) -> PartFile | None:
        """Complete the file and return it; None if there are no rows."""
        if self._encoder is not None:
            self._encoder.close()
            self._encoder = None
        return self._file

    def _link_hidden(self, stem: str) -> str:
        """Give the file a free name in the hidden folder and return its path."""
        assert self._file is not None
        hidden = self._sink.folder.hidden(self._token)
        path = self._file.link_free(os.path.join(hidden, stem), self._sink.format.suffix)
        self._drop_file()
        return path

    def _drop_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _receipt(self, path: str | None) -> Staged:
        schema = self._schema.schema
        found = None if path is None else os.stat(path)
        return Staged(
            instance=self._instance,
            rows=self._rows,
            nbytes=0 if found is None else found.st_size,
            schema=None if schema is None else schema.serialize().to_pybytes(),
            path=path,
            inode=None if found is None else found.st_ino,
        )


@contextmanager
def _as_output_error(path: str, remedy: str) -> Iterator[None]:
    """Convert errors of the file system and of the format to one line that names the output."""
    import pyarrow as pa

    try:
        yield
    except OSError as error:
        msg = f"cannot write the output {path!r}: {system_reason(error)}; {remedy}"
        raise OutputError(msg) from None  # the traceback would add nothing
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        msg = f"cannot write the output {path!r}: {reason}; cast the column, or use another format"
        raise OutputError(msg) from None


def parquet(
    path: str | os.PathLike[str], *, overwrite: bool = False, compression: str = "zstd"
) -> Sink:
    """Write a folder of Parquet files.

    The folder contains a list of its parts, `_whale-parts`, which readers of folders ignore.
    Nothing is visible before the job has succeeded; then the folder appears at once. An unbounded
    job adds complete, numbered parts to it while it runs.

    Args:
        path: the folder; missing parent folders are created.
        overwrite: replace an existing output, if it contains only listed parts.
        compression: `zstd`, `snappy`, `gzip`, `lz4`, `brotli` or `none`.

    Raises:
        OutputError: the output exists, or cannot be written; raised when the topology is planned
            and again when it is published.
        UsageError: an argument has another type, or names no such compression.
    """
    if not isinstance(compression, str) or compression.lower() not in _COMPRESSIONS:
        wanted = f"{', '.join(map(repr, _COMPRESSIONS[:-1]))} or {_COMPRESSIONS[-1]!r}"
        refuse("sinks.parquet", "compression", compression, wanted)
    return _file_sink(path, ParquetFormat(compression), overwrite)


def csv(path: str | os.PathLike[str], *, overwrite: bool = False) -> Sink:
    """Write a folder of CSV files with a header; texts are in double quotes, nulls are empty.

    See `parquet` for the arguments and for the time when the output appears.
    """
    return _file_sink(path, CsvFormat(), overwrite)


def json_lines(path: str | os.PathLike[str], *, overwrite: bool = False) -> Sink:
    """Write a folder of files with one JSON object per line.

    See `parquet` for the arguments and for the time when the output appears.
    """
    return _file_sink(path, JsonLinesFormat(), overwrite)


def _file_sink(path: str | os.PathLike[str], format: PartFormat, overwrite: bool) -> FileSink:
    check_type(f"sinks.{format.name}", "path", path, (str, os.PathLike), "the path of a folder")
    check_bool(f"sinks.{format.name}", "overwrite", overwrite)
    given = os.fspath(path)
    if not given or "://" in given or "\0" in given:
        msg = f"the output path {given!r} must be a folder on a local or mounted file system"
        raise OutputError(msg)
    check_encodable("the output path", given)
    try:
        absolute = os.path.abspath(os.path.expanduser(given))
    except FileNotFoundError:
        msg = f"the output path {given!r} is relative, and the current folder was removed"
        raise OutputError(msg) from None
    if os.path.isdir(absolute) and os.path.islink(absolute):
        absolute = os.path.realpath(absolute)  # so that the folder is replaced, not the link
    return FileSink(OutputFolder(absolute, overwrite), format, given)
