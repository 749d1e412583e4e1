"""Snapshots of rows that are kept in the order in which they came: what is there, and since when.

Kept rows form *parts*, such as the rows of one span of time; rows are added at a part's end, and a
part is freed whole. A snapshot is a row of *versions*, each with the rows that came between two
snapshots; those written before are named again. A batch before them, the *contents*, tells which
parts there are, so a version may hold rows of parts that were freed since: it is made anew once
these are more than half. Versions that have become too many are made one, the newest ones first,
so that a row is written a logarithmic number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt

from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import Schema
from ..snapshots import StateChunk

__all__ = ["Ranges", "RowVersions", "contents", "is_contents", "parts_of"]

Bools = npt.NDArray[np.bool_]
Ranges = dict[int, tuple[int, int]]
"""Of each part, the first of some of its rows, and the one after the last."""

VERSIONS_MAX = 16
"""How many versions there are at most, beside one for each `ROWS_MAX` rows."""
ROWS_MAX = 1 << 17
"""A version has fewer rows, or those of a single snapshot's part."""

_PART, _ROWS, _MARKS, _SIDE = "#part", "#rows", "#marks", "#side"
_CONTENTS = Schema.of(**{_SIDE: "int8", _PART: "int64", _ROWS: "int64", _MARKS: "binary"})


@dataclass
class _Version:
    """One file: its rows that are still kept, and how many it was written with."""

    identity: str
    ranges: Ranges
    written: int

    @property
    def rows(self) -> int:
        """How many of its rows are still kept."""
        return sum(stop - first for first, stop in self.ranges.values())


class RowVersions:
    """The versions of some kept rows.

    Args:
        name: of the rows, unlike that of any others of the object, for the chunks' identities.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._versions: list[_Version] = []

    def restore(self, identity: str, ranges: Ranges, written: int) -> None:
        """Note a version that is in the store, the oldest first."""
        self._versions.append(_Version(identity, ranges, written))

    def chunks(
        self,
        epoch: int,
        counts: Mapping[int, int],
        rows_of: Callable[[Ranges], Callable[[], Batch]],
    ) -> list[StateChunk]:
        """Return all rows that there are now.

        Args:
            epoch: names the versions that are made now.
            counts: how many rows each part has.
            rows_of: returns what makes a batch of some rows, by part, in their order.
        """
        names = (f"{self._name}-{epoch}-{number}" for number in count())
        self._drop(counts)
        self._thin_out(names)
        self._versions += _cut(self._fresh(counts), names)
        if len(self._versions) > VERSIONS_MAX + sum(counts.values()) // ROWS_MAX:
            self._merge(names)
        return [StateChunk(rows_of(one.ranges), one.identity) for one in self._versions]

    def _drop(self, counts: Mapping[int, int]) -> None:
        """Forget the parts that were freed, and versions that have no others."""
        for one in self._versions:
            one.ranges = {part: rows for part, rows in one.ranges.items() if part in counts}
        self._versions = [one for one in self._versions if one.ranges]

    def _thin_out(self, names: Iterable[str]) -> None:
        """Let versions be made anew that have lost more than half of their rows."""
        for at, one in enumerate(self._versions):
            if 2 * one.rows < one.written:
                self._versions[at] = _Version(next(iter(names)), one.ranges, one.rows)

    def _fresh(self, counts: Mapping[int, int]) -> Ranges:
        """Return the rows that no version has."""
        saved: dict[int, int] = {}
        for one in self._versions:
            saved |= {part: stop for part, (_, stop) in one.ranges.items()}
        first_rows = ((part, saved.get(part, 0), rows) for part, rows in counts.items())
        return {part: (first, rows) for part, first, rows in first_rows if first < rows}

    def _merge(self, names: Iterable[str]) -> None:
        """Let the newest versions be one, two at least."""
        merged = self._versions.pop()
        ranges, rows, merges = dict(merged.ranges), merged.rows, 0
        while self._versions and (not merges or self._versions[-1].rows <= rows):
            before = self._versions.pop()
            rows, merges = rows + before.rows, merges + 1
            joined = dict(before.ranges)
            for part, (first, stop) in ranges.items():
                joined[part] = (joined.get(part, (first,))[0], stop)
            ranges = joined
        self._versions += _cut(ranges, names)


def _cut(ranges: Ranges, names: Iterable[str]) -> list[_Version]:
    """Return new versions of these rows, each with about `ROWS_MAX` at most."""
    versions: list[_Version] = []
    some: Ranges = {}
    rows = 0
    for part, (first, stop) in ranges.items():
        at = first
        while at < stop:
            until = min(stop, at + ROWS_MAX - rows)
            some[part] = (at, until)
            rows, at = rows + until - at, until
            if rows == ROWS_MAX:
                versions.append(_Version(next(iter(names)), some, rows))
                some, rows = {}, 0
    if some:
        versions.append(_Version(next(iter(names)), some, rows))
    return versions


def contents(parts: Iterable[tuple[int, int, int, Bools | None]]) -> Batch:
    """Return the contents of a snapshot: a row for each part.

    Args:
        parts: (side, part, how many rows, which of them are marked); None: none ever are.
    """
    rows = list(parts)
    marks = [None if one[3] is None else np.packbits(one[3]).tobytes() for one in rows]
    columns = [
        Column.of(np.array([one[0] for one in rows], np.int8)),
        Column.of(np.array([one[1] for one in rows], np.int64)),
        Column.of(np.array([one[2] for one in rows], np.int64)),
        Column.of(marks, "binary"),
    ]
    return Batch(_CONTENTS, columns, len(rows))


def is_contents(batch: Batch) -> bool:
    """Return whether a batch tells the contents of a snapshot."""
    return batch.schema.names == _CONTENTS.names


def parts_of(batch: Batch) -> dict[tuple[int, int], Bools]:
    """Return which rows are marked, of each part by its side and number."""
    found = {}
    for row in batch.to_pylist():
        marks = np.zeros(row[_ROWS], np.bool_)
        if row[_MARKS] is not None:
            bits = np.frombuffer(row[_MARKS], np.uint8)
            marks = np.unpackbits(bits, count=row[_ROWS]).astype(np.bool_)
        found[row[_SIDE], row[_PART]] = marks
    return found
