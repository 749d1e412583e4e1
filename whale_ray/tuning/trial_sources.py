"""Sources and sinks for trials: jobs that run for a while and are then cancelled.

Nothing of a trial may be published, so its inputs never end: a job that is cancelled discards what
it has written. Sinks whose rows take effect at once are replaced.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..api.topology.functions import ColumnFunction
from ..configs.units import NS_PER_S
from ..operators.sinks.collect import CollectSink
from ..operators.sinks.each import EachBatch
from ..operators.sinks.files import FileSink
from ..operators.sources.base import NO_GAUGES, Source, SourceReader
from ..operators.sources.poisson_rate import PoissonSource
from ..tspec.simulated import BusyBatches

if TYPE_CHECKING:
    from ..operators.process import InstanceContext
    from ..operators.sinks.base import Sink
    from ..transport.wire.batch import Batch
    from ..transport.wire.types import Schema

__all__ = ["EMPTY", "TrialSource", "is_measured", "trial_sink", "trial_source"]

EMPTY = "inputs without rows"
"""The gauge of a trial's source: each instance whose input has ended without a row."""

_REST_NS = 50_000_000
_UNLIMITED_PER_S = 1e8


@dataclass(frozen=True)
class TrialSource(Source):
    """Reads another source, as fast as the job takes it or at a rate, and does not end.

    Args:
        inner: the source.
        rate_per_s: of all instances together; None: without limit.
        has_splits: whether the other source has.
    """

    inner: Source
    rate_per_s: float | None = None
    has_splits: bool = False

    def schema(self) -> Schema | None:
        """See `Source.schema`."""
        return self.inner.schema()

    def open(self, context: InstanceContext) -> SourceReader:
        """Open the other source's share."""
        rate = None if self.rate_per_s is None else self.rate_per_s / context.parallelism
        return _TrialReader(self.inner.open(context), context, rate)

    def describe(self) -> str:
        """See `Source.describe`."""
        return self.inner.describe()


class _TrialReader(SourceReader):
    def __init__(
        self, inner: SourceReader, context: InstanceContext, rate_per_s: float | None
    ) -> None:
        self._inner, self._clock = inner, context.clock
        self._instance = str(context.instance)
        self._has_rows = self._is_empty = False
        self._gap_ns = None if rate_per_s is None else NS_PER_S / rate_per_s
        self._next_ns = float(self._clock.monotonic_ns())
        self._rests_until_ns: int | None = None

    def read(self, max_rows: int) -> Batch | None:
        """Return rows that are due; none once the input has ended."""
        self._rests_until_ns = None
        now_ns = self._clock.monotonic_ns()
        if self._gap_ns is None:
            return self._rows(max_rows, now_ns)
        due = int((now_ns - self._next_ns) / self._gap_ns)
        if due < 1:
            self._rests_until_ns = int(self._next_ns + self._gap_ns) + 1
            return None
        batch = self._rows(min(max_rows, due), now_ns)
        if batch is None:
            return None
        first_ns = int(self._next_ns + self._gap_ns)
        self._next_ns += batch.num_rows * self._gap_ns
        return batch.with_origin(min(first_ns, now_ns))

    def _rows(self, max_rows: int, now_ns: int) -> Batch | None:
        batch = None if self._inner.finished else self._inner.read(max_rows)
        self._has_rows |= batch is not None
        if batch is None and self._inner.finished:
            self._rests_until_ns = now_ns + _REST_NS
            self._is_empty = not self._has_rows
        return batch

    @property
    def finished(self) -> bool:
        """False: a trial is cancelled."""
        return False

    def next_ready_ns(self) -> int | None:
        """See `SourceReader.next_ready_ns`."""
        return self._rests_until_ns or self._inner.next_ready_ns()

    def gauges(self) -> Mapping[str, Mapping[str, int]]:
        """Tell whether the input has ended without a row, which no other counter shows."""
        return {EMPTY: {self._instance: 1}} if self._is_empty else NO_GAUGES

    def splits(self) -> Mapping[str, bool] | None:
        """See `SourceReader.splits`."""
        return self._inner.splits()

    @property
    def split(self) -> str | None:
        """See `SourceReader.split`."""
        return self._inner.split

    def close(self) -> None:
        """Close the other reader."""
        self._inner.close()


def trial_source(source: Source, rate_per_s: float | None) -> Source:
    """Return a source for a trial; a generator of a rate is not paced by that rate any more."""
    if isinstance(source, PoissonSource):
        return replace(source, rate_per_s=rate_per_s or _UNLIMITED_PER_S, limit=None, bounded=True)
    return TrialSource(source, rate_per_s, source.has_splits)


def trial_sink(sink: Sink) -> Sink:
    """Return a sink for a trial, whose rows go nowhere.

    What files and collected rows cost is measured, since they are published only at the end of a
    job, and a trial is cancelled before. A sink whose rows take effect at once gets none.
    """
    if isinstance(sink, FileSink | CollectSink) or _is_simulated(sink):
        return sink
    return EachBatch(_nothing)


def is_measured(sink: Sink) -> bool:
    """Return whether trials measure what a sink costs."""
    return trial_sink(sink) is sink


def _is_simulated(sink: Sink) -> bool:
    match sink:
        case EachBatch(function=ColumnFunction(function=BusyBatches())):
            return True
    return False


def _nothing(_batch: object) -> None:
    pass
