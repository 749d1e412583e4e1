"""Rows from Python: a list, or a function that makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from ...configs.errors import BadRowError, InputError, WhaleError
from .bad_rows import Good, separate
from .base import BadRows, Source, SourceReader
from .text_source import check_policy, take_schema

if TYPE_CHECKING:
    from typing import Self

    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema
    from ..process import InstanceContext
    from .text_source import SchemaLike

Row: TypeAlias = Mapping[str, Any] | tuple[Any, ...]
Rows: TypeAlias = Iterable[Row | None]

_PAUSE_NS = 1_000_000
_PREVIEW_CHARACTERS = 120


@dataclass(frozen=True)
class IterableSource(Source):
    """Rows of an iterable; instance i of p takes the rows i, i + p, i + 2p …."""

    rows: Rows | Callable[[], Rows] = field(repr=False)
    given_schema: Schema | None
    bounded: bool
    replayable: bool
    on_bad_rows: BadRows = "fail"

    def schema(self) -> Schema | None:
        """Return the schema if it was given."""
        return self.given_schema

    def with_bad_rows(self, policy: BadRows) -> Self:
        """Return this source with another policy for rows that do not fit the schema."""
        return replace(self, on_bad_rows=check_policy(policy))

    def open(self, context: InstanceContext) -> SourceReader:
        """Start the iteration."""
        rows = self.rows() if callable(self.rows) else self.rows
        return RowReader(iter(rows), self.given_schema, self.on_bad_rows, context)

    def describe(self) -> str:
        """Return the function's name, or the number of rows."""
        if callable(self.rows):
            return f"iterable {getattr(self.rows, '__name__', type(self.rows).__name__)}()"
        if isinstance(self.rows, Sequence):
            return f"iterable {len(self.rows):,} rows"
        return f"iterable {type(self.rows).__name__}"

    def __reduce__(self) -> Any:
        """Refuse to travel with an iterator, which Python cannot pickle.

        Raises:
            InputError: the rows are an iterator.
        """
        if not self.replayable:
            msg = (
                f"a {type(self.rows).__name__} cannot travel to another process; pass the function "
                "that makes it, not its result: iterable(rows) instead of iterable(rows())"
            )
            raise InputError(msg)
        values = (self.rows, self.given_schema, self.bounded, self.replayable, self.on_bad_rows)
        return type(self), values


class RowReader(SourceReader):
    """Gathers rows into batches of one schema."""

    def __init__(
        self,
        rows: Iterator[Row | None],
        schema: Schema | None,
        policy: BadRows,
        context: InstanceContext,
    ) -> None:
        self._all_rows = rows
        self._rows = islice(rows, context.instance, None, context.parallelism)
        self._schema = schema
        self._policy = policy
        self._clock = context.clock
        self._finished = False
        self._taken = 0
        self._rejected: dict[str, int] = {}

    def read(self, max_rows: int) -> Batch | None:
        """Take rows until `max_rows`, the end, or a None, which means nothing now."""
        from ...transport.wire.batch import Batch

        taken: list[Row] = []
        self._finished = True
        for row in islice(self._rows, max_rows):
            if row is None:
                self._finished = False
                break
            taken.append(row)
        else:
            self._finished = len(taken) < max_rows
        first = self._taken
        self._taken += len(taken)
        good = list(self._convert(taken, first))
        if not good:
            return None
        return good[0] if len(good) == 1 else Batch.concat(good)

    @property
    def finished(self) -> bool:
        """Whether the iterator has ended."""
        return self._finished

    def next_ready_ns(self) -> int | None:
        """Return a moment shortly from now: a None was yielded, or all rows read were bad."""
        return self._clock.monotonic_ns() + _PAUSE_NS

    @property
    def rejected(self) -> Mapping[str, int]:
        """The rows left out so far, counted by reason."""
        return self._rejected

    def close(self) -> None:
        """Close the generator, if it is one."""
        close = getattr(self._all_rows, "close", None)
        if close is not None:
            close()

    def _convert(self, rows: Sequence[Row], first: int) -> Iterator[Batch]:
        from ...transport.wire.batch import Batch

        def convert(some: Sequence[Row]) -> Batch:
            batch = Batch.from_rows(list(some), self._schema)
            self._schema = self._schema or batch.schema
            return batch

        errors = (WhaleError, TypeError, ValueError, OverflowError, KeyError)
        for part in separate(rows, convert, errors, first):
            if isinstance(part, Good):
                yield part.value
            elif self._policy == "drop":
                reason = "row does not fit the schema"
                self._rejected[reason] = self._rejected.get(reason, 0) + 1
            else:
                msg = (
                    f"row {part.index}: {part.error}: {_preview(rows[part.index - first])}; "
                    "correct it, pass schema=, or pass on_bad_rows='drop' to leave such rows out "
                    "and count them"
                )
                raise BadRowError(msg) from part.error


def _preview(row: object) -> str:
    text = repr(row)
    return text if len(text) <= _PREVIEW_CHARACTERS else text[:_PREVIEW_CHARACTERS] + "…"


def iterable(
    rows: Rows | Callable[[], Rows],
    schema: SchemaLike | None = None,
    *,
    bounded: bool = True,
) -> Source:
    """Read rows that Python makes.

    A function is called anew by every attempt and every instance, so it must return the same rows
    each time. A generator runs inside the worker's loop and must not wait; it may yield None to
    say that there is nothing now. An iterator can be read once only, in this process.

    Args:
        rows: a list or other collection of rows, or a function without arguments that returns an
            iterable of rows. A row is a mapping of column name to value, or, with `schema`, a
            tuple.
        schema: the columns and their types; inferred from the first rows read if left out.
        bounded: whether the rows end.

    Raises:
        InputError: `rows` is nothing of the kind.
        BadRowError: while running: a row does not fit the schema, unless `Topology.source` got
            `on_bad_rows="drop"`.
    """
    if isinstance(rows, Mapping | str | bytes) or not (
        callable(rows) or isinstance(rows, Iterable)
    ):
        msg = (
            f"iterable() got a {type(rows).__name__}; pass a list of rows, or a function that "
            "returns rows, each a mapping of column name to value"
        )
        raise InputError(msg)
    replayable = callable(rows) or not isinstance(rows, Iterator)
    return IterableSource(rows, take_schema(schema), bounded, replayable)
