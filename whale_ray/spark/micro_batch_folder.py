"""Spark Structured Streaming as a source: micro-batches are handed over in a folder.

Spark calls the source's `take` with each micro-batch (`foreachBatch`); it writes the rows into the
folder, where they appear all at once and survive a crash, and returns. A job reads them from there,
as an endless input. So Spark and the job need not run at the same time, and neither waits for the
other::

    folder/query.json                           whose batches these are, and their columns
    folder/last.json                            the last micro-batch, and the part that follows it
    folder/batch-000000007-000000031/           micro-batch 7, whose first part has the number 31
        part-00000.parquet …                    its rows, as Spark has divided them

Spark repeats a micro-batch with the same number, and the same rows, if it does not know whether it
was taken; one whose folder is there is taken already. Parts are numbered through all batches: a
position of the source says which parts an instance has still to read, see `Progress`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from ..configs.errors import UsageError

if TYPE_CHECKING:
    from ..transport.wire.types import Schema

_QUERY = "query.json"
_LAST = "last.json"
_NAME = re.compile(r"batch-(\d{9,})-(\d{9,})")
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

    def parts(self) -> list[str]:
        """Return the paths of its parts, in their order."""
        return sorted(entry.path for entry in os.scandir(self.path))


@dataclass(frozen=True)
class MicroBatchFolder:
    """The folder in which micro-batches are handed over."""

    path: str

    def batches(self) -> list[MicroBatch]:
        """Return the micro-batches that are there, in their order."""
        with suppress(FileNotFoundError):
            found = [(_NAME.fullmatch(name), name) for name in os.listdir(self.path)]
            there = [
                MicroBatch(int(match[1]), int(match[2]), os.path.join(self.path, name))
                for match, name in found
                if match
            ]
            return sorted(there, key=lambda one: one.number)
        return []

    def query(self) -> tuple[str, Schema] | None:
        """Return whose batches these are, and their columns; None before the first one."""
        from ..transport.wire.types import DataType, Field, Schema

        try:
            with open(os.path.join(self.path, _QUERY), encoding="utf-8") as stream:
                told = json.load(stream)
        except FileNotFoundError:
            return None
        columns = tuple(Field(name, DataType.parse(kind)) for name, kind in told["columns"])
        return told["query"], Schema(columns)

    def begin(self, query: str, columns: Schema) -> None:
        """Note whose batches these are; refuse those of another query.

        Raises:
            UsageError: the folder has batches of another query, or of other columns.
        """
        os.makedirs(self.path, exist_ok=True)
        known = self.query()
        if known is None:
            told = {"query": query, "columns": [[one.name, one.type.name] for one in columns]}
            self._write(_QUERY, told)
        elif known[0] != query:
            msg = (
                f"the folder {self.path!r} has micro-batches of another query ({known[0]}), whose "
                "numbers begin at 0, too: give each query a folder, and keep its checkpointLocation"
            )
            raise UsageError(msg)
        elif [(one.name, one.type) for one in known[1]] != [(o.name, o.type) for o in columns]:
            before = ", ".join(map(str, known[1]))
            msg = (
                f"the folder {self.path!r} has micro-batches of the columns ({before}), and the "
                "query has others now: give it another folder"
            )
            raise UsageError(msg)
        self._remove_unfinished()

    def _remove_unfinished(self) -> None:
        """Remove what a handler that was killed was writing, and nothing else that is hidden."""
        for name in os.listdir(self.path):
            if _HIDDEN.fullmatch(name):
                path = os.path.join(self.path, name)
                shutil.rmtree(path, ignore_errors=True)
                with suppress(OSError):  # it was a folder
                    os.unlink(path)

    def has(self, number: int) -> bool:
        """Return whether a micro-batch was taken; Spark repeats none but the last."""
        return number <= self._last()[0]

    def note_last(self) -> None:
        """Note the last micro-batch in a file: parts are numbered on if its folder is removed."""
        last = self._last()
        if last != self._noted():
            self._write(_LAST, list(last))

    def _last(self) -> tuple[int, int]:
        """Return the number of the last micro-batch that was taken, and of the part behind it."""
        noted, batches = self._noted(), self.batches()
        if not batches:
            return noted
        last = batches[-1]
        return max(noted, (last.number, last.first + len(last.parts())))

    def _noted(self) -> tuple[int, int]:
        try:
            with open(os.path.join(self.path, _LAST), encoding="utf-8") as stream:
                number, following = json.load(stream)
        except FileNotFoundError:
            return _NONE
        return number, following

    def new_place(self) -> str:
        """Return the path of a hidden folder, which is not there yet."""
        return os.path.join(self.path, f".{uuid4().hex}")

    def add(self, number: int, place: str) -> None:
        """Let the Parquet files of a hidden folder appear as a micro-batch, all at once.

        Files without rows are left out; without any there is no batch. The rows survive a crash.
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
        _, first = self._last()
        os.rename(place, os.path.join(self.path, f"batch-{number:09d}-{first:09d}"))
        _sync(self.path)

    def _write(self, name: str, content: object) -> None:
        hidden = self.new_place()
        with open(hidden, "w", encoding="utf-8") as stream:
            json.dump(content, stream)
        _sync(hidden)
        os.rename(hidden, os.path.join(self.path, name))
        _sync(self.path)


def _sync(path: str) -> None:
    """Make a file, or the names in a folder, survive a crash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
