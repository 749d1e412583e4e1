"""The source of rows from Python: a collection, or a function that returns an iterable.

A position is the numbers of the rows that are left, and the columns that were learnt. To resume
from it, the function is called again and rows are skipped, unless another function can begin
anywhere.
A None is no row, so it has no number: it may be yielded at other places each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields, replace
from itertools import compress, islice
from typing import TYPE_CHECKING, Any, TypeAlias

from ...configs.errors import BadRowError, InputError, WhaleError
from ..arguments import accepts, check_bool
from ..learnt_schema import WAITING_NS_MAX, LearntSchema
from .bad_rows import Good, separate
from .base import BadRows, Source, SourceReader
from .files import START_ANEW
from .progress import own_or_first
from .text_source import check_policy, take_schema
from .units_left import UnitsLeft

if TYPE_CHECKING:
    from typing import Self

    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema
    from ..process import InstanceContext
    from ..snapshots import Position
    from .text_source import SchemaLike

Row: TypeAlias = Mapping[str, Any] | tuple[Any, ...]
Rows: TypeAlias = Iterable[Row | None]

_TO_SKIP = "rows to skip"
_PAUSE_NS = 1_000_000
_TAKING_NS = 50_000_000
"""`read` returns after this time even if it has few rows, so that slow rows are not held back."""
_PREVIEW_CHARACTERS = 120


@dataclass(frozen=True)
class IterableSource(Source):
    """A source of the rows of an iterable; instance i of p reads the rows i, i + p, i + 2p …."""

    position_kind = "an iterable"

    rows: Rows | Callable[[], Rows] = field(repr=False)
    given_schema: Schema | None
    bounded: bool
    replayable: bool
    on_bad_rows: BadRows = "fail"
    resume: Callable[[int], Rows] | None = field(default=None, repr=False)
    opened: list[bool] = field(default_factory=list, repr=False, compare=False)
    """Not empty once an iterator was opened; a source with another policy shares it."""

    def schema(self) -> Schema | None:
        """Return the schema if it was given."""
        return self.given_schema

    def with_bad_rows(self, policy: BadRows) -> Self:
        """Return this source with another policy for rows that do not fit the schema."""
        return replace(self, on_bad_rows=check_policy(policy))

    def open(self, context: InstanceContext) -> SourceReader:
        """Start the iteration.

        Raises:
            InputError: the rows are an iterator, which an earlier run has read, or of which several
                instances would each lose the rows of the others.
        """
        if not self.replayable:
            self._open_once(context)
        left = UnitsLeft.of_share(context.instance, context.parallelism)
        return RowReader(self, OwnRows(_iterator(self._from_start(), "rows()"), left), context)

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        """Iterate again, over the rows that are left.

        Raises:
            InputError: the rows are an iterator, or a collection of another size.
        """
        if not self.replayable:
            msg = f"{self.describe()} cannot be read from a position: {self.resumption_remedy()}"
            raise InputError(msg)
        for one in positions:
            if one["size"] != self.size:
                msg = (
                    f"{self.describe()}: there were {_counted(one['size'])} when a part of them "
                    f"was read, and there are {_counted(self.size)} now; {START_ANEW}"
                )
                raise InputError(msg)
        instance, parallelism = context.instance, context.parallelism
        lefts = [UnitsLeft.from_json(one["left"]) for one in positions]
        if len(positions) == parallelism:
            left = lefts[instance]
        else:
            left = UnitsLeft.divided(lefts, instance, parallelism)
        first = left.first or 0
        if self.resume is None:
            rows = OwnRows(_iterator(self._from_start(), "rows()"), left)
        else:
            rows = OwnRows(_iterator(self.resume(first), f"resume({first})"), left, first)
        reader = RowReader(self, rows, context)
        learnt = own_or_first(context, positions, "columns")
        presumed = own_or_first(context, positions, "presumed")
        reader.go_on(learnt, presumed)
        return reader

    def _open_once(self, context: InstanceContext) -> None:
        if self.opened or context.parallelism > 1:
            why = "was read before" if self.opened else "cannot be read by several instances"
            msg = f"{self.describe()} {why}: {self.resumption_remedy()}"
            raise InputError(msg)
        self.opened.append(True)

    def resumption(self) -> str | None:
        """Return whether the rows are made again and skipped; None for an iterator."""
        if not self.replayable:
            return None
        return "makes all rows again and skips" if self.resume is None else "seeks to the row"

    def resumption_remedy(self) -> str:
        """Return what to pass instead of an iterator."""
        return (
            f"a {type(self.rows).__name__} can be read only once; pass the function that makes it, "
            "iterable(rows) instead of iterable(rows())"
        )

    def _from_start(self) -> Rows:
        return self.rows() if callable(self.rows) else self.rows

    @property
    def size(self) -> int | None:
        """The number of rows, if that is known."""
        return len(self.rows) if isinstance(self.rows, Sized) else None

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
        return type(self), tuple(getattr(self, one.name) for one in fields(self))


def _counted(size: int | None) -> str:
    return "an unknown number of rows" if size is None else f"{size:,} rows"


class OwnRows:
    """Takes the rows of one instance from an iterator of all rows.

    Args:
        rows: an iterator, which yields None if there is no row at present.
        left: the numbers of the rows to take.
        number: that of the iterator's first row.

    Attributes:
        ended: whether the iterator has ended.
        waits: whether it had no row when it was last asked.
    """

    def __init__(self, rows: Iterator[Row | None], left: UnitsLeft, number: int = 0) -> None:
        self.all_rows = rows
        self.ended = False
        self.waits = False
        self.left = left
        self._to_take = left
        self._number = number
        self._stride = left.runs[-1].step if left.runs else 1

    @property
    def to_skip(self) -> int:
        """How many rows come before the next one to take."""
        return max(0, (self._to_take.first or 0) - self._number)

    def take(self, most: int) -> list[Any]:
        """Return the next rows, at most `most` times the number of instances are looked at."""
        count = most * self._stride
        rows: list[Any] = []
        self.waits = False
        for row in islice(self.all_rows, count):
            if row is None:
                self.waits = True
                break
            rows.append(row)
        else:
            self.ended = len(rows) < count
        start, self._number = self._number, self._number + len(rows)
        if len(self._to_take.runs) != 1:
            mask = self._to_take.mask(start, self._number)
            self._to_take = self._to_take.from_unit(self._number)
            return list(compress(rows, mask))
        run = self._to_take.runs[0]
        first = run.start - start if run.start >= start else (run.start - start) % run.step
        return rows[first :: run.step] if first or run.step > 1 else rows


class RowReader(SourceReader):
    """Gathers rows into batches of one schema."""

    def __init__(
        self,
        source: IterableSource,
        rows: OwnRows,
        context: InstanceContext,
    ) -> None:
        self._source = source
        self._rows = rows
        self._bounded = source.bounded
        self._policy = source.on_bad_rows
        self._learnt = LearntSchema(
            source.given_schema,
            skips_misfits=self._policy == "drop",
            presumes=not source.bounded,
        )
        self._clock = context.clock
        self._instance = str(context.instance)
        self._ended = False
        self._waiting: list[Any] = []
        self._waits_since_ns: int | None = None
        self._passed_on = 0
        self._rejected: dict[str, int] = {}

    def go_on(
        self,
        columns: Sequence[tuple[str, str]] | None,
        presumed: Mapping[str, int] | None,
    ) -> None:
        """Resume from what was learnt before; the names and types of the columns."""
        if columns is not None:
            known = take_schema(dict(columns))
            self._learnt.restore([{"known": known, "presumed": presumed or {}}], ())

    def position(self) -> Position | None:
        """Return the rows left, and what was learnt; None for an iterator, which has none."""
        if not self._source.replayable:
            return None
        position: dict[str, Any] = {
            "left": self._rows.left.from_count(self._passed_on).to_json(),
            "size": self._source.size,
        }
        kept = self._learnt.kept()
        if self._source.given_schema is None and kept["known"] is not None:
            position["columns"] = [[field.name, str(field.type)] for field in kept["known"]]
            position["presumed"] = kept["presumed"]
        return position

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
            taken = self._rows.take(wanted)
            self._ended = self._rows.ended
            self._waiting += taken
            is_known = self._learn(taken)
            if self._rows.ended or self._rows.waits:
                return
            count += len(taken)
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

    def gauges(self) -> Mapping[str, Mapping[str, int]]:
        """Return how many rows are still to be skipped; a long skip looks like a stall."""
        rows = self._rows.to_skip
        return {_TO_SKIP: {self._instance: rows}} if rows else {}

    def close(self) -> None:
        """Close the generator, if it is one."""
        close = getattr(self._rows.all_rows, "close", None)
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
        number = self._rows.left.from_count(index).first
        why = str(error).removeprefix("row 0 ")
        msg = (
            f"row {number}: {why}: {_preview(row)}; correct it, pass schema=, or pass "
            "on_bad_rows='drop' to leave such rows out and count them"
        )
        raise BadRowError(msg) from error


def _preview(row: object) -> str:
    text = " ".join(repr(row).split())
    return text if len(text) <= _PREVIEW_CHARACTERS else text[:_PREVIEW_CHARACTERS] + "…"


def _iterator(rows: object, call: str) -> Iterator[Any]:
    """Return the iterator of what a user's function returned."""
    if isinstance(rows, Iterable):
        return iter(rows)
    msg = f"{call} of iterable() returned {rows!r:.60}: return a list of rows, or yield them"
    raise InputError(msg)


