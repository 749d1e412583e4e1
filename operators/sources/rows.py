"""The source of rows from Python: a collection, or a function that returns an iterable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from ...configs.errors import BadRowError, InputError, WhaleError
from ..learnt_schema import WAITING_NS_MAX, LearntSchema
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
_TAKING_NS = 50_000_000
"""`read` returns after this time even if it has few rows, so that slow rows are not held back."""
_PREVIEW_CHARACTERS = 120


@dataclass(frozen=True)
class IterableSource(Source):
    """A source of the rows of an iterable; instance i of p reads the rows i, i + p, i + 2p …."""

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
        return RowReader(
            iter(rows), self.given_schema, self.on_bad_rows, context, bounded=self.bounded
        )

    def describe(self) -> str:
        """Return the function's name or the number of rows, and whether the source is bounded."""
        if isinstance(self.rows, Sequence):
            return f"iterable {len(self.rows):,} rows"
        end = "bounded" if self.bounded else "without an end"
        if callable(self.rows):
            return f"iterable {getattr(self.rows, '__name__', type(self.rows).__name__)}(), {end}"
        return f"iterable {type(self.rows).__name__}, {end}"

    def __reduce__(self) -> Any:
        """Refuse to pickle an iterator.

        Raises:
            InputError: the rows are an iterator.
        """
        if not self.replayable:
            msg = (
                f"a {type(self.rows).__name__} cannot be sent to another process; pass the "
                "function that makes it, not its result: iterable(rows) instead of iterable(rows())"
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
        *,
        bounded: bool,
    ) -> None:
        self._all_rows = rows
        self._rows = islice(rows, context.instance, None, context.parallelism)
        self._bounded = bounded
        self._learnt = LearntSchema(schema, skips_misfits=True, presumes=not bounded)
        self._policy = policy
        self._clock = context.clock
        self._ended = False
        self._waiting: list[Any] = []
        self._waits_since_ns: int | None = None
        self._passed_on = 0
        self._rejected: dict[str, int] = {}

    def read(self, max_rows: int) -> Batch | None:
        """Return the next rows: up to `max_rows`, the end, or a None, which means none at present.

        Takes more from the iterator while column types are unknown, fewer if the iterator is slow.
        """
        if not self._waiting or self._learnt.known is None:
            self._take(max_rows)
        if self._learnt.known is None and not self._presume_if_late():
            return None
        rows, self._waiting = self._waiting[:max_rows], self._waiting[max_rows:]
        return self._batch_of(rows)

    def drain(self) -> Batch | None:
        """Return the rows that waited, whose columns of nulls are presumed to be text."""
        self._learnt.presume()
        self._ended = True
        if not self._waiting or not self._learn([]):
            return None
        rows, self._waiting = self._waiting, []
        return self._batch_of(rows)

    def _batch_of(self, rows: Sequence[Any]) -> Batch | None:
        """Return the rows that fit the schema, None if there are none; reject the others."""
        from ...transport.wire.batch import Batch

        self._check_presumed(rows)
        first = self._passed_on
        self._passed_on += len(rows)
        good = list(self._convert(rows, first))
        if not good:
            return None
        return good[0] if len(good) == 1 else Batch.concat(good)

    def _take(self, max_rows: int) -> None:
        """Take rows from the iterator until there are enough, or none at present, or time is up.

        First one row, then twice as many each time, so that a generator that waits for its rows
        exceeds the time with few of them.
        """
        until_ns = self._clock.monotonic_ns() + _TAKING_NS
        wanted, count = 1, 0
        while wanted and self._clock.monotonic_ns() < until_ns:
            taken = []
            self._ended = True
            for row in islice(self._rows, wanted):
                if row is None:
                    self._ended = False
                    break
                taken.append(row)
            else:
                self._ended = len(taken) < wanted
            self._waiting += taken
            is_known = self._learn(taken)
            if len(taken) < wanted:
                return
            count += wanted
            room = max(0, max_rows - count) if is_known else max_rows
            wanted = min(2 * wanted, room)

    def _presume_if_late(self) -> bool:
        """Presume types once rows of an unbounded source have waited for a second; return if so."""
        now_ns = self._clock.monotonic_ns()
        if not self._waiting or self._bounded:
            return False
        if self._waits_since_ns is None:
            self._waits_since_ns = now_ns
        if now_ns - self._waits_since_ns < WAITING_NS_MAX:
            return False
        self._learnt.presume()
        return self._learnt.known is not None

    def _check_presumed(self, rows: Sequence[Any]) -> None:
        try:
            self._learnt.check_presumed(rows)
        except InputError as error:  # not the fault of a row, so it fails under any policy
            msg = f"{error}: pass schema=, or rows without it"
            raise InputError(msg) from None

    def _learn(self, taken: Sequence[Any]) -> bool:
        """Learn the columns from rows just taken; return whether they are known."""
        try:
            if not self._learnt.look(taken) and self._ended:
                self._learnt.settle()
        except InputError as error:
            row = self._learnt.misfit_row
            if row is None:  # a column of nulls: not the fault of a row, so it fails in any case
                msg = f"{error}: pass schema=, or rows without it"
                raise InputError(msg) from None
            self._reject(self._passed_on + row, self._waiting[row], error, len(self._waiting))
            self._passed_on += len(self._waiting)
            self._waiting = []
            self._learnt = LearntSchema(skips_misfits=True, presumes=not self._bounded)
        return self._learnt.known is not None

    @property
    def finished(self) -> bool:
        """Whether the iterator has ended."""
        return self._ended and not self._waiting

    def next_ready_ns(self) -> int | None:
        """Return a time shortly from now: a None was yielded, or all rows read were bad."""
        return self._clock.monotonic_ns() + _PAUSE_NS

    @property
    def rejected(self) -> Mapping[str, int]:
        """The number of rows dropped so far, by reason."""
        return self._rejected

    def close(self) -> None:
        """Close the generator, if it is one."""
        close = getattr(self._all_rows, "close", None)
        if close is not None:
            close()

    def _convert(self, rows: Sequence[Any], first: int) -> Iterator[Batch]:
        errors = (WhaleError, TypeError, ValueError, OverflowError, KeyError)
        for part in separate(rows, self._learnt.batch, errors, first):
            if isinstance(part, Good):
                yield part.value
            else:
                self._reject(part.index, rows[part.index - first], part.error, 1)

    def _reject(self, index: int, row: object, error: Exception, rows: int) -> None:
        """Count rows that do not fit, or raise for the first of them."""
        if self._policy == "drop":
            reason = "row does not fit the schema"
            self._rejected[reason] = self._rejected.get(reason, 0) + rows
            return
        msg = (
            f"row {index}: {error}: {_preview(row)}; correct it, pass schema=, or pass "
            "on_bad_rows='drop' to leave such rows out and count them"
        )
        raise BadRowError(msg) from error


