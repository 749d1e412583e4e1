"""The source of columns from Python: a function that yields batches.

For rows that are made, or received, many at a time: nothing is done for each of them here. A
position tells which batches are left, and how many rows of one that was begun were passed on. To
resume from it, the function is called again and batches are skipped, unless another function can
begin anywhere.
A None is no batch, so it has no number: it may be yielded at other places each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ...configs.errors import InputError
from ..arguments import accepts, check_bool
from .arrow_reader import ArrowReader
from .base import Source
from .given_batches import ColumnsOfBatches
from .progress import Progress, own_or_first
from .text_source import take_schema
from .units_left import FOREVER

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema
    from ..process import InstanceContext
    from ..snapshots import Position
    from .base import SourceReader
    from .text_source import SchemaLike

__all__ = ["BatchSource", "batches"]

Batches: TypeAlias = Iterable[Any]

_TO_SKIP = "batches to skip"
_PAUSE_NS = 1_000_000


@dataclass(frozen=True)
class BatchSource(Source):
    """A source of batches; instance i of p reads the batches i, i + p, i + 2p …."""

    position_kind = "batches"
    in_columns = True

    make: Callable[[], Batches] = field(repr=False)
    given_schema: Schema | None
    bounded: bool
    resume: Callable[[int], Batches] | None = field(default=None, repr=False)

    def schema(self) -> Schema | None:
        """Return the schema if it was given."""
        return self.given_schema

    def open(self, context: InstanceContext) -> SourceReader:
        """Start the iteration."""
        columns = ColumnsOfBatches(self.given_schema)
        return self._reader(context, Progress.opened(context, None, {}), columns)

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        """Iterate again, over the batches that are left."""
        columns = ColumnsOfBatches(self.given_schema)
        learnt = own_or_first(context, positions, "columns")
        if self.given_schema is None and learnt is not None:
            columns.learn(take_schema(dict(learnt)))
        return self._reader(context, Progress.opened(context, positions, {}), columns)

    def _reader(
        self, context: InstanceContext, progress: Progress, columns: ColumnsOfBatches
    ) -> SourceReader:
        if self.resume is None or not columns.are_known:  # the first batch of all tells them
            first, made, call = 0, self.make(), "the function of batches()"
        else:
            first = progress.first
            made, call = self.resume(first), f"resume({first})"
        if not isinstance(made, Iterable) or isinstance(made, Mapping):
            msg = (
                f"{call} returned a {type(made).__name__}: return a list of batches, or yield them"
            )
            raise InputError(msg)
        return _BatchReader(iter(made), first, progress, columns, context)

    def resumption(self) -> str:
        """Return whether the batches are made again and skipped."""
        return "makes all batches again and skips" if self.resume is None else "seeks to the batch"

    def describe(self) -> str:
        """Return the function's name, and whether the source is bounded."""
        end = "bounded" if self.bounded else "without an end"
        return f"batches {getattr(self.make, '__name__', type(self.make).__name__)}(), {end}"


class _BatchReader(ArrowReader):
    """Reads the batches of one instance out of an iterator of all batches, from a number on."""

    def __init__(
        self,
        made: Iterator[Any],
        first: int,
        progress: Progress,
        columns: ColumnsOfBatches,
        context: InstanceContext,
    ) -> None:
        self._made = made
        self._clock = context.clock
        self._instance = str(context.instance)
        self._waits = False
        self._to_skip = max(0, progress.first - first)  # before its first own batch
        super().__init__(self._own(made, first, progress, columns), progress)

    def _own(
        self, made: Iterator[Any], number: int, progress: Progress, columns: ColumnsOfBatches
    ) -> Iterator[Batch]:
        """Yield this instance's batches; an empty one for each of others, and where there is none.

        So the worker's loop goes on meanwhile.
        """
        wanted = progress.units(number, FOREVER)
        unit, place = next(wanted)
        for batch in made:
            self._waits = batch is None
            is_own = batch is not None and number == unit
            if batch is not None and not columns.are_known:
                columns.learn(columns.fit(number, batch).schema)
            number += batch is not None
            self._to_skip = min(self._to_skip, max(0, unit - number))
            if not is_own:
                yield columns.empty
                continue
            passed_on = place["rows"] if place else 0
            rows = columns.fit(unit, batch)
            progress.facts["columns"] = columns.learnt
            progress.enter(unit, {"rows": passed_on})
            yield rows.slice(passed_on)
            progress.move(max(passed_on, rows.num_rows))
            unit, place = next(wanted)

    def next_ready_ns(self) -> int | None:
        """Return a time shortly from now if a None was yielded."""
        return self._clock.monotonic_ns() + _PAUSE_NS if self._waits else None

    def gauges(self) -> Mapping[str, Mapping[str, int]]:
        """Return how many batches are still to be skipped; a long skip looks like a stall."""
        return {_TO_SKIP: {self._instance: self._to_skip}} if self._to_skip else {}

    def close(self) -> None:
        """Close the generator, if it is one."""
        super().close()
        close = getattr(self._made, "close", None)
        if close is not None:
            close()


def batches(
    make: Callable[[], Batches],
    schema: SchemaLike | None = None,
    *,
    bounded: bool = True,
    resume: Callable[[int], Batches] | None = None,
) -> Source:
    """Read batches of rows from a function in Python.

    The function is called once by every instance in every attempt, so it must return the same
    batches each time, cut alike. A generator runs in the worker's loop and must not block; it may
    yield None if there is no batch at present.

    Without a schema, the columns and their types are those of the first batch; all others must
    have the same.

    Args:
        make: a function without arguments that returns an iterable of batches. A batch is a mapping
            of column name to a numpy array or a list, a `whale.Batch`, a `pyarrow.RecordBatch` or
            `Table`, a pandas or Polars frame, or another object with the Arrow stream interface.
        schema: the columns and their types, to which those of batches are converted; columns that
            it does not name are left out.
        bounded: whether the batches end.
        resume: a function that returns the batches from a number on, counted from 0 without the
            Nones: `resume(0)` are all batches. A job that resumes from a checkpoint calls it,
            instead of `make` whose batches it would have to skip.

    Raises:
        InputError: `make` or `resume` is no such function; while running: it yields something else,
            or a batch has other columns than the schema or the first batch.
    """
    if not callable(make) or not accepts(make, 0):
        msg = (
            f"batches() got a {type(make).__name__}: pass a function without arguments that returns"
            " batches, such as a generator function; one table goes to whale.sources.arrow"
        )
        raise InputError(msg)
    if resume is not None and not (callable(resume) and accepts(resume, 1)):
        msg = "batches() takes as resume= a function of the number of the first batch"
        raise InputError(msg)
    check_bool("batches", "bounded", bounded)
    return BatchSource(make, take_schema(schema), bounded, resume)
