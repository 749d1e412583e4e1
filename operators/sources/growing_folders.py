"""The source of files that appear in a folder, each read once; it has no end.

A file must appear complete: it is written under another name, which begins with `.` or `_` or has
another suffix, and then renamed. Instances look into the folder on their own, and each reads the
files that are its own, so they need nothing from each other.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

from ...configs.errors import InputError
from ...configs.units import NS_PER_MS
from ..arguments import check_type
from .base import BadRows, Source, SourceReader
from .csv_files import CsvSource, csv
from .files import START_ANEW, PathLike
from .files_read import FileKey, FilesRead, LastRead, Like, leads_nowhere, owner_of
from .growing_folder_reader import GrowingFolderReader
from .json_lines_files import JsonLinesSource, json_lines
from .parquet_files import ParquetSource, parquet
from .progress import own_or_first
from .text_source import check_policy, take_schema

if TYPE_CHECKING:
    from typing import Self

    from ...transport.wire.types import Schema
    from ..process import InstanceContext
    from ..snapshots import Position
    from .text_source import SchemaLike

FileFormat: TypeAlias = Literal["parquet", "csv", "json_lines"]
FileOrder: TypeAlias = Literal["name", "time"]
_OneFile: TypeAlias = ParquetSource | CsvSource | JsonLinesSource


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

    @property
    def position_kind(self) -> str:
        """See `Source.position_kind`."""
        return f"a growing folder of {self.of_one.position_kind}"

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
        columns = self._columns_before(context, positions)
        lasts = [one.get("last", ()) for one in positions]
        last = LastRead.divided(lasts, read.remembered, instance, parallelism)
        empty = [
            name
            for one in positions
            for name in one.get("empty", ())
            if owner_of(name, parallelism) == instance
        ]
        return GrowingFolderReader(self, context, read, mine, columns, last, empty)

    def _columns_before(
        self, context: InstanceContext, positions: Sequence[Position]
    ) -> Schema | None:
        """Return the columns of the files before; None if the user says, maybe others, by now."""
        learnt = own_or_first(context, positions, "columns")
        if learnt is None or not isinstance(self.of_one, ParquetSource):
            return None  # the columns of text are declared
        known = take_schema(dict(learnt))
        assert known is not None
        wanted = self.of_one.columns
        return known if wanted is None or tuple(wanted) == tuple(known.names) else None

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

    def key(self, name: str, like: Like) -> FileKey:
        """Return what a file is ordered by."""
        return (0 if self.order == "name" else like[1]), name

    def _key_of(self, entry: os.DirEntry[str]) -> FileKey | None:
        """Return the key of a file; None for a folder, and for a link that leads to no file.

        A file that is out of reach has one as well, so that it is opened, and refused by name.
        """
        try:
            if not entry.is_file():
                return None
            return (0 if self.order == "name" else entry.stat().st_mtime_ns), entry.name
        except OSError as error:
            return None if leads_nowhere(error) else self._key_out_of_reach(entry)

    def _key_out_of_reach(self, entry: os.DirEntry[str]) -> FileKey:
        """Return the key of the link to a file whose own time cannot be told."""
        if self.order == "name":
            return 0, entry.name
        try:
            return entry.stat(follow_symlinks=False).st_mtime_ns, entry.name
        except OSError:
            return 0, entry.name

    def of_file(self, name: str) -> Source:
        """Return the source of one file of the folder."""
        path = os.path.join(self.folder, name)
        paths = replace(self.of_one.paths, given=(path,), absolute=(path,))
        return replace(self.of_one, paths=paths)


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
    them. Files of 0 bytes are looked at again later; folders and links to no file are ignored. With
    several instances, each reads the files that are its own by a hash of the name.

    Files that are there are read in their order, and so are those that appear later, if their names
    (or times) come behind. Of the files that it has read, an instance remembers the last ones in
    this order by name; all that come before these count as read. So a file that appears late is
    read late, unless `remember_files` files after it have been read: then it is refused, or, if
    that happens while no job runs, left out.

    A file that cannot be read or reached, that vanishes before it is read, that changes while it is
    read, that appears too late or that is another after it was read fails the job, unless
    `Topology.source` got `on_bad_rows="drop"`: then it is left out, or its rest, and counted. Size
    and time of change tell another file, of the last 100 at each look, of all remembered as a job
    begins and if they were gone. Files that were read may be moved away, but others of their names
    are not read; copy a folder with the times of its files, as `cp -p` does. With `order="time"`
    that is all that tells a file that was read long ago from one that has just come: if its time
    changes once it is neither remembered nor one of the last 100, it is read again.

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