def _preview(row: object) -> str:
    text = repr(row)
    return text if len(text) <= _PREVIEW_CHARACTERS else text[:_PREVIEW_CHARACTERS] + "…"


def iterable(
    rows: Rows | Callable[[], Rows],
    schema: SchemaLike | None = None,
    *,
    bounded: bool = True,
) -> Source:
    """Read rows from Python.

    A function is called once by every instance in every attempt, so it must return the same rows
    each time. A generator runs in the worker's loop and must not block; it may yield None if there
    is no row at present. An iterator can only be read once, in this process.

    A source counts as bounded unless `bounded=False` is passed, since it is not known whether a
    function's rows end. Sinks publish the result of a bounded job at its end, and that of an
    unbounded one while it runs.

    Without a schema, rows wait until each column has had a value. Rows of an unbounded source wait
    for at most a second or 65,536 rows; a column of only nulls is then presumed to be text, and a
    later value of another type fails the job.

    Args:
        rows: a list or other collection of rows, or a function without arguments that returns an
            iterable of rows. A row is a mapping of column name to value, or, with `schema`, a
            tuple.
        schema: the columns and their types; if left out, the names are those of the first row and
            the types those of the first values.
        bounded: whether the rows end.

    Raises:
        InputError: `rows` is none of these; while running: without a schema, a column holds only
            nulls in all rows, or in the first 65,536; or a column that was presumed to be text has
            another type.
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
