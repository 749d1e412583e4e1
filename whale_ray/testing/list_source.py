"""A source of listed rows, with markers for pauses, failures and the end of the input."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ..configs.errors import JobError
from ..configs.units import NS_PER_MS
from ..operators.sources.base import Source, SourceReader
from ..operators.sources.progress import own_or_first
from ..operators.sources.text_source import take_schema
from ..operators.sources.units_left import UnitsLeft

if TYPE_CHECKING:
    from ..operators.process import InstanceContext
    from ..operators.snapshots import Position
    from ..operators.sources.text_source import SchemaLike
    from ..transport.clock import Clock
    from ..transport.wire.batch import Batch
    from ..transport.wire.types import Schema


@dataclass(frozen=True)
class EndOfInput:
    """A marker in a `ListSource`: the input ends here, even that of an unbounded source."""


@dataclass(frozen=True)
class Pause:
    """A marker in a `ListSource`: there is nothing to read for some time.

    Attributes:
        duration_ms: the duration in milliseconds, by the job's clock.
    """

    duration_ms: float = 1.0


@dataclass(frozen=True)
class Abort:
    """A marker in a `ListSource`: reading fails here with `AbortError`.

    Attributes:
        message: the message of the error.
    """

    message: str = "the listed input aborts here"


class AbortError(JobError):
    """A `ListSource` has reached an `Abort()`."""


Item: TypeAlias = Mapping[str, Any] | tuple[Any, ...] | EndOfInput | Pause | Abort


class ListSource(Source):
    """A source of listed rows, with markers among them.

    Instance i of p reads the rows i, i + p, i + 2p …; markers apply to all instances.

    Args:
        items: rows (mappings, or tuples with `schema`) and `EndOfInput`, `Pause` or `Abort`.
        schema: the columns and their types; by default inferred from the first rows.
        bounded: whether the input ends after the last item; else there is nothing more to read
            until the job is stopped.
        batch_rows: the most rows per batch; by default as many as the job requests.

    Example:
        >>> from whale_ray.testing import ListSource, Pause, read_all
        >>> source = ListSource([{"x": 1}, Pause(), {"x": 2}, {"x": 3}])
        >>> [batch.to_pylist() for batch in read_all(source)]
        [[{'x': 1}], [{'x': 2}, {'x': 3}]]
    """

    def __init__(
        self,
        items: Iterable[Item],
        schema: SchemaLike | None = None,
        *,
        bounded: bool = True,
        batch_rows: int | None = None,
    ) -> None:
        self._items = tuple(items)
        self._schema = take_schema(schema)
        self._batch_rows = batch_rows
        self.bounded = bounded or any(isinstance(item, EndOfInput) for item in self._items)

    def schema(self) -> Schema | None:
        """Return the schema, or None if none was given."""
        return self._schema

    def open(self, context: InstanceContext) -> SourceReader:
        """Start at the first item."""
        left = UnitsLeft.of_share(context.instance, context.parallelism)
        return self._reader(context, left, 0, self._schema)

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        """Start with the rows left, and with the markers that no instance had reached."""
        instance, parallelism = context.instance, context.parallelism
        lefts = [UnitsLeft.from_json(one["left"]) for one in positions]
        known = own_or_first(context, positions, "columns")
        schema = self._schema if known is None else take_schema(dict(known))
        if len(positions) == parallelism:
            return self._reader(context, lefts[instance], positions[instance]["items"], schema)
        left = UnitsLeft.divided(lefts, instance, parallelism)
        return self._reader(context, left, max(one["items"] for one in positions), schema)

    def resumption(self) -> str:
        """Return that it seeks."""
        return "seeks to the row"

    def _reader(
        self, context: InstanceContext, left: UnitsLeft, passed: int, schema: Schema | None
    ) -> SourceReader:
        """Return a reader of the rows left, and of the markers after so many items."""
        mine: list[tuple[int, Item]] = []
        marks = left.mask(0, len(self._items))
        row = 0
        for number, item in enumerate(self._items):
            if isinstance(item, EndOfInput | Pause | Abort):
                if number >= passed:
                    mine.append((number, item))
                continue
            if marks[row]:
                mine.append((number, item))
            row += 1
        if self.bounded:
            mine.append((len(self._items), EndOfInput()))
        return _ListReader(mine, left, schema, self._batch_rows, context.clock)

    def describe(self) -> str:
        """Return the number of items."""
        return f"list of {len(self._items)}"


class _ListReader(SourceReader):
    def __init__(
        self,
        items: list[tuple[int, Item]],
        left: UnitsLeft,
        schema: Schema | None,
        batch_rows: int | None,
        clock: Clock,
    ) -> None:
        self._items = items
        self._left = left
        self._next = 0
        self._rows = 0
        self._schema = schema
        self._batch_rows = batch_rows
        self._clock = clock
        self._resume_ns = 0
        self._finished = False

    def read(self, max_rows: int) -> Batch | None:
        """Return the rows up to the next marker; None at a marker or during a pause."""
        from ..transport.wire.batch import Batch

        if self._clock.monotonic_ns() < self._resume_ns:
            return None
        rows: list[Any] = []
        most = min(max_rows, self._batch_rows or max_rows)
        while self._next < len(self._items) and len(rows) < most:
            _, item = self._items[self._next]
            if isinstance(item, EndOfInput | Pause | Abort):
                if not rows:
                    self._apply(item)
                break
            rows.append(item)
            self._next += 1
        if not rows:
            return None
        self._rows += len(rows)
        batch = Batch.from_rows(rows, self._schema)
        self._schema = batch.schema
        return batch

    @property
    def finished(self) -> bool:
        """Whether the end of the input was reached."""
        return self._finished

    def position(self) -> Position:
        """Return the rows left, the number of items passed, and the columns."""
        passed = self._items[self._next - 1][0] + 1 if self._next else 0
        known = self._schema or ()
        return {
            "left": self._left.from_count(self._rows).to_json(),
            "items": passed,
            "columns": [[field.name, str(field.type)] for field in known] or None,
        }

    def next_ready_ns(self) -> int | None:
        """Return the end of the pause in ns; at the end of an unbounded list, 1 ms from now."""
        if self._next < len(self._items):
            return self._resume_ns
        return self._clock.monotonic_ns() + NS_PER_MS

    def _apply(self, marker: EndOfInput | Pause | Abort) -> None:
        if isinstance(marker, Abort):
            raise AbortError(marker.message)
        if isinstance(marker, EndOfInput):
            self._finished = True
            return
        self._next += 1
        self._resume_ns = self._clock.monotonic_ns() + round(marker.duration_ms * NS_PER_MS)
