"""The source of a measurement: rows of 100 bytes, at the rate in the control block.

Paced, rows are a Poisson process in an open loop: the time at which each is due does not depend on
how fast the job is. Unpaced, rows are emitted as fast as they are consumed. The rate may change at
any time; at 0 no rows are emitted.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from ....operators.process import InstanceContext
from ....operators.sources.base import Source, SourceReader
from ....transport.wire.batch import Batch
from ....transport.wire.column import Column
from ....transport.wire.types import Schema
from . import control_block as b
from .reading_kernels import CONTENT_WORDS

if TYPE_CHECKING:
    from ....transport.clock import Clock

CONTENT_BYTES: Final = 8 * CONTENT_WORDS
ROW_BYTES: Final = 4 + 8 + CONTENT_BYTES
SCHEMA: Final = Schema.of(
    number="uint32", moment_ns="int64", content=f"fixed_size_binary({CONTENT_BYTES})"
)

PICKLED_SCHEMA: Final = Schema.of(row="binary")

_PICKLED_ROWS = 256
"""Pickled rows per batch; smaller, since pickling them takes much longer."""

_POOL_ROWS = 1 << 16
_GAPS = 1 << 12
_IDLE_NS = 1_000_000
_PACE_NS = 100_000
"""Least time between two batches of paced rows; rows that are due by then are sent together."""


@dataclass(frozen=True)
class Feed(Source):
    """Rows at the rate in a control block; unbounded until its stop command.

    With `pickles` above 0 a row is pickled so many times, once per destination as Storm does, and
    the last of them is sent.
    """

    control_block: b.ControlBlockHandle
    pickles: int = 0
    seed: int = 0

    bounded = True
    replayable = False

    def schema(self) -> Schema:
        """Return the columns."""
        return PICKLED_SCHEMA if self.pickles else SCHEMA

    def open(self, context: InstanceContext) -> SourceReader:
        """Generate the rows' content, and wait for a rate."""
        return FeedReader(
            b.ControlBlock.attach(self.control_block), self.pickles, self.seed, context.clock
        )

    def describe(self) -> str:
        """Return the size of the rows."""
        return f"rows of {ROW_BYTES} bytes, at the rate in the control block"


def content_of(seed: int) -> npt.NDArray[np.uint64]:
    """Return the content of the rows, which repeats: row i has that of i modulo the length.

    Shape (rows, words).
    """
    random = np.random.default_rng(seed)
    return random.integers(0, 1 << 63, (_POOL_ROWS, CONTENT_WORDS), np.uint64)


class FeedReader(SourceReader):
    """Generates rows: the content in advance, numbers and due times at each read."""

    def __init__(
        self, control_block: b.ControlBlock, pickles: int, seed: int, clock: Clock
    ) -> None:
        self._control_block = control_block
        self._pickles = pickles
        self._clock = clock
        self._random = np.random.default_rng([seed, 1])
        words = content_of(seed)
        self._content = words.view(f"V{CONTENT_BYTES}").reshape(-1)
        self._sums = np.concatenate(
            [np.zeros(1, np.uint64), np.cumsum(words.sum(axis=1, dtype=np.uint64))]
        )
        self._number = 0
        self._sum = 0
        self._rate = 0
        self._due_ns: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._position = 0
        control_block.source[b.PID] = os.getpid()

    def read(self, max_rows: int) -> Batch | None:
        """Return the rows that are due, or, unpaced, `max_rows` rows."""
        rate = int(self._control_block.orders[b.RATE])
        now_ns = self._clock.monotonic_ns()
        if rate != self._rate:
            self._begin(rate, now_ns)
        if rate == 0:
            return None
        if self._pickles:
            max_rows = min(max_rows, _PICKLED_ROWS)
        max_rows = min(max_rows, _POOL_ROWS - self._number % _POOL_ROWS)
        if rate == b.UNPACED:
            moments = np.full(max_rows, now_ns, np.int64)
        else:
            moments = self._take_due(now_ns, max_rows)
        return self._batch(moments, now_ns) if len(moments) else None

    def _begin(self, rate: int, now_ns: int) -> None:
        self._rate = rate
        self._due_ns = np.array([now_ns], np.int64)
        self._position = 1

    def _take_due(self, now_ns: int, max_rows: int) -> npt.NDArray[np.int64]:
        if self._position == len(self._due_ns):
            gaps = self._random.exponential(1e9 / self._rate, _GAPS)
            self._due_ns = self._due_ns[-1] + np.cumsum(gaps).astype(np.int64)
            self._position = 0
        first = self._position
        due = int(self._due_ns.searchsorted(now_ns, side="right"))
        self._position = min(due, first + max_rows)
        return self._due_ns[first : self._position]

    def _batch(self, moments: npt.NDArray[np.int64], now_ns: int) -> Batch:
        """Return rows that are due at `moments`, no more than are left of the content."""
        begin, rows = self._number, len(moments)
        first = begin % _POOL_ROWS
        numbers = np.arange(begin, begin + rows).astype(np.uint32)
        self._number += rows
        self._sum += int(self._sums[first + rows]) - int(self._sums[first])
        self._sum += int(numbers.sum(dtype=np.uint64)) + int(moments.sum())
        content = self._content[first : first + rows]
        self._account(begin, moments, now_ns)
        if self._pickles:
            return self._pickled(numbers, moments, content)
        columns = [
            Column(SCHEMA.field("number").type, numbers, None, None),
            Column(SCHEMA.field("moment_ns").type, moments, None, None),
            Column(SCHEMA.field("content").type, content, None, None),
        ]
        return Batch(SCHEMA, columns, rows, None, int(moments[0]))

    def _pickled(
        self,
        numbers: npt.NDArray[np.uint32],
        moments: npt.NDArray[np.int64],
        content: npt.NDArray[np.void],
    ) -> Batch:
        """Return the same rows as pickled tuples, each pickled anew for every destination."""
        rows = []
        for row in zip(numbers.tolist(), moments.tolist(), map(bytes, content), strict=True):
            for _ in range(self._pickles):
                pickled = pickle.dumps(row)
            rows.append(pickled)
        batch = Batch.from_pydict({"row": rows}, PICKLED_SCHEMA)
        return batch.with_origin(int(moments[0]))

    def _account(self, begin: int, moments: npt.NDArray[np.int64], now_ns: int) -> None:
        control_block = self._control_block
        stride = int(control_block.orders[b.STRIDE])
        if stride:
            at = -begin % stride
            sampled = moments[at::stride]
            first = (begin + at) // stride
            places = np.arange(first, first + len(sampled)) % control_block.shape.samples
            control_block.scheduled[places] = sampled
        if control_block.orders[b.BIN_NS]:
            place = (now_ns - int(control_block.orders[b.BIN_BEGIN_NS])) // int(
                control_block.orders[b.BIN_NS]
            )
            if 0 <= place < control_block.shape.bins:
                control_block.bins[0, place] += len(moments)
        control_block.source[b.BATCHES] += 1
        control_block.source[b.WORD_SUM] = np.uint64(self._sum % 2**64).astype(np.int64)
        control_block.source[b.ROWS] = self._number

    @property
    def finished(self) -> bool:
        """Whether the control block has the stop command."""
        return bool(self._control_block.orders[b.STOP])

    def next_ready_ns(self) -> int:
        """Return when the next row is due, or when to read the rate again."""
        now_ns = self._clock.monotonic_ns()
        if self._rate <= 0:
            return now_ns + _IDLE_NS
        if self._position == len(self._due_ns):
            return now_ns
        return max(int(self._due_ns[self._position]), now_ns + _PACE_NS)
