"""The part of `check_source` about positions: snapshots at random places, and on from there.

One generation of instances after the other opens the source where the one before it was, reads up
to random places and tells its positions; the last one reads to the end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ..configs.errors import InputError
from ..operators.snapshots import Position
from ..operators.sources.base import Source
from .checked_reader import CheckedReader
from .conformance import counted, difference, require, until_nothing_left_open

__all__ = ["check_positions"]

_CHAINS_OF_ONE = 4
_CHAINS = 8
_READS_MAX = 6
_ROWS = (1, 2, 3, 7, 50)
_REMEDY = "close() must close files and connections"


def check_positions(
    source: Source,
    parallelism: Sequence[int],
    limit: int | None,
    rescales: bool,
    seed: int,
) -> None:
    """Check that a source resumes from positions, if it has any.

    Args:
        source: as a worker would get it.
        parallelism: the numbers of instances to try beside one.
        limit: for an unbounded source, the rows that are compared; it is read by one instance.
        rescales: whether other instances can continue.
        seed: of the random places.

    Raises:
        ContractError: see `check_source`.
    """
    if not _has_positions(source):
        return
    places = Random(seed)
    check = _Check(source, limit)
    for _ in range(_CHAINS_OF_ONE):
        check.run([1, 1, 1], places)
    if limit is not None:
        return
    if not rescales:
        _check_refusal(source, parallelism)
    numbers = [1, *parallelism] if rescales else [1]
    for _ in range(_CHAINS):
        check.run(places.choices(numbers, k=places.randint(2, 4)), places)
    if not rescales:
        for number in parallelism:
            check.run([number] * 3, places)


def _has_positions(source: Source) -> bool:
    name = type(source).__name__
    reader = CheckedReader(source, 0, 1).reader
    try:
        position = reader.position()
    finally:
        reader.close()
    opens = type(source).open_at is not Source.open_at
    require(
        (position is not None) == opens,
        f"{name}: position() of its reader and open_at() belong together, but "
        + ("open_at() is missing" if not opens else "position() returned None"),
    )
    return opens


def _check_refusal(source: Source, parallelism: Sequence[int]) -> None:
    """Require an InputError where other instances cannot continue."""
    name = type(source).__name__
    opened = CheckedReader(source, 0, 1)
    position = _told(name, opened)
    opened.reader.close()
    for number in parallelism:
        try:
            reader = CheckedReader(source, 0, number, [position]).reader
        except InputError:
            continue
        reader.close()
        require(
            False,
            f"{name}.open_at() took the position of 1 instance for {number}: raise InputError, or "
            "pass rescales=True",
        )


@dataclass
class _Read:
    """What the instances of one generation have read and left out."""

    rows: list[Any] = field(default_factory=list)
    rejected: Counter[str] = field(default_factory=Counter)


class _Check:
    """Compares what generations of readers read with what one reader reads."""

    def __init__(self, source: Source, limit: int | None) -> None:
        self._source = source
        self._name = type(source).__name__
        self._limit = limit
        opened = CheckedReader(source, 0, 1)
        self._rows: list[Any] = []
        while self._wants_more(len(self._rows)):
            batch = opened.next_batch(1000)
            if batch is None:
                break
            self._rows += batch.to_pylist()
        self._rejected = Counter(opened.reader.rejected)
        opened.reader.close()

    def run(self, chain: Sequence[int], places: Random) -> None:
        """Read by one generation of instances after the other, of these numbers."""
        rows: list[Any] = []
        rejected: Counter[str] = Counter()
        positions: list[Position] | None = None
        how = " and then ".join(map(str, chain))
        for generation, instances in enumerate(chain, 1):
            begin = positions
            goes_on = generation < len(chain)
            read = _Read()
            for read in until_nothing_left_open(_Read, f"a reader of {self._name}", _REMEDY):
                opened = [
                    CheckedReader(self._source, number, instances, begin)
                    for number in range(instances)
                ]
                for one in opened:
                    reads = places.randint(0, _READS_MAX) if goes_on else None
                    self._read_some(one, reads, places, rows, read)
                positions = [_told(self._name, one) for one in opened]
                for one in opened:
                    read.rejected.update(one.reader.rejected)
                    one.reader.close()
                del opened, one  # a cursor of SQLite keeps its file open as long as it lives
            rows += read.rows
            rejected.update(read.rejected)
        self._compare(rows, rejected, how, in_order=set(chain) == {1})

    def _read_some(
        self,
        opened: CheckedReader,
        reads: int | None,
        places: Random,
        before: Sequence[Any],
        found: _Read,
    ) -> None:
        """Read a number of times, or to the end, and check that a position stays what it was."""
        begin = opened.reader.position()
        told = repr(begin)
        done = 0
        while done != reads and self._wants_more(len(before) + len(found.rows)):
            batch = opened.next_batch(places.choice(_ROWS))
            if batch is None:
                break
            found.rows += batch.to_pylist()
            done += 1
        require(
            repr(begin) == told,
            f"{self._name}: a position changed as its reader read on: it was {told}, "
            f"and is {begin!r}; return a copy",
        )

    def _wants_more(self, rows: int) -> bool:
        return self._limit is None or rows < self._limit

    def _compare(
        self, rows: list[Any], rejected: Counter[str], how: str, *, in_order: bool
    ) -> None:
        wanted, found = self._rows[: self._limit], rows[: self._limit]
        wrong = difference(counted(wanted), counted(found))
        require(
            not wrong,
            f"{how} instances of {self._name}, each opened at the positions of those before, did "
            f"not read the input once together: {wrong}; position() is behind the last row that "
            "read() returned, and open_at() divides what is left of all instances",
        )
        require(
            not in_order or list(map(repr, wanted)) == list(map(repr, found)),
            f"one instance of {self._name} did not keep the order when it went on from a position",
        )
        require(
            self._limit is not None or +rejected == +self._rejected,
            f"{how} instances of {self._name} left out {dict(rejected)} together, one reader "
            f"{dict(self._rejected)}: rejected counts what was left out since it was opened",
        )


def _told(name: str, opened: CheckedReader) -> Position:
    """Return a reader's position as a checkpoint keeps it, and check it."""
    position = opened.reader.position()
    require(
        position is not None, f"{name}: position() returned None; it must tell a position always"
    )
    assert position is not None
    try:
        text = json.dumps(position)
    except (TypeError, ValueError) as error:
        require(
            False, f"{name}: position() returned {position!r}, whose values are not JSON's: {error}"
        )
    again = json.dumps(opened.reader.position())
    require(
        text == again,
        f"{name}: position() returned {text} and then {again}, without a read between",
    )
    kept: Position = json.loads(text)
    return kept
