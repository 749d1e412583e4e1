"""Rows from Python: a list, or a function that makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from ...configs.errors import BadRowError, InputError, WhaleError
from ..learnt_schema import LearntSchema
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
"""Rows that come slowly are passed on after so long, however few they are."""
_WAITING_NS_MAX = 1_000_000_000
"""So long rows of a source without an end wait for the types of columns of nulls."""
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
        return RowReader(
            iter(rows), self.given_schema, self.on_bad_rows, context, bounded=self.bounded
        )

    def describe(self) -> str:
        """Return the function's name, or the number of rows; and whether they are said to end."""
        if isinstance(self.rows, Sequence):
            return f"iterable {len(self.rows):,} rows"
        end = "bounded" if self.bounded else "without an end"
        if callable(self.rows):
            return f"iterable {getattr(self.rows, '__name__', type(self.rows).__name__)}(), {end}"
        return f"iterable {type(self.rows).__name__}, {end}"

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
        """Take rows until `max_rows`, the end, or a None, which means nothing now.

        More are taken while the types of their columns are not known, fewer if they come slowly.
        """
        from ...transport.wire.batch import Batch

        if not self._waiting or self._learnt.known is None:
            self._take(max_rows)
        if self._learnt.known is None and not self._wait_no_longer():
            return None
        rows, self._waiting = self._waiting[:max_rows], self._waiting[max_rows:]
        self._check_presumed(rows)
        first = self._passed_on
        self._passed_on += len(rows)
        good = list(self._convert(rows, first))
        if not good:
            return None
        return good[0] if len(good) == 1 else Batch.concat(good)

    def _take(self, max_rows: int) -> None:
        """Take rows until those that wait may be passed on, or there are no more now.

        One first, then twice as many each time, so that a function that waits for its rows is
        noticed with the first of them.
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

    def _wait_no_longer(self) -> bool:
        """Presume types if an endless source's rows have waited long enough; return if they do."""
        now_ns = self._clock.monotonic_ns()
        if not self._waiting or self._bounded:
            return False
        if self._waits_since_ns is None:
            self._waits_since_ns = now_ns
        if now_ns - self._waits_since_ns < _WAITING_NS_MAX:
            return False
        self._learnt.presume()
        return self._learnt.known is not None

    def _check_presumed(self, rows: Sequence[Any]) -> None:
        try:
            self._learnt.check_presumed(rows)
        except InputError as error:  # which is no row's fault, whatever the policy
            msg = f"{error}: pass schema=, or rows without it"
            raise InputError(msg) from None

    def _learn(self, taken: Sequence[Any]) -> bool:
        """Learn the columns from rows just taken; return whether they are known."""
        try:
            if not self._learnt.look(taken) and self._ended:
                self._learnt.settle()
        except InputError as error:
            row = self._learnt.misfit_row
            if row is None:  # a column of nulls, which is no row's fault, whatever the policy
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

    def _convert(self, rows: Sequence[Any], first: int) -> Iterator[Batch]:
        errors = (WhaleError, TypeError, ValueError, OverflowError, KeyError)
        for part in separate(rows, self._learnt.batch, errors, first):
            if isinstance(part, Good):
                yield part.value
            else:
                self._reject(part.index, rows[part.index - first], part.error, 1)

    def _reject(self, index: int, row: object, error: Exception, rows: int) -> None:
        """Count rows that do not fit, or refuse them by showing the first."""
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
    """Read rows that Python makes.

    A function is called anew by every attempt and every instance, so it must return the same rows
    each time. A generator runs inside the worker's loop and must not wait; it may yield None to
    say that there is nothing now. An iterator can be read once only, in this process.

    Rows count as bounded unless `bounded=False` says otherwise, also those of a function: nobody
    can see whether a function ends, and a plan shows what was said. Sinks publish the result of a
    bounded job at its end, and that of others while it runs.

    Without a schema rows wait until each column has had a value. Where rows have no end, they wait
    for a second or 65,536 rows; a column that held nothing but nulls is taken for text by then, and
    a later value that is none fails the job.

    Args:
        rows: a list or other collection of rows, or a function without arguments that returns an
            iterable of rows. A row is a mapping of column name to value, or, with `schema`, a
            tuple.
        schema: the columns and their types; if left out, the first row tells the columns and the
            first value of each its type.
        bounded: whether the rows end.

    Raises:
        InputError: `rows` is nothing of the kind; while running: a column holds nothing but nulls
            in all rows, or in the first 65,536, and there is no schema; or a column that was taken
            for text is none.
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
