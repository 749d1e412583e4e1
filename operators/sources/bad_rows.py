"""Separates rows that can be converted from those that cannot, by bisection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Row = TypeVar("Row")
Converted = TypeVar("Converted")


@dataclass(frozen=True)
class Good(Generic[Converted]):
    """Consecutive rows converted by one call; `first` is the index of the first row."""

    first: int
    value: Converted


@dataclass(frozen=True)
class Bad:
    """A single row that cannot be converted, and the error."""

    index: int
    error: Exception


def separate(
    rows: Sequence[Row],
    convert: Callable[[Sequence[Row]], Converted],
    errors: tuple[type[Exception], ...],
    first: int = 0,
) -> Iterator[Good[Converted] | Bad]:
    """Convert the rows in order; where `convert` raises one of `errors`, convert both halves.

    Takes one call of `convert` if all rows are good, and O(k·log n) calls for k bad rows of n. The
    generator is lazy: a caller that stops at the first bad row pays for that one only.
    """
    if not rows:
        return
    try:
        good = Good(first, convert(rows))
    except errors as error:
        if len(rows) == 1:
            yield Bad(first, error)
            return
    else:
        yield good
        return
    middle = len(rows) // 2
    yield from separate(rows[:middle], convert, errors, first)
    yield from separate(rows[middle:], convert, errors, first + middle)
