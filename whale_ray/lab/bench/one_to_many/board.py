"""The board of a measurement: what the suite tells source and workers, and what they count.

One segment that all processes of the measured job map, whichever host they stand for. The suite
writes the orders, the source and each worker a record of their own; nobody waits for anybody, and
nothing here is on the way of a row. Words are int64.

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
"""Two cache lines: no two processes write to one."""

UNPACED: Final = -1
"""A rate: rows as fast as they are taken."""

# Orders.
RATE, STRIDE, STOP, BIN_BEGIN_NS, BIN_NS = range(5)
# Of the source and of each worker.
ROWS, BATCHES, PID, OWN_NS, WORD_SUM = range(5)


@dataclass(frozen=True)
class BoardShape:
    """How much room a board has.

    Attributes:
        workers: workers that may hold instances; their numbers begin with 0.
        instances: instances of the operator.
        samples: rows whose way is noted at a time.
        bins: spans of time in which rows are counted.
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
class BoardHandle:
    """What the processes of the job attach with."""

    segment: SegmentHandle
    shape: BoardShape


class Board:
    """The parts of a board, as arrays over shared memory.

    Attributes:
        orders: the suite's.
        source: the source's record.
        workers: a record per worker.
        sums: the checksum of each instance, in the first word of a line.
        scheduled: when a sampled row was to be sent, monotonic ns.
        arrived: when it reached a worker, by worker.
        done: when the worker's instances were through with it.
        bins: rows per span of time, the source's first, then by worker.
    """

    def __init__(self, segment: Segment, shape: BoardShape) -> None:
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
    def create(cls, shape: BoardShape) -> Board:
        """Make a board. Raises ResourceError if there is no room."""
        words = sum(int(np.prod(size)) for size in shape.sizes.values())
        segment = Segment.create(SEGMENT_HEADER_BYTES + 8 * words, "board", "bench")
        return cls(segment, shape)

    @classmethod
    def attach(cls, handle: BoardHandle) -> Board:
        """Map a board that another process made."""
        return cls(Segment.attach(handle.segment), handle.shape)

    @property
    def handle(self) -> BoardHandle:
        """What others attach with."""
        return BoardHandle(self._segment.handle, self.shape)

    def close(self) -> None:
        """Give the memory back."""
        self._segment.close()
