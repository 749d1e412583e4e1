"""`MetricsCollector`: the last stage, which timestamps the decisions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from ...operators.process import InstanceContext, Output, Process
from ...transport.clock import Clock, SystemClock
from ...transport.wire.batch import Batch
from ...transport.wire.types import Schema
from .schemas import DECIDED, DECISION, packed

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Collector", "MetricsCollector"]


class Collector:
    """Adds the time of arrival to decisions, as a function on columns."""

    def __init__(self, clock: Clock | None = None) -> None:
        """Take the clock."""
        self._clock = clock or SystemClock()

    def __call__(self, batch: Batch) -> Batch:
        """Return the rows of `DECIDED` with `collector_in_ns` set."""
        in_ns = self._clock.monotonic_ns()
        decided = batch.column("decision").data.view(DECISION).copy()
        decided["collector_in_ns"] = in_ns
        column = packed(DECIDED, "decision", decided)
        return Batch(DECIDED, [column], batch.num_rows, None, batch.origin_ns)


class MetricsCollector(Process):
    """A `Collector` as an operator of its own stage."""

    per_worker: ClassVar[bool] = True
    schema: Schema | None = DECIDED

    def open(self, context: InstanceContext) -> None:
        """Take the clock."""
        self._collector = Collector(context.clock)

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Timestamp the decisions."""
        out.emit(self._collector(batch))

    def dump(self, nodes: npt.NDArray[np.int64]) -> Iterable[Batch]:
        """Return nothing: it keeps nothing."""
        return ()

    def load(self, batch: Batch) -> None:
        """Take nothing."""
