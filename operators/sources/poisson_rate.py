"""The rate generator: rows that arrive as a Poisson process, as in Whale's experiments.

Open loop: each row has a scheduled time that depends on the seed and the rate alone, not on how
fast the job reads. A batch's `origin_ns` is the scheduled time of its oldest row, so that latencies
measured from it include the time that a row waited to be read.

The content of a row depends on the seed and the row's number only, not on the rate, the number of
instances or the batches: rows are generated in chunks of 1,024, each with its own random generator,
and chunks are assigned to instances round-robin. Each of p instances emits at 1/p of the rate;
together they are a Poisson process of the whole rate.

A position holds the chunks that are left, and the schedule: the generator of the gaps before the
chunk that is being emitted. So a job that continues emits the same rows at the same distances; with
another number of instances, or another rate, the schedule is another one, which resumes from the
latest time that any instance had reached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeAlias

from ...configs.errors import InputError
from ..arguments import accepts, check_type
from .base import Source, SourceReader
from .files import START_ANEW
from .progress import Progress
from .text_source import take_schema

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ...transport.wire.batch import Batch
    from ...transport.wire.types import Schema
    from ..process import InstanceContext
    from ..snapshots import Position
    from .text_source import SchemaLike

    Columns: TypeAlias = Callable[[npt.NDArray[np.int64], np.random.Generator], Mapping[str, Any]]

CHUNK_ROWS = 1024

_CONTENT, _GAPS = 0, 1
_NO_LIMIT = 1 << 62


@dataclass(frozen=True)
class PoissonSource(Source):
    """A source of generated rows with exponential interarrival times."""

    position_kind = "generated rows"

    rate_per_s: float
    columns: Columns
    limit: int | None
    seed: int
    time_column: str | None
    given_schema: Schema | None
    bounded: bool

    def schema(self) -> Schema | None:
        """Return the schema if it was given."""
        return self.given_schema

    def open(self, context: InstanceContext) -> SourceReader:
        """Start the schedule at the current time of the context's clock."""
        return PoissonReader(self, context)

    def open_at(self, context: InstanceContext, positions: Sequence[Position]) -> SourceReader:
        """Continue with the schedule at the current time of the context's clock.

        Raises:
            InputError: the seed is another one.
        """
        for one in positions:
            if one["seed"] != self.seed:
                msg = (
                    f"poisson: rows of seed={one['seed']} were emitted before the checkpoint, "
                    f"and the seed is {self.seed} now; {START_ANEW}"
                )
                raise InputError(msg)
        return PoissonReader(self, context, positions)

    def resumption(self) -> str:
        """Return that it seeks."""
        return "seeks to the chunk of rows"

    def describe(self) -> str:
        """Return rate, limit and seed."""
        limit = "no limit" if self.limit is None else f"{self.limit:,} rows"
        return f"poisson {self.rate_per_s:,g} rows/s, {limit}, seed {self.seed}"


