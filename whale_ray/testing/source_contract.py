"""`check_source`: check that a source fulfils the contract of `whale.sources.Source`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from ..operators.sources.base import Source
from ..transport.clock import VirtualClock
from .checked_reader import CheckedReader
from .conformance import (
    call_twice,
    check_description,
    counted,
    difference,
    pickled_copy,
    require,
    until_nothing_left_open,
)
from .driving import instance_context
from .position_contract import check_positions

Rows = list[dict[str, Any]]


def check_source(
    make_source: Callable[[], Source],
    *,
    parallelism: Sequence[int] = (2, 3),
    max_rows: Sequence[int] = (1, 1000),
    unbounded_rows: int = 100,
    rescales: bool = True,
    seed: int = 0,
) -> None:
    """Read a source in all the ways in which the runtime may, and compare the rows.

    The checks are:

    - the source can be pickled;
    - a batch has at least one row, no more than requested, and always the same columns: those of
      `schema()`, if it returns any;
    - a new attempt reads the same rows in the same order, for any number of rows per call, and
      also while another reader is active;
    - instances share the input: no row is lost or read twice;
    - a reader that has finished returns no more rows;
    - positions, if the source has any: read up to random places, by the same and by other numbers
      of instances, again and again, every row is read exactly once, one instance keeps the order,
      and the counts of rows left out are those of one reader; a position consists of JSON values,
      and stays as it is while its reader reads on;
    - `close` may be called at any time and twice, and leaves no file or socket open.

    Args:
        make_source: returns the source; called several times, each result must read the same input.
        parallelism: the numbers of instances to try.
        max_rows: the numbers of rows per call to try.
        unbounded_rows: for an unbounded source: how many rows of each instance are compared. How
            the instances share such an input is not checked.
        rescales: whether other instances can resume from positions; else `open_at` must refuse
            them.
        seed: where snapshots are taken depends on it.

    Raises:
        ContractError: the source violates the contract; the message says how.
    """
    source = make_source()
    require(isinstance(source, Source), f"{source!r} does not derive from whale.sources.Source")
    check_description(source)
    source.check()
    ready = source.materialize(cluster=False)
    try:
        copy = pickled_copy(ready)
        _check_readers(copy, parallelism, max_rows, unbounded_rows)
        if copy.replayable:
            limit = None if copy.bounded else unbounded_rows
            check_positions(copy, parallelism, limit, rescales, seed)
    finally:
        call_twice(source.release, "release()")


def _check_readers(
    source: Source, parallelism: Sequence[int], max_rows: Sequence[int], unbounded_rows: int
) -> None:
    limit = None if source.bounded else unbounded_rows
    name = type(source).__name__
    first = _read(source, 0, 1, max_rows[-1], limit)
    for count in max_rows:
        again = _read(source, 0, 1, count, limit)
        if source.replayable:
            require(
                list(map(repr, again)) == list(map(repr, first)),
                f"{name} did not read the same rows again, {count} at a time: a new attempt must, "
                "in the same order; else set replayable = False "
                f"({difference(counted(first), counted(again)) or 'the order differs'})",
            )
    if source.replayable:
        _check_shares(source, first, parallelism, max_rows[-1], limit)
        _check_interleaved(source, first, limit)
    _check_closing(source)


def _check_shares(
    source: Source, first: Rows, parallelism: Sequence[int], max_rows: int, limit: int | None
) -> None:
    name = type(source).__name__
    for count in parallelism:
        shares = [_read(source, instance, count, max_rows, limit) for instance in range(count)]
        if limit is None:
            together = counted(row for share in shares for row in share)
            wrong = difference(counted(first), together)
            require(
                not wrong,
                f"{count} instances of {name} did not read the input once together: {wrong}; read "
                "the share of context.instance out of context.parallelism",
            )
        again = _read(source, count - 1, count, max_rows, limit)
        require(
            list(map(repr, again)) == list(map(repr, shares[-1])),
            f"instance {count - 1} of {count} of {name} did not read the same share again: it may "
            "depend on nothing but context.instance and context.parallelism",
        )


def _check_interleaved(source: Source, first: Rows, limit: int | None) -> None:
    """Read with two readers alternately: they must not share state."""
    readers = [_rows(CheckedReader(source, 0, 1), 1, limit) for _ in range(2)]
    both: list[list[str]] = [[], []]
    for rows in zip(*readers, strict=False):
        for seen, row in zip(both, rows, strict=True):
            seen.append(repr(row))
    expected = list(map(repr, first))[: len(both[0])]
    require(
        both[0] == expected and both[1] == expected,
        f"two readers of {type(source).__name__} that read in turn disturbed each other: keep what "
        "moves in the reader, not in the source",
    )


def _check_closing(source: Source) -> None:
    """Close a reader before its first read, and before its end."""
    remedy = "close() must close files and connections"
    for reads in (0, 1):
        for _ in until_nothing_left_open(list, f"a reader of {type(source).__name__}", remedy):
            reader = source.open(instance_context(clock=VirtualClock()))
            for _ in range(reads):
                reader.read(1)
            call_twice(reader.close, "close()")
            del reader


def _read(
    source: Source, instance: int, parallelism: int, max_rows: int, limit: int | None
) -> Rows:
    remedy = "close() must close files and connections"
    found: Rows = []
    for fresh in until_nothing_left_open(Rows, f"a reader of {type(source).__name__}", remedy):
        found = fresh
        found.extend(_rows(CheckedReader(source, instance, parallelism), max_rows, limit))
    return found


def _rows(checked: CheckedReader, max_rows: int, limit: int | None) -> Iterator[dict[str, Any]]:
    try:
        rows = (row for batch in checked.batches(max_rows) for row in batch.to_pylist())
        yield from islice(rows, limit)
    finally:
        checked.reader.close()
