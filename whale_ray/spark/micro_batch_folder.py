"""The folder in which Spark Structured Streaming hands over its micro-batches.

Spark calls the source's `take` with each micro-batch (`foreachBatch`); it writes the rows into the
folder, where they appear all at once and survive a crash, and returns. A job reads them from there,
as an endless input. So Spark and the job need not run at the same time, and neither waits for the
other::

    folder/query.json                           whose batches these are, and their columns
    folder/last.json                            the last micro-batch, and the part that follows it
    folder/.lock                                held by the driver that takes a micro-batch
    folder/batch-000000007-000000031/           micro-batch 7, whose first part has the number 31
        part-00000.parquet …                    its rows, as Spark has divided them

Spark repeats the last micro-batch with the same number, and the same rows, if it does not know
whether it was taken; one whose folder is there is taken already. Parts are numbered through all
batches: a position of the source says which parts an instance has still to read, see `Progress`.
These numbers begin at 0 again if everything in the folder is removed; by the id in `query.json`,
which is another one then, a reader notices that.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ..configs.errors import InputError, UsageError
from .folder_lock import locked

if TYPE_CHECKING:
    from ..transport.wire.types import Schema

QUERY_FILE = "query.json"
_LAST_FILE = "last.json"
_NAME = re.compile(r"batch-(\d{9,})-(\d{9,})")
_PART = re.compile(r"part-(\d{5,})\.parquet")
_HIDDEN = re.compile(r"\.[0-9a-f]{32}")
_NONE = (-1, 0)
"""The last micro-batch before any, and the part behind it."""


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch in the folder.

    Attributes:
        number: Spark's.
        first: the number of its first part, through all batches.
        path: of its folder.
    """

    number: int
    first: int
    path: str

    def parts(self) -> dict[int, str]:
        """Return the paths of its parts by their numbers through all batches, ascending.

        Other files are none: some file systems keep removed ones for a while, as `.nfs…`.
        """
        found = [(_PART.fullmatch(entry.name), entry.path) for entry in os.scandir(self.path)]
        return dict(sorted((self.first + int(match[1]), path) for match, path in found if match))


@dataclass(frozen=True)
class Owner:
    """Whose micro-batches a folder has.

    Attributes:
        query: Spark's id of the query.
        columns: of all its micro-batches.
        folder_id: a random one for each time that the folder began without any micro-batch.
    """

    query: str
    columns: Schema
    folder_id: str


