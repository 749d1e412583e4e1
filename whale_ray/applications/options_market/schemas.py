"""The columns of the application's streams, by name and type, and the records in them.

Between stages a row is a packed record in one column, since batches are small here and every column
costs time. Timestamps are in ns of the machine's monotonic clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...transport.wire.types import Schema

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from ...transport.wire.column import Column

__all__ = [
    "DECIDED",
    "DECISION",
    "DECISIONS",
    "INGEST",
    "KEPT",
    "MOMENTS",
    "TRADE",
    "TRADES",
    "decisions_of",
    "packed",
]

#: Timestamps: when a message was due on its line, entered and left feed handler and decision
#: engine, and reached the metrics collector.
MOMENTS = (
    "due_ns",
    "handler_in_ns",
    "handler_out_ns",
    "engine_in_ns",
    "engine_out_ns",
    "collector_in_ns",
)

#: From a feed handler to the decision engines.
TRADE = np.dtype(
    [
        ("line", np.int32),
        ("quantity", np.int32),
        ("sequence", np.int64),
        ("price_milli", np.int64),
        ("underlying_milli", np.int64),
        *((name, np.int64) for name in MOMENTS[:3]),
    ]
)
#: From a decision engine to the metrics collector and the sink: the trade that changed its
#: contract's signal, and the new signal.
DECISION = np.dtype(
    [
        ("contract", np.int32),
        ("line", np.int32),
        ("sequence", np.int64),
        ("price_milli", np.int64),
        ("average_milli", np.int64),
        ("signal", np.int64),
        *((name, np.int64) for name in MOMENTS),
    ]
)

TRADES = Schema.of(contract="int32", trade=f"fixed_size_binary({TRADE.itemsize})")
DECIDED = Schema.of(decision=f"fixed_size_binary({DECISION.itemsize})")
#: The same as `DECIDED`, column by column.
DECISIONS = Schema.of(**{name: np.dtype(DECISION[name]).name for name in DECISION.names or ()})
#: From the ingest metrics, for every line that has ended: numbers of messages offered, taken and
#: missed, of gaps, and of damaged messages.
INGEST = Schema.of(
    line="int32", offered="int64", taken="int64", missed="int64", gaps="int64", damaged="int64"
)
#: What a decision engine keeps of a contract that was traded, when its state is moved.
KEPT = Schema.of(contract="int32", quantity="int64", value="int64", signal="int64")


def packed(schema: Schema, name: str, records: npt.NDArray[np.void]) -> Column:
    """Return records as a column of `TRADES` or `DECIDED`."""
    from ...transport.wire.column import Column

    return Column(schema.field(name).type, records.view(f"V{records.dtype.itemsize}"))


def decisions_of(batch: Batch) -> Batch:
    """Convert rows of `DECIDED` to rows of `DECISIONS`."""
    from ...transport.wire.batch import Batch
    from ...transport.wire.column import Column

    records = batch.column("decision").data.view(DECISION)
    columns = [Column(field.type, records[field.name].copy()) for field in DECISIONS]
    return Batch(DECISIONS, columns, batch.num_rows, batch.times, batch.origin_ns)
