"""An output that keeps what an operator sends, and the context that it is opened in."""

from __future__ import annotations

from collections.abc import Sequence

from whale_ray.operators.process import InstanceContext, Output
from whale_ray.transport.clock import VirtualClock
from whale_ray.transport.wire.batch import Batch


class Emitted(Output):
    """Keeps batches."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []

    def emit(self, batch, times=None):
        assert isinstance(batch, Batch)
        self.batches.append(batch if times is None else batch.with_times(times))

    def emit_rows(self, rows):
        raise AssertionError("rows one by one are too slow here")

    def emit_to(self, output, rows, times=None):
        raise AssertionError("the applications' operators have one output")

    def rows(self) -> list[dict]:
        return [row for batch in self.batches for row in batch.rows()]


def context(instances: Sequence[int], parallelism: int) -> InstanceContext:
    return InstanceContext(
        "test", "match", min(instances), tuple(instances), parallelism, 0, VirtualClock()
    )
