"""The reader of files that appear in a folder: one instance's, one after the other.

A position holds which files were read (`files_read`) and the position in the one that is being
read, which is that of a source of this file alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, cast

from ...configs.errors import InputError
from .base import SourceReader
from .files import START_ANEW
from .files_read import UNKNOWN, FileKey, FilesRead, LastRead, Like, leads_nowhere, like_of

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema
    from ..process import InstanceContext
    from ..snapshots import Position
    from .growing_folders import GrowingFolderSource

__all__ = ["GrowingFolderReader"]

_OPENING_NS = 50_000_000
"""`read` returns after this time even if all files that it opened had no rows."""

UNREADABLE, VANISHED, LATE, CHANGED, GROWN, ANOTHER, NAMESAKE = (
    "file that cannot be read",
    "file that vanished before it was read",
    "file that appeared too late",
    "file that changed while it was read",
    "file that grew after it was read",
    "file that changed after it was read",
    "file with the name of one that was read",
)


class GrowingFolderReader(SourceReader):
    """Reads the files of one instance, one after the other, and looks for more.

    Args:
        source: the folder.
        context: the instance.
        read: the files that it has read.
        begun: the position in each of its files of which a part was read.
        columns: those of the files before.
        last: what files were like when they were read.
        empty: its files that had 0 bytes when they were looked at last.
    """

    def __init__(
        self,
        source: GrowingFolderSource,
        context: InstanceContext,
        read: FilesRead,
        begun: Mapping[str, Position] | None = None,
        columns: Schema | None = None,
        last: LastRead | None = None,
        empty: Iterable[str] = (),
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
        self._empty = set(empty)
        self._name = ""
        self._key: FileKey = (0, "")
        self._like = UNKNOWN
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
            "last": self._known().to_json(),
            "begun": [[name, place] for name, place in begun.items()],
            "empty": sorted(self._empty),
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

    def _known(self) -> LastRead:
        """Return what files were like when they were read, of no more than it takes."""
        self._last.trim(self._read.remembered)
        return self._last

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
        for name in self._last.to_compare(found, self._listed):
            self._compare(name)
        self._last.miss(found)
        self._known()
        waited = {name for _, name in self._queue}
        queue: list[FileKey] = []
        for name, key in found.items():
            if self._is_to_read(key, waited=name in waited):
                heappush(queue, key)
        for name in sorted(self._read.owed.union(waited, self._begun) - found.keys()):
            self._lose(name, begun=self._begun.pop(name, None) is not None)
        self._queue = queue
        self._listed = set(found)
        self._look_ns = self._clock.monotonic_ns() + self._source.poll_ns

    def _compare(self, name: str) -> None:
        """Look whether a file that was read is another now; it is not read in any case."""
        try:
            now = like_of(self._path(name))
        except OSError:
            return  # it has just gone, or it is out of reach at present
        was = self._last.replace(name, now)
        self._read.add(self._source.key(name, now))  # its new time would make it a file to read
        if was is None:
            return
        if self._listed is not None and name not in self._listed:
            self._leave_out(name, NAMESAKE, _NAMESAKE)
        elif now[0] > was[0]:
            self._leave_out(name, GROWN, _GROWN)
        else:
            self._leave_out(name, ANOTHER, _ANOTHER)

    def _is_to_read(self, key: FileKey, *, waited: bool) -> bool:
        """Return whether a file that is there is still to be read; refuse one that is too late."""
        name = key[1]
        if name in self._begun:
            return True
        if name in self._last:
            return False
        if not self._read.has(key):
            return True
        if waited:
            self._read.owe(key)  # its time has gone back behind that of files that were read
            return True
        if self._listed is not None and name not in self._listed and self._read.is_late(key):
            self._leave_out(name, LATE, _TOO_LATE)
        return False

    def _lose(self, name: str, *, begun: bool) -> None:
        """Leave out a file that is gone; one of which a part was read counts as read."""
        if begun:
            self._read.add((0, name))
            self._last.note(name, UNKNOWN, told=True)
            self._leave_out(name, VANISHED, _GONE)
            return
        self._read.forget(name)
        if name not in self._empty:
            self._leave_out(name, VANISHED, _VANISHED)
        self._empty.discard(name)  # one that appears by this name is another file

    def _open(self, place: Position | None) -> bool:
        """Open a file; return whether it can be read now."""
        path = self._path(self._name)
        try:
            self._like = like_of(path)
        except OSError as error:
            self._miss(error, begun=place is not None)
            return False
        self._key = self._source.key(self._name, self._like)  # the file is maybe not that listed
        if not self._like[0] and place is None:
            self._empty.add(self._name)
            self._read.owe(self._key)
            return False  # perhaps it is still to be written; the next look finds it again
        self._empty.discard(self._name)
        source = self._source.of_file(self._name)
        try:
            if place is None:
                self._reader = source.open(self._of_one)
            else:
                self._reader = source.open_at(self._of_one, [place])
        except InputError as error:
            self._give_up(error)
            return False
        return True

    def _miss(self, error: OSError, *, begun: bool) -> None:
        """Leave out a file that is not there, or out of reach."""
        if leads_nowhere(error):
            self._lose(self._name, begun=begun)
            return
        self._like = UNKNOWN
        msg = f"{self._path(self._name)}: cannot be read ({error.strerror}); {_OUT_OF_REACH}"
        self._give_up(InputError(msg))

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
            self._finish()
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

    def _finish(self) -> None:
        """Close a file that was read to its end, and look whether it is the same still."""
        try:
            now = like_of(self._path(self._name))
        except OSError:
            now = self._like  # it was moved away as soon as it was read
        self._key = self._source.key(self._name, now)
        self._end(now, told=now != self._like)
        if now != self._like:
            self._leave_out(self._name, CHANGED, _CHANGED)

    def _give_up(self, error: InputError) -> None:
        """Leave out a file, or the rest of it, if the policy allows it."""
        if self._source.on_bad_rows == "fail":
            raise error
        self._end(self._like, told=True)
        _add(self._rejected, {UNREADABLE: 1})

    def _end(self, like: Like, *, told: bool) -> None:
        """Close the file, which counts as read."""
        reader, self._reader = self._reader, None
        if reader is not None:
            _add(self._rejected, reader.rejected)
            reader.close()
        self._read.add(self._key)
        self._last.note(self._name, like, told=told)

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
_OUT_OF_REACH = "bring it back or leave it out"
_COMPLETE = "write a file under a name that begins with . or _, and rename it when it is complete"
_CHANGED = f"it has changed while it was read; {_COMPLETE}"
_ANOTHER = f"it has changed after it was read, and is not read again; {_COMPLETE}; copy by cp -p"
_NAMESAKE = (
    "a file of this name was read before, and this one is another, which is not read; give each "
    "file a name of its own"
)
_GROWN = f"it has grown after it was read, and what was added is not read; {_COMPLETE}"


def _add(total: dict[str, int], counts: Mapping[str, int]) -> None:
    for reason, count in counts.items():
        total[reason] = total.get(reason, 0) + count