class PoissonReader(SourceReader):
    """Emits rows when their scheduled time has come."""

    def __init__(
        self,
        source: PoissonSource,
        context: InstanceContext,
        positions: Sequence[Position] | None = None,
    ) -> None:
        import numpy as np

        self._source = source
        self._clock = context.clock
        self._progress = Progress.opened(context, positions, {"seed": source.seed})
        stop = _NO_LIMIT if source.limit is None else -(-source.limit // CHUNK_ROWS)
        self._chunks = self._progress.units(0, stop)
        self._mean_gap_ns = 1e9 * context.parallelism / source.rate_per_s
        seed = [source.seed, _GAPS, context.instance]
        other = positions is not None and self._is_other(positions, context.parallelism)
        self._gaps = np.random.default_rng([*seed, self._progress.first] if other else seed)
        self._gaps_before: Mapping[str, Any] = {}
        self._scheduled_from = 0
        self._since_ns = 0
        self._start_ns = context.clock.monotonic_ns()
        self._last_ns = 0
        self._position = 0
        self._rows: Batch | None = None
        self._due_ns: npt.NDArray[np.int64] = np.empty(0, np.int64)
        if positions is None:
            self._advance()
        elif other:
            self._last_ns = max(one["reached_ns"] for one in positions)
            self._start_ns -= self._last_ns
            self._advance()
        else:
            self._go_on(positions[context.instance])

    def _is_other(self, positions: Sequence[Position], parallelism: int) -> bool:
        """Return whether the schedule is another one than that of the positions."""
        mean_gap_ns = self._mean_gap_ns
        same = (one.get("mean_gap_ns", mean_gap_ns) == mean_gap_ns for one in positions)
        return len(positions) != parallelism or not all(same)

    def _go_on(self, own: Position) -> None:
        """Continue with the instance's own schedule.

        The time from the last row to the next is as scheduled, however long the job stood still.
        """
        self._last_ns = own["since_ns"]
        self._start_ns -= own["reached_ns"]
        state = dict(self._gaps.bit_generator.state)
        state["state"] = {name: int(value, 16) for name, value in own["gaps"].items()}
        self._gaps.bit_generator.state = state
        self._advance(own["scheduled_from"])

    def position(self) -> Position:
        """Return the chunks left, and where the schedule is."""
        rows = self._position
        reached_ns = int(self._due_ns[rows - 1]) if rows > self._scheduled_from else self._since_ns
        return {
            **self._progress.position(rows),
            "mean_gap_ns": self._mean_gap_ns,
            "gaps": {name: hex(value) for name, value in self._gaps_before["state"].items()},
            "scheduled_from": self._scheduled_from,
            "since_ns": self._since_ns,
            "reached_ns": reached_ns,
        }

    def read(self, max_rows: int) -> Batch | None:
        """Return the rows that are due, the oldest first; None if there are none."""
        if self._rows is None:
            return None
        now_ns = self._clock.monotonic_ns()
        first = self._position
        due = int(self._due_ns.searchsorted(now_ns - self._start_ns, side="right"))
        last = min(due, first + max_rows)
        if last <= first:
            return None
        batch = self._rows.slice(first, last)
        paced = self._mean_gap_ns > 0
        origin_ns = self._start_ns + int(self._due_ns[first]) if paced else now_ns
        self._position = last
        if last == self._rows.num_rows:
            self._advance()
        return batch.with_origin(origin_ns)

    @property
    def finished(self) -> bool:
        """Whether the limit is reached."""
        return self._rows is None

    def next_ready_ns(self) -> int | None:
        """Return the next row's scheduled time."""
        if self._rows is None:
            return None
        return self._start_ns + int(self._due_ns[self._position])

    def _advance(self, scheduled_from: int | None = None) -> None:
        """Generate this instance's next chunk and its schedule.

        Of a chunk of which another schedule has emitted a part, only the rest is scheduled; None
        stands for what has not been emitted.
        """
        import numpy as np

        from ...transport.wire.batch import Batch

        source = self._source
        self._gaps_before, self._since_ns = self._gaps.bit_generator.state, self._last_ns
        read = 0 if self._rows is None else self._rows.num_rows
        self._position = self._scheduled_from = read
        self._rows = None
        for chunk, place in self._chunks:
            first, begin = chunk * CHUNK_ROWS, place["rows"] if place else 0
            count = CHUNK_ROWS if source.limit is None else min(CHUNK_ROWS, source.limit - first)
            if begin < count:
                break
        else:
            return  # the last chunk stays begun, of which a higher limit has more rows
        self._progress.enter(chunk, {"rows": 0})
        self._position = begin
        self._scheduled_from = begin if scheduled_from is None else scheduled_from
        random = np.random.default_rng([source.seed, _CONTENT, chunk])
        made = source.columns(np.arange(first, first + CHUNK_ROWS), random)
        if not isinstance(made, Mapping):
            kind = type(made).__name__
            msg = f"poisson: columns() returned a {kind}; return a dict from names to arrays"
            raise InputError(msg)
        gaps_ns = self._gaps.exponential(1.0, CHUNK_ROWS) * self._mean_gap_ns
        gaps_ns[: self._scheduled_from] = 0
        self._due_ns = (self._last_ns + np.cumsum(gaps_ns).astype(np.int64))[:count]
        self._last_ns = int(self._due_ns[-1])
        columns = {name: _cut(name, values, count) for name, values in made.items()}
        if source.time_column is not None:
            columns[source.time_column] = self._due_ns.view("datetime64[ns]")
        self._rows = Batch.from_pydict(columns, source.given_schema)


def _cut(name: str, values: Any, count: int) -> Any:
    if len(values) != CHUNK_ROWS:
        msg = (
            f"poisson: columns() returned {len(values)} values for {name!r}; "
            f"return one for each of the {CHUNK_ROWS} row numbers"
        )
        raise InputError(msg)
    return values[:count]


def poisson(
    rate_per_s: float,
    columns: Columns,
    *,
    limit: int | None = None,
    seed: int = 0,
    time_column: str | None = None,
    schema: SchemaLike | None = None,
) -> Source:
    """Generate rows that arrive as a Poisson process, in an open loop.

    Args:
        rate_per_s: mean rows per second of all instances; `math.inf` for as fast as they are read.
        columns: a function that generates a chunk: called with the rows' numbers (int64, shape
            (1024,)) and the chunk's own `numpy.random.Generator`, it returns a mapping of column
            name to an array or list of 1,024 values.
        limit: the number of rows; without it the source never ends.
        seed: the same seed gives the same rows and the same interarrival times.
        time_column: the name of a further column with each row's scheduled time, as timestamp[ns]
            since the start of the source, which counts as 1970-01-01.
        schema: the columns and their types; inferred from the first chunk if left out.

    Raises:
        UsageError: an argument has another type.
        InputError: a rate, limit or seed out of range.

    Example:
        >>> from whale_ray.operators.sources import poisson
        >>> source = poisson(
        ...     1000.0,
        ...     lambda rows, random: {"id": rows, "x": random.random(len(rows))},
        ...     limit=10_000,
        ... )
        >>> source.describe()
        'poisson 1,000 rows/s, 10,000 rows, seed 0'
    """
    check_type("poisson", "rate_per_s", rate_per_s, Real, "a number of rows per second")
    check_type("poisson", "limit", limit, (Integral, type(None)), "a whole number of rows")
    check_type("poisson", "seed", seed, Integral, "a whole number")
    if not rate_per_s > 0:
        msg = f"rate_per_s={rate_per_s} must be above 0; use math.inf for no pacing"
        raise InputError(msg)
    if limit is not None and limit < 0:
        msg = f"limit={limit} must not be negative; leave it out for no limit"
        raise InputError(msg)
    if seed < 0:
        msg = f"seed={seed} must not be negative"
        raise InputError(msg)
    if not callable(columns) or not accepts(columns, 2):
        msg = (
            "poisson() needs a function columns(rows, random) that returns a mapping of column "
            "name to values"
        )
        raise InputError(msg)
    rate = float(rate_per_s)
    bounded = limit is not None
    return PoissonSource(rate, columns, limit, seed, time_column, take_schema(schema), bounded)
