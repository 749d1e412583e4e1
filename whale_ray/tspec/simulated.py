"""Operators that are busy for a given time and emit rows of a given size (Aeolus, section III)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..operators.process import Process

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..operators.process import InstanceContext, Output
    from ..transport.wire.batch import Batch

__all__ = ["BusyBatches", "SimulatedProcess", "SimulatedRows", "be_busy"]

KEY, PAYLOAD = "key", "payload"
"""The columns of simulated rows: an int64, and a text that fills the row up."""

_BYTES_BESIDE_PAYLOAD = 16  # the key, and where the text ends
_KEYS = 1 << 20
_BYTES_TOGETHER = 1 << 20  # emitted at once; a little more than this


def be_busy(duration_ns: float) -> None:
    """Keep this thread busy for so much processor time, whatever else runs on the machine."""
    until_ns = time.thread_time_ns() + duration_ns
    while time.thread_time_ns() < until_ns:
        pass


def _payload(rows: int, row_bytes: float) -> list[str]:
    return ["x" * max(0, round(row_bytes) - _BYTES_BESIDE_PAYLOAD)] * rows


@dataclass(frozen=True)
class SimulatedRows:
    """Makes the columns of a simulated source, see `whale_ray.sources.poisson`."""

    row_bytes: float
    ppt_ns: float

    def __call__(self, numbers: npt.NDArray[np.int64], chance: np.random.Generator) -> Any:
        """Return keys that are equally frequent, and payloads."""
        be_busy(self.ppt_ns * len(numbers))
        keys = chance.integers(0, _KEYS, len(numbers))
        return {KEY: keys, PAYLOAD: _payload(len(numbers), self.row_bytes)}


class SimulatedProcess(Process):
    """Is busy for each row, and emits rows with the keys of those that came.

    Args:
        ppt_ns: the processing time of a row.
        each_ns: what a row costs each instance besides, if all get it.
        fan_out: rows out for each row in.
        row_bytes: of a row that it emits.
        for_all: whether all instances get each row; they then share out its processing, and one
            of them emits for it.
    """

    input_order = "arrival"

    def __init__(
        self, ppt_ns: float, each_ns: float, fan_out: float, row_bytes: float, *, for_all: bool
    ) -> None:
        self._ppt_ns, self._each_ns = ppt_ns, each_ns
        self._fan_out, self._row_bytes = fan_out, row_bytes
        self._rows_together = 1 + int(_BYTES_TOGETHER / (row_bytes + _BYTES_BESIDE_PAYLOAD))
        self._for_all = for_all
        self._instances = 1
        self._instance = 0
        self._taken = 0
        self._due = 0.0

    def open(self, context: InstanceContext) -> None:
        """Learn how many instances there are."""
        self._instances, self._instance = context.parallelism, context.instance

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Be busy, then emit."""
        import numpy as np

        rows = batch.num_rows
        share = rows / self._instances if self._for_all else rows
        be_busy(share * self._ppt_ns + (rows * self._each_ns if self._for_all else 0.0))
        keys = np.asarray(batch[KEY])
        if self._for_all:
            first = (self._instance - self._taken) % self._instances
            self._taken += rows
            keys = keys[first :: self._instances]
        self._due += len(keys) * self._fan_out
        count = int(self._due)
        self._due -= count
        if not len(keys):
            return
        for first in range(0, count, self._rows_together):
            numbers = np.arange(first, min(count, first + self._rows_together))
            emitted = keys[numbers * len(keys) // count]
            out.emit({KEY: emitted, PAYLOAD: _payload(len(emitted), self._row_bytes)})


@dataclass(frozen=True)
class BusyBatches:
    """A simulated sink: is busy for each row."""

    ppt_ns: float

    def __call__(self, batch: Batch) -> None:
        """Be busy for the rows of a batch."""
        be_busy(self.ppt_ns * batch.num_rows)
