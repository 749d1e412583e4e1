"""The source of files that appear in a folder, each read once; it has no end.

A file must appear complete: it is written under another name, which begins with `.` or `_` or has
another suffix, and then renamed. Instances look into the folder on their own, and each reads the
files that are its own, so they need nothing from each other.

A position holds which files were read (`files_read`) and the position in the one that is being
read, which is that of a source of this file alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

from ...configs.errors import InputError
from ...configs.units import NS_PER_MS
from ..arguments import check_type
from .base import BadRows, Source, SourceReader
from .csv_files import CsvSource, csv
from .files import START_ANEW, PathLike, likeness
from .files_read import FileKey, FilesRead, LastRead, owner_of
from .json_lines_files import JsonLinesSource, json_lines
from .parquet_files import ParquetSource, parquet
from .progress import own_or_first
from .text_source import check_policy, take_schema

if TYPE_CHECKING:
    from typing import Self

    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema
    from ..process import InstanceContext
    from ..snapshots import Position
    from .text_source import SchemaLike

FileFormat: TypeAlias = Literal["parquet", "csv", "json_lines"]
FileOrder: TypeAlias = Literal["name", "time"]
_OneFile: TypeAlias = ParquetSource | CsvSource | JsonLinesSource

_OPENING_NS = 50_000_000
"""`read` returns after this time even if all files that it opened had no rows."""

UNREADABLE, VANISHED, LATE, CHANGED, GROWN, ANOTHER = (
    "file that cannot be read",
    "file that vanished before it was read",
    "file that appeared too late",
    "file that changed while it was read",
    "file that grew after it was read",
    "file that changed after it was read",
)


@dataclass(frozen=True)
class GrowingFolderSource(Source):
    """A source of the files that appear in a folder.

    Attributes:
        of_one: how each file is read; its paths are replaced by the file.
        order: what files are ordered by.
        poll_ns: the time between two looks into the folder.
        remember_files: how many files that were read an instance remembers by name.
        on_bad_rows: the policy for bad rows, and for files that cannot be read.
    """

    of_one: _OneFile
    order: FileOrder
    poll_ns: int
    remember_files: int
    on_bad_rows: BadRows = "fail"

    bounded = False

    @property
    def folder(self) -> str:
        """The absolute path of the folder."""
        return self.of_one.paths.absolute[0]

    def check(self) -> None:
        """Raise `InputError` if the folder is missing."""
        if not os.path.isdir(self.folder):
            msg = f"no folder {self.folder!r}; create it, or correct the path"
            raise InputError(msg)

    def schema(self) -> Schema | None:
        """Return the columns, if they were given."""
        if isinstance(self.of_one, ParquetSource):
            return None
        return self.of_one.declared_schema()

    def with_bad_rows(self, policy: BadRows) -> Self:
        """Return this source with another policy for bad rows, and for unreadable files."""
        checked = check_policy(policy)
        return replace(self, on_bad_rows=checked, of_one=self.of_one.with_bad_rows(checked))

    def open(self, context: InstanceContext) -> SourceReader:
        """Begin with the files that are there."""
        return GrowingFolderReader(self, context, FilesRead(self.remember_files))

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        """Continue with the files that were not read, and with the rest of those begun.

        Raises:
            InputError: files were read in another order.
        """
        for one in positions:
            if one["order"] != self.order:
                msg = (
                    f"{self.describe()}: files were read by {one['order']} before the checkpoint, "
                    f"and order={self.order!r} now; {START_ANEW}"
                )
                raise InputError(msg)
        instance, parallelism = context.instance, context.parallelism
        olds = [FilesRead.from_json(one["files"], self.remember_files) for one in positions]
        begun = {name: place for one in positions for name, place in one["begun"]}
        if len(positions) == parallelism:
            read = olds[instance]
        else:
            listed = self.list_own(context).values()
            read = FilesRead.divided(olds, listed, begun, instance, parallelism)
        mine = {name: at for name, at in begun.items() if owner_of(name, parallelism) == instance}
        learnt = own_or_first(context, positions, "columns")
        columns = None if learnt is None else take_schema(dict(learnt))
        last = LastRead.divided([one.get("last", ()) for one in positions], instance, parallelism)
        return GrowingFolderReader(self, context, read, mine, columns, last)

    def resumption(self) -> str:
        """Return that the files read are remembered."""
        return "remembers the files read and goes on in the one begun"

    def describe(self) -> str:
        """Return the format, the folder and the order."""
        kind = self.of_one.describe().split(" ")[0]
        return f"{kind} files that appear in {self.of_one.paths.describe()}, by {self.order}"

    def list_own(self, context: InstanceContext) -> dict[str, FileKey]:
        """Return the instance's files that are in the folder now, by name.

        Raises:
            InputError: the folder cannot be listed.
        """
        found: dict[str, FileKey] = {}
        takes = self.of_one.paths.takes
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    name = entry.name
                    if takes(name) and owner_of(name, context.parallelism) == context.instance:
                        key = self._key_of(entry)
                        if key is not None:
                            found[name] = key
        except OSError as error:
            msg = (
                f"the folder {self.folder!r} cannot be listed ({error.strerror}); bring it back, "
                "or change its mode"
            )
            raise InputError(msg) from error
        return found

    def _key_of(self, entry: os.DirEntry[str]) -> FileKey | None:
        """Return the key of a file; None for a folder, and for a file that has just vanished."""
        try:
            if not entry.is_file():
                return None
            return (0 if self.order == "name" else entry.stat().st_mtime_ns), entry.name
        except FileNotFoundError:
            return None

    def of_file(self, name: str) -> Source:
        """Return the source of one file of the folder."""
        path = os.path.join(self.folder, name)
        paths = replace(self.of_one.paths, given=(path,), absolute=(path,))
        return replace(self.of_one, paths=paths)


class GrowingFolderReader(SourceReader):
    """Reads the files of one instance, one after the other, and looks for more.

    Args:
        source: the folder.
        context: the instance.
        read: the files that it has read.
        begun: the position in each of its files of which a part was read.
        columns: those of the files before.
        last: what the files were like that were read last.
    """

    def __init__(
        self,
        source: GrowingFolderSource,
        context: InstanceContext,
        read: FilesRead,
        begun: Mapping[str, Position] | None = None,
        columns: Schema | None = None,
        last: LastRead | None = None,
    ) -> None:
        self._source = source
        self._context = context
        self._of_one = replace(context, instance=0, instances=(0,), parallelism=1)
        self._read = read
        self._begun = dict(begun or {})
        self._columns = columns
        self._clock = context.clock
        self._look_ns = 0
        self._listed: set[str] | None = None
        self._queue: list[FileKey] = []
        self._empty: set[str] = set()
        self._name = ""
        self._key: FileKey = (0, "")
        self._like: Mapping[str, Any] = {}
        self._last = last or LastRead()
        self._reader: SourceReader | None = None
        self._rejected: dict[str, int] = {}

    def read(self, max_rows: int) -> Batch | None:
        """Return the next rows of the file that is being read, or of the next one that has any.

        Raises:
            InputError: with the policy `fail`: a file cannot be read, has vanished, has changed
                while it was read, has other columns, or has appeared too late.
            BadRowError: see the format.
        """
        until_ns = self._clock.monotonic_ns() + _OPENING_NS
        while self._reader is not None or self._open_next():
            batch = self._read_on(max_rows)
            if batch is not None:
                return batch
            if self._clock.monotonic_ns() >= until_ns:
                break
        return None

    @property
    def finished(self) -> bool:
        """Never."""
        return False

    def next_ready_ns(self) -> int | None:
        """Return when to look into the folder again; None while there are files to read."""
        return None if self._reader is not None or self._queue else self._look_ns

    def position(self) -> Position:
        """Return the files read, and the position in each begun."""
        begun = dict(self._begun)
        if self._reader is not None:
            begun[self._name] = cast("Position", self._reader.position())
        return {
            "order": self._source.order,
            "files": self._read.to_json(),
            "last": self._last.to_json(),
            "begun": [[name, place] for name, place in begun.items()],
            "columns": self._columns and [[one.name, str(one.type)] for one in self._columns],
        }

    @property
    def rejected(self) -> Mapping[str, int]:
        """The rows left out by reason; for files left out, their number."""
        total = dict(self._rejected)
        if self._reader is not None:
            _add(total, self._reader.rejected)
        return total

    def close(self) -> None:
        """Close the file."""
        if self._reader is not None:
            self._reader.close()

    def _open_next(self) -> bool:
        """Open the next file, if there is one."""
        if self._clock.monotonic_ns() >= self._look_ns:
            self._look()
        while self._queue:
            self._key = heappop(self._queue)
            self._name = self._key[1]
            if self._open(self._begun.pop(self._name, None)):
                return True
        return False

    def _look(self) -> None:
        """Put the files that are to read in a queue, in their order."""
        found = self._source.list_own(self._context)
        for name, grown in self._last.changed(self._source.folder):
            self._leave_out(name, *((GROWN, _GROWN) if grown else (ANOTHER, _ANOTHER)))
            if name in found and not self._read.has(found[name]):
                self._read.add(found[name])  # its new time would make it a file to read
        queue: list[FileKey] = []
        for name, key in found.items():
            if name in self._begun or not self._read.has(key):
                heappush(queue, key)
            elif self._listed is not None and name not in self._listed and self._read.is_late(key):
                self._leave_out(name, LATE, _TOO_LATE)
        for name in [name for name in self._begun if name not in found]:
            self._leave_out(name, VANISHED, _GONE)
            self._read.add((0, name))
            del self._begun[name]
        for name in self._read.owed.union(name for _, name in self._queue) - found.keys():
            self._read.forget(name)
            if name not in self._empty:
                self._leave_out(name, VANISHED, _VANISHED)
        self._queue = queue
        self._listed = set(found)
        self._look_ns = self._clock.monotonic_ns() + self._source.poll_ns

    def _open(self, place: Position | None) -> bool:
        """Open a file; return whether it can be read now."""
        path = self._path(self._name)
        try:
            size = os.stat(path).st_size
        except FileNotFoundError:
            self._leave_out(self._name, VANISHED, _VANISHED if place is None else _GONE)
            return False
        if not size and place is None:
            self._empty.add(self._name)
            self._read.owe(self._key)
            return False  # perhaps it is still to be written; the next look finds it again
        self._empty.discard(self._name)
        source = self._source.of_file(self._name)
        try:
            self._like = likeness(path)
            if place is None:
                self._reader = source.open(self._of_one)
            else:
                self._reader = source.open_at(self._of_one, [place])
        except InputError as error:
            self._give_up(error)
            return False
        return True

    def _read_on(self, max_rows: int) -> Batch | None:
        reader = self._reader
        assert reader is not None
        try:
            batch = reader.read(max_rows)
            if batch is not None:
                self._check_columns(batch)
                return batch
        except InputError as error:
            self._give_up(error)
            return None
        if reader.finished:
            self._end()
            self._check_unchanged()
        return None

    def _check_columns(self, batch: Batch) -> None:
        if self._columns is None:
            self._columns = batch.schema
        if batch.schema != self._columns:
            msg = (
                f"{self._path(self._name)}: it has the columns {batch.schema}, but those before it "
                f"{self._columns}; name the columns= wanted, or write all files with the same"
            )
            raise InputError(msg)

    def _check_unchanged(self) -> None:
        path = self._path(self._name)
        if os.path.exists(path) and likeness(path) != self._like:
            self._leave_out(self._name, CHANGED, _CHANGED)
        else:
            self._last.note(self._name, self._like["size"], self._like["mtime_ns"])

    def _end(self) -> None:
        """Close the file, which counts as read."""
        reader, self._reader = self._reader, None
        if reader is not None:
            _add(self._rejected, reader.rejected)
            reader.close()
        self._read.add(self._key)

    def _give_up(self, error: InputError) -> None:
        """Leave out a file, or the rest of it, if the policy allows it."""
        if self._source.on_bad_rows == "fail":
            raise error
        self._end()
        _add(self._rejected, {UNREADABLE: 1})

    def _leave_out(self, name: str, reason: str, explanation: str) -> None:
        if self._source.on_bad_rows == "fail":
            msg = f"{self._path(name)}: {explanation}, {_OR_DROP}"
            raise InputError(msg)
        _add(self._rejected, {reason: 1})

    def _path(self, name: str) -> str:
        return os.path.join(self._source.folder, name)


_OR_DROP = "or pass on_bad_rows='drop' to go on, and count such files"
_TOO_LATE = (
    "it has appeared behind files that come after it, and so late that it is not known whether it "
    "was read; raise remember_files="
)
_GONE = f"a part of it was read before the checkpoint, and it is gone; {START_ANEW}"
_VANISHED = "it has vanished before it was read; move files away only once they were read"
_COMPLETE = "write a file under a name that begins with . or _, and rename it when it is complete"
_CHANGED = f"it has changed while it was read; {_COMPLETE}"
_ANOTHER = f"it has changed after it was read, and is not read again; {_COMPLETE}; copy by cp -p"
_GROWN = f"it has grown after it was read, and what was added is not read; {_COMPLETE}"


def _add(total: dict[str, int], counts: Mapping[str, int]) -> None:
    for reason, count in counts.items():
        total[reason] = total.get(reason, 0) + count


def growing_folder(
    path: PathLike,
    format: FileFormat = "parquet",  # Spark's name for it
    schema: SchemaLike | None = None,
    columns: Sequence[str] | None = None,
    *,
    order: FileOrder = "name",
    poll_ms: float = 1000,
    remember_files: int = 1000,
    **options: Any,
) -> Source:
    """Read the files that appear in a folder, each once; the source has no end.

    Files must appear complete: write them under a name that begins with `.` or `_`, then rename
    them. Files of 0 bytes are looked at again later, folders within the folder are ignored. With
    several instances, each reads the files that are its own by a hash of the name.

    Files that are there are read in their order, and so are those that appear later, if their names
    (or times) come behind. Of the files that it has read, an instance remembers the last ones in
    this order by name; all that come before these count as read. So a file that appears late is
    read late, unless `remember_files` files after it have been read: then it is refused, or, if
    that happens while no job runs, left out.

    A file that cannot be read, that vanishes before it is read, that changes while it is read, that
    appears too late or that is another after it was read (by size and time of change, of the last
    100 files, also if it changes while no job runs) fails the job, unless `Topology.source` got
    `on_bad_rows="drop"`: then it is left out, or its rest, and counted. Files that were read may be
    moved away; copy a folder with the times of its files, as `cp -p` does.

    Args:
        path: the folder.
        format: "parquet", "csv" or "json_lines"; the suffixes are those of these sources.
        schema: the columns and their types; required for CSV and JSON lines, whose types must not
            depend on which file comes first.
        columns: the columns to read, in this order; all if left out.
        order: "name", or "time": when files were last changed, and then their names.
        poll_ms: the time between two looks into the folder, in milliseconds.
        remember_files: how many files each instance remembers by name.
        **options: further ones of `whale.sources.csv` or `whale.sources.json_lines`.

    Raises:
        UsageError: an argument has another type.
        InputError: no folder, an unknown format, order or option, or no schema; while running: see
            above.
        BadRowError: while running: a malformed line, unless `on_bad_rows="drop"`.
    """
    for name, given, known in (
        ("format", format, get_args(FileFormat)),
        ("order", order, get_args(FileOrder)),
    ):
        if given not in known:
            msg = f"{name}={given!r} is unknown; use {', '.join(map(repr, known))}"
            raise InputError(msg)
    check_type("growing_folder", "poll_ms", poll_ms, Real, "milliseconds")
    check_type("growing_folder", "remember_files", remember_files, Integral, "a whole number")
    if not 0 < poll_ms <= 86_400_000:
        msg = f"poll_ms={poll_ms} is out of range; pass milliseconds, more than 0, at most a day"
        raise InputError(msg)
    if remember_files < 1:
        msg = f"remember_files={remember_files} must be at least 1"
        raise InputError(msg)
    if not isinstance(path, str | os.PathLike):
        msg = f"growing_folder() got a {type(path).__name__}; pass the path of one folder"
        raise InputError(msg)
    of_one = _of_one(path, format, schema, columns, options)
    return GrowingFolderSource(of_one, order, round(poll_ms * NS_PER_MS), remember_files)


def _of_one(
    path: PathLike,
    format_: FileFormat,
    schema: SchemaLike | None,
    columns: Sequence[str] | None,
    options: Mapping[str, Any],
) -> _OneFile:
    if format_ == "parquet":
        if schema is not None or options:
            given = "schema" if schema is not None else next(iter(options))
            msg = f"Parquet files say their columns themselves; leave {given}= out"
            raise InputError(msg)
        return cast("ParquetSource", parquet(path, columns))
    if schema is None:
        msg = (
            f"files of {format_} do not say the types of their columns, and which file comes first "
            "is not known; pass schema="
        )
        raise InputError(msg)
    make = csv if format_ == "csv" else json_lines
    try:
        return cast("CsvSource | JsonLinesSource", make(path, schema, columns, **options))
    except TypeError:
        msg = f"{format_} has no option {' or '.join(options)}; see whale.sources.{format_}"
        raise InputError(msg) from None
