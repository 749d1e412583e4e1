"""The cost of serializing a row: as columns of a slice, and as a pickle per row."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from ....transport.clock import SystemClock
from ....transport.wire import codec
from ....transport.wire.batch import Batch
from ....transport.wire.column import Column
from ..report import median
from .feed import CONTENT_BYTES, SCHEMA, content_of

__all__ = ["encoding_ns", "frame_bytes", "pickling_ns", "rows_of"]

_CLOCK: Final = SystemClock()
_REPETITIONS: Final = 9
_PICKLED_ROWS: Final = 2000


def rows_of(count: int) -> Batch:
    """Return `count` rows as the source generates them."""
    words = content_of(0)
    content = np.tile(words, (-(-count // len(words)), 1))[:count].view(f"V{CONTENT_BYTES}")
    columns = [
        Column(SCHEMA.field("number").type, np.arange(count, dtype=np.uint32), None, None),
        Column(SCHEMA.field("moment_ns").type, np.arange(count, dtype=np.int64), None, None),
        Column(SCHEMA.field("content").type, content.reshape(-1), None, None),
    ]
    return Batch(SCHEMA, columns, count)


def frame_bytes(rows: int) -> int:
    """Return the bytes of a message of `rows` rows, its header included."""
    return codec.message_size(rows_of(rows))


def encoding_ns(rows: int) -> float:
    """Return the time to encode a slice of `rows` rows into a ring, per row."""
    batch = rows_of(rows)
    buffer = np.zeros(codec.message_size(batch), np.uint8)
    fields: codec.MessageFields = {"stream": 0, "source": 0, "attempt": 0, "sequence": 0}
    return _per_row_ns(partial(codec.encode_into, buffer, batch, **fields), rows)


def pickling_ns() -> float:
    """Return the time to pickle a row."""
    words = content_of(0)[:_PICKLED_ROWS]
    rows = [(number, number, bytes(content)) for number, content in enumerate(words)]
    return _per_row_ns(lambda: [pickle.dumps(row) for row in rows], len(rows))


def _per_row_ns(work: Callable[[], object], rows: int) -> float:
    work()
    times = []
    for _ in range(_REPETITIONS):
        begin_ns = _CLOCK.monotonic_ns()
        work()
        times.append((_CLOCK.monotonic_ns() - begin_ns) / rows)
    return median(times)