def iterable(
    rows: Rows | Callable[[], Rows],
    schema: SchemaLike | None = None,
    *,
    bounded: bool = True,
    resume: Callable[[int], Rows] | None = None,
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
        resume: a function that returns the rows from a number on, counted from 0 without the Nones:
            `resume(0)` are all rows. A job that resumes from a checkpoint calls it, instead of
            `rows` whose rows it would have to skip.

    Raises:
        InputError: `rows` is none of these; while running: without a schema, a column holds only
            nulls in all rows, or in the first 65,536; or a column that was presumed to be text has
            another type.
        BadRowError: while running: a row does not fit the schema, unless `Topology.source` got
            `on_bad_rows="drop"`.
    """
    if hasattr(rows, "__arrow_c_stream__") and not isinstance(rows, type):
        msg = (
            f"iterable() got a {type(rows).__name__}, which is a table: pass it to "
            "whale.sources.arrow or whale.sources.pandas"
        )
        raise InputError(msg)
    if isinstance(rows, Mapping | str | bytes) or not (
        callable(rows) or isinstance(rows, Iterable)
    ):
        msg = (
            f"iterable() got a {type(rows).__name__}; pass a list of rows, or a function that "
            "returns rows, each a mapping of column name to value"
        )
        raise InputError(msg)
    if callable(rows) and not accepts(rows, 0):
        msg = "iterable() calls rows() without arguments: bind them, such as by functools.partial"
        raise InputError(msg)
    replayable = callable(rows) or not isinstance(rows, Iterator)
    if resume is not None and not (callable(resume) and callable(rows) and accepts(resume, 1)):
        msg = (
            "iterable() takes resume=, a function of a row's number, only with a function that "
            "returns all rows; pass rows=, too, or leave it out"
        )
        raise InputError(msg)
    check_bool("iterable", "bounded", bounded)
    return IterableSource(rows, take_schema(schema), bounded, replayable, resume=resume)
