"""`FeedHandler` parses the messages of a line, `IngestMetrics` counts them.

Both are functions on columns, so they are fused into the stage of the line's source. One object
serves all lines of a worker and counts on from message to message. So it must not read a line from
the beginning a second time, which is why the job does not restart after a worker has died.
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
    """Parses messages into rows of `TRADES`; messages that are not trades are left out."""

    def __init__(self, lines: int, contracts: int, clock: Clock | None = None) -> None:
        """Take the numbers of lines and contracts, and the clock for timestamps."""
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
        # The timestamp comes last; nothing else uses the batch yet, so it may still change.
        trades["handler_out_ns"] = self._clock.monotonic_ns()
        return made


class IngestMetrics:
    """Counts messages received and, by sequence numbers, missed; returns a row at a line's end."""

    def __init__(self, lines: int, contracts: int) -> None:
        """Take the numbers of lines and contracts."""
        self._contracts = contracts
        self._counters = np.zeros((lines, m.COUNTERS), np.int64)

    def __call__(self, batch: Batch) -> Batch | None:
        """Return rows of `INGEST` for the lines that end in this batch; None without any."""
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
    """Return the concatenated messages, read-only and aligned to 8 bytes."""
    data = np.ascontiguousarray(batch.column("message").data).view(np.uint8)
    if data.ctypes.data % 8:
        data = data.copy()
    data.flags.writeable = False
    return data
