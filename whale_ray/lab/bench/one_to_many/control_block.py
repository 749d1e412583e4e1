"""The control block of a measurement: commands to source and workers, and their counters.

One segment of shared memory that all processes of the measured job map, on all logical hosts. The
suite writes the orders; the source and each worker write a record of their own. No process waits
for another here, and rows do not pass through it. Words are int64.

::

    orders │ source │ worker 0 │ worker 1 │ … │ sums │ scheduled │ arrived │ done │ bins
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ....transport.segment import SEGMENT_HEADER_BYTES, Segment, SegmentHandle

Words = npt.NDArray[np.int64]

RECORD_WORDS: Final = 16
"""Two cache lines, so that no two processes write to the same one."""

UNPACED: Final = -1
"""As a rate: rows are emitted as fast as they are consumed."""

# Orders.
RATE, STRIDE, STOP, BIN_BEGIN_NS, BIN_NS = range(5)
# Of the source and of each worker.
ROWS, BATCHES, PID, OWN_NS, WORD_SUM = range(5)


@dataclass(frozen=True)
class ControlBlockShape:
    """Dimensions of a control block.

    Attributes:
        workers: workers that may have instances, numbered from 0.
        instances: instances of the operator.
        samples: rows whose latency is recorded at a time.
        bins: time intervals in which rows are counted.
    """

    workers: int
    instances: int
    samples: int = 1 << 14
    bins: int = 1 << 14

    @property
    def sizes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each part, in their order."""
        return {
            "orders": (RECORD_WORDS,),
            "source": (RECORD_WORDS,),
            "workers": (self.workers, RECORD_WORDS),
            "sums": (self.instances, 8),
            "scheduled": (self.samples,),
            "arrived": (self.workers, self.samples),
            "done": (self.workers, self.samples),
            "bins": (1 + self.workers, self.bins),
        }


@dataclass(frozen=True)
class ControlBlockHandle:
    """What the processes of the job need to map a control block."""

    segment: SegmentHandle
    shape: ControlBlockShape


class ControlBlock:
    """The parts of a control block, as arrays over shared memory.

    Attributes:
        orders: commands of the suite.
        source: record of the source.
        workers: a record per worker.
        sums: the checksum of each instance, in the first word of a cache line.
        scheduled: when a sampled row was due, monotonic ns.
        arrived: when it reached each worker.
        done: when all of the worker's instances had processed it.
        bins: rows per time interval, of the source first, then of each worker.
    """

    def __init__(self, segment: Segment, shape: ControlBlockShape) -> None:
        self._segment = segment
        self.shape = shape
        parts: dict[str, Words] = {}
        start = SEGMENT_HEADER_BYTES
        for name, size in shape.sizes.items():
            stop = start + 8 * int(np.prod(size))
            parts[name] = segment.words(start, stop).reshape(size)
            start = stop
        self.orders: Words = parts["orders"]
        self.source: Words = parts["source"]
        self.workers: Words = parts["workers"]
        self.sums: Words = parts["sums"]
        self.scheduled: Words = parts["scheduled"]
        self.arrived: Words = parts["arrived"]
        self.done: Words = parts["done"]
        self.bins: Words = parts["bins"]

    @classmethod
    def create(cls, shape: ControlBlockShape) -> ControlBlock:
        """Create a control block; raises ResourceError if there is not enough memory."""
        words = sum(int(np.prod(size)) for size in shape.sizes.values())
        segment = Segment.create(SEGMENT_HEADER_BYTES + 8 * words, "control_block", "bench")
        return cls(segment, shape)

    @classmethod
    def attach(cls, handle: ControlBlockHandle) -> ControlBlock:
        """Map a control block that another process created."""
        return cls(Segment.attach(handle.segment), handle.shape)

    @property
    def handle(self) -> ControlBlockHandle:
        """The handle with which other processes attach."""
        return ControlBlockHandle(self._segment.handle, self.shape)

    def close(self) -> None:
        """Release the memory."""
        self._segment.close()
