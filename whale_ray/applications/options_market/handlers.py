"""What is done with a line's messages: `FeedHandler` parses them, `IngestMetrics` counts them.

Both are functions on columns, so that they run in the stage of the line's source, one by one in
that order. One object serves all lines of a worker; it must not meet the same line twice, which is
why the job does not begin anew when a worker dies.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...transport.clock import Clock, SystemClock
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from . import messages as m
from .schemas import INGEST, TRADE, TRADES, packed

__all__ = ["FeedHandler", "IngestMetrics"]


class FeedHandler:
    """Turns messages into rows of `TRADES`; what is no trade is left out."""

    def __init__(self, lines: int, contracts: int, clock: Clock | None = None) -> None:
        """Take the number of lines and contracts, and the clock that dates messages."""
        self._lines = lines
        self._contracts = contracts
        self._clock = clock or SystemClock()

    def __call__(self, batch: Batch) -> Batch | None:
        """Return the trades."""
        in_ns = self._clock.monotonic_ns()
        numbers = np.empty(batch.num_rows, np.int32)
        trades = np.empty(batch.num_rows, TRADE)
        rows = m.parse_messages(
            _bytes_of(batch), self._lines, self._contracts, in_ns, numbers, trades
        )
        if rows == 0:
            return None
        columns = [
            Column(TRADES.field("contract").type, numbers[:rows]),
            packed(TRADES, "trade", trades[:rows]),
        ]
        made = Batch(TRADES, columns, rows, batch.times, batch.origin_ns)
        # Last of all: what has been made is nobody else's yet.
        trades["handler_out_ns"] = self._clock.monotonic_ns()
        return made


class IngestMetrics:
    """Counts what came and, by sequence numbers, what did not; returns a row at a line's end."""

    def __init__(self, lines: int, contracts: int) -> None:
        """Take the number of lines and contracts."""
        self._contracts = contracts
        self._counters = np.zeros((lines, m.COUNTERS), np.int64)

    def __call__(self, batch: Batch) -> Batch | None:
        """Return rows of `INGEST`, for the lines that end with these messages."""
        if not m.count_messages(_bytes_of(batch), self._contracts, self._counters):
            return None
        ended = np.flatnonzero(self._counters[:, m.ENDED])
        of = self._counters[ended]
        self._counters[ended, m.ENDED] = 0
        data = {
            "line": ended.astype(np.int32),
            "offered": of[:, m.LAST] - 1,
            "taken": of[:, m.TAKEN],
            "missed": of[:, m.MISSED],
            "gaps": of[:, m.GAPS],
            "damaged": of[:, m.DAMAGED],
        }
        return Batch.from_pydict(data, INGEST)


def _bytes_of(batch: Batch) -> npt.NDArray[np.uint8]:
    """Return messages one after another, read-only and aligned."""
    data = np.ascontiguousarray(batch.column("message").data).view(np.uint8)
    if data.ctypes.data % 8:
        data = data.copy()
    data.flags.writeable = False
    return data