@dataclass(frozen=True)
class MicroBatchFolder:
    """The folder in which micro-batches are handed over."""

    path: str

    def batches_of(self, names: Iterable[str]) -> list[MicroBatch]:
        """Return the micro-batches among the names in the folder, in their order."""
        matches = map(_NAME.fullmatch, sorted(names, key=_by_numbers))
        return [
            MicroBatch(int(match[1]), int(match[2]), os.path.join(self.path, match[0]))
            for match in matches
            if match
        ]

    def owner(self) -> Owner | None:
        """Return whose micro-batches these are; None before the first one.

        Raises:
            InputError: the file that says it is damaged.
        """
        from ..transport.wire.types import DataType, Field, Schema

        told = self._read(QUERY_FILE)
        if told is None:
            return None
        try:
            columns = [Field(name, DataType.parse(kind)) for name, kind in told["columns"]]
            return Owner(told["query"], Schema(tuple(columns)), told.get("folder", ""))
        except (InputError, KeyError, TypeError, ValueError) as error:
            raise self._damaged(QUERY_FILE) from error

    def lock(self, number: int, wait_s: float) -> AbstractContextManager[None]:
        """Make the folder if need be, and let no other driver take a micro-batch meanwhile.

        Raises:
            InputError: another one is still taking one after `wait_s`.
        """
        os.makedirs(self.path, exist_ok=True)
        told = (
            f"micro-batch {number}: for {wait_s:g} s another driver has been writing into "
            f"{self.path!r}, one of the same query perhaps that was believed dead: end it, and "
            "start this query again"
        )
        return locked(self.path, wait_s, told)

    def begin(self, query: str, columns: Schema) -> None:
        """Note whose batches these are; refuse those of another query.

        Raises:
            UsageError: the folder has batches of another query, or of other columns.
        """
        os.makedirs(self.path, exist_ok=True)
        self._remove_unfinished()
        if self._last() == _NONE:  # also if the first one failed: its query may be mended
            self._take_over(query, columns)
        owner = self.owner()
        if owner is None:
            msg = (
                f"the folder {self.path!r} has micro-batches, but no {QUERY_FILE}, which says "
                "whose they are: bring it back, or give the query another folder"
            )
            raise UsageError(msg)
        if owner.query != query:
            msg = (
                f"the folder {self.path!r} has micro-batches of another query ({owner.query}), "
                "whose numbers begin at 0, too: give each query a folder, and keep its "
                "checkpointLocation"
            )
            raise UsageError(msg)
        self._check_columns(owner.columns, columns)

    def _take_over(self, query: str, columns: Schema) -> None:
        """Note a query in a folder without micro-batches, unless another one just does so."""
        told = {
            "query": query,
            "columns": [[one.name, one.type.name] for one in columns],
            "folder": uuid4().hex,
        }
        there = os.path.exists(os.path.join(self.path, QUERY_FILE))
        self._write(QUERY_FILE, told, replace=there)

    def _check_columns(self, before: Schema, now: Schema) -> None:
        if [(one.name, one.type) for one in before] == [(one.name, one.type) for one in now]:
            return
        remedy = "give it another folder"
        if [(o.name, o.type.family) for o in before] == [(o.name, o.type.family) for o in now] and (
            [one.type.timezone for one in before] != [one.type.timezone for one in now]
        ):
            remedy = f"set spark.sql.session.timeZone as it was, or {remedy}"
        msg = (
            f"the folder {self.path!r} has micro-batches of the columns ({before}), and those of "
            f"the query are ({now}) now: {remedy}"
        )
        raise UsageError(msg)

    def _remove_unfinished(self) -> None:
        """Remove what a handler that was killed was writing, and nothing else that is hidden."""
        for name in os.listdir(self.path):
            if _HIDDEN.fullmatch(name):
                path = os.path.join(self.path, name)
                shutil.rmtree(path, ignore_errors=True)
                with suppress(OSError):  # it was a folder
                    os.unlink(path)

    def has(self, number: int) -> bool:
        """Return whether this micro-batch is the last one that was taken.

        Raises:
            UsageError: it comes before the last one; Spark repeats none but the last, so its rows
                may be others than those that were taken by this number.
        """
        return self._is_last(number, self._last())

    def _is_last(self, number: int, last: tuple[int, int]) -> bool:
        if number < last[0]:
            msg = (
                f"micro-batch {number} comes after {last[0]}, which {self.path!r} has already: "
                "the query's checkpointLocation was set back, or two drivers run it; bring the "
                "checkpoint back as it was and end the other driver, or give the query another "
                "folder"
            )
            raise UsageError(msg)
        return number == last[0]

    def note_last(self) -> None:
        """Note the last micro-batch in a file: parts are numbered on if its folder is removed."""
        last = self._last()
        if last != self.noted():
            self._write(_LAST_FILE, list(last))

    def _last(self) -> tuple[int, int]:
        """Return the number of the last micro-batch that was taken, and of the part behind it."""
        noted = self.noted()
        names = filter(_NAME.fullmatch, os.listdir(self.path))
        newest = max(names, key=_by_numbers, default=None)
        for batch in self.batches_of([newest] if newest else ()):
            if batch.number > noted[0]:
                return batch.number, max(batch.parts(), default=batch.first - 1) + 1
        return noted

    def noted(self) -> tuple[int, int]:
        """Return the last micro-batch that was noted, and the part behind it.

        Raises:
            InputError: the file is damaged.
        """
        told = self._read(_LAST_FILE)
        if told is None:
            return _NONE
        try:
            number, following = told
            return int(number), int(following)
        except (TypeError, ValueError) as error:
            raise self._damaged(_LAST_FILE) from error

    def new_place(self) -> str:
        """Return the path of a hidden folder, which is not there yet."""
        return os.path.join(self.path, f".{uuid4().hex}")

    def add(self, number: int, place: str) -> None:
        """Let the Parquet files of a hidden folder appear as a micro-batch, all at once.

        Their rows survive a crash, and the micro-batch is noted as the last one. Files without rows
        are left out; without any there is no batch. If another driver has just taken this
        micro-batch, where the file system has no locks, the files are removed.

        Raises:
            UsageError: see `has`.
        """
        import pyarrow.parquet as pq

        names = sorted(name for name in os.listdir(place) if name.endswith(".parquet"))
        kept = [name for name in names if pq.read_metadata(os.path.join(place, name)).num_rows]
        for name in set(os.listdir(place)) - set(kept):
            os.unlink(os.path.join(place, name))
        if not kept:
            os.rmdir(place)
            return
        for index, name in enumerate(kept):
            path = os.path.join(place, f"part-{index:05d}.parquet")
            os.rename(os.path.join(place, name), path)
            _sync(path)
        _sync(place)
        last = self._last()
        if self._is_last(number, last):
            shutil.rmtree(place)
            return
        first = last[1]
        os.rename(place, os.path.join(self.path, f"batch-{number:09d}-{first:09d}"))
        _sync(self.path)
        self._write(_LAST_FILE, [number, first + len(kept)])

    def _read(self, name: str) -> Any:
        """Return what a file in JSON says, None if it is not there."""
        try:
            with open(os.path.join(self.path, name), encoding="utf-8") as stream:
                return json.load(stream)
        except FileNotFoundError:
            return None
        except ValueError as error:  # no JSON, or no UTF-8
            raise self._damaged(name) from error

    def _damaged(self, name: str) -> InputError:
        return InputError(
            f"{os.path.join(self.path, name)!r} is damaged: bring it back as it was, or give the "
            "query, which must begin anew, another folder"
        )

    def _write(self, name: str, content: object, *, replace: bool = True) -> None:
        """Write a file so that it appears at once and survives a crash.

        Args:
            name: of the file.
            content: what it is to say.
            replace: whether to replace one that is there; else that one stays.
        """
        hidden, path = self.new_place(), os.path.join(self.path, name)
        with open(hidden, "w", encoding="utf-8") as stream:
            json.dump(content, stream)
        _sync(hidden)
        if replace:
            os.rename(hidden, path)
        else:
            _rename_new(hidden, path)
        _sync(self.path)


def _by_numbers(name: str) -> tuple[int, str]:
    """Return by what names of micro-batches sort as their numbers do, which is quick to find.

    Both numbers in them grow, so that a shorter name is an older one's.
    """
    return len(name), name


def _rename_new(path: str, to: str) -> None:
    """Rename a file, or remove it if there is one of the new name, which a rename would replace."""
    try:
        os.link(path, to)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links; the lock keeps others away
        os.rename(path, to)
        return
    os.unlink(path)


def _sync(path: str) -> None:
    """Make a file, or the names in a folder, survive a crash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
