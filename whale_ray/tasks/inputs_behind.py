"""Rows of producers that were idle, or are new: those that the watermark has passed are late.

While a source is idle, the watermark of its readers advances without it. When rows come again, some
of them may lie behind that watermark. Only the reader can tell: how far its watermark has come
when they arrive depends on its other inputs. They are late rows, treated as the source says
(`on_late`). So are the rows of a source that begins in a restored job, behind the watermarks there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..configs.errors import BadRowError
from ..metrics.counters import InstanceMetrics
from ..operators.event_time import LATE, LatePolicy, time_as_text
from ..state.watermarks import WatermarkTracker
from ..transport.wire.batch import Batch


@dataclass(frozen=True)
class InputBehind:
    """A producer that may be behind: its place among a stage's inputs, and what its sources say."""

    edge: int
    producer: int
    operator: str
    on_late: LatePolicy
    may_be_idle: bool


class InputsBehind:
    """The late rows of the producers of one stage task that may be behind its watermark.

    `inputs` are these by (port, number on the port); `metrics` are those of the stage's head.
    """

    def __init__(
        self, inputs: Mapping[tuple[int, int], InputBehind], metrics: InstanceMetrics
    ) -> None:
        self._inputs = dict(inputs)
        self._metrics = metrics

    def take(
        self, port: int, source: int, batch: Batch, watermarks: WatermarkTracker[tuple[int, int]]
    ) -> Batch:
        """Return a producer's rows without those that are left out.

        Raises:
            BadRowError: a row is late, and its source says `fail`.
        """
        behind = self._inputs.get((port, source))
        if behind is None or batch.times is None or not batch.num_rows:
            return batch
        if not watermarks.is_behind((behind.edge, behind.producer)):
            return batch
        late = batch.times <= watermarks.current_ns
        count = int(np.count_nonzero(late))
        if not count:
            return batch
        self._metrics.rows_late += count
        if behind.on_late == "pass":
            return batch
        if behind.on_late == "fail":
            row = int(np.argmax(late))
            raise BadRowError(self._message(behind, batch, row, watermarks.current_ns))
        self._metrics.drop({LATE: count})
        return batch.filter(~late)

    def _message(self, behind: InputBehind, batch: Batch, row: int, watermark_ns: int) -> str:
        assert batch.times is not None
        time = time_as_text(int(batch.times[row]))
        if behind.may_be_idle:
            why, remedy = "which had been idle, ", "raise idle_after_ms of the source"
        else:
            why = ""
            remedy = (
                "a restored job goes on at the event time of its checkpoint: let a source that is"
                " new begin there"
            )
        return (
            f"operator {self._metrics.operator_id!r} got a row of {time} from"
            f" {behind.operator!r}, {why}after its watermark had come to"
            f" {time_as_text(watermark_ns)}: {batch.preview(row)}; {remedy}, or pass"
            " on_late='drop' to leave such rows out and count them"
        )
