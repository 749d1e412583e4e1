"""Each symbol's trading volume, second by second of event time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import functions
from ...operators.expressions.expression import col
from ...operators.keyed.keyed_process import KeyedProcess, compiled
from ...operators.windows.specifications import window
from ...state import declarations as state
from .schemas import VOLUMES

if TYPE_CHECKING:
    from ...api.topology import Stream
    from ...operators.process import Output
    from ...operators.rows import Row
    from ...transport.wire.types import Schema

__all__ = ["RunningTotal", "add_volume"]


class RunningTotal(KeyedProcess):
    """Adds to each second of a symbol its volume since the beginning."""

    total_qty = state.sum("int64")
    schema: Schema | None = VOLUMES

    @compiled
    def on_row(self, row: Row, out: Output) -> None:
        """Add the second's volume; the window's start is in microseconds."""
        self.total_qty.add(row.qty)
        out.emit_row(
            second=row.window_start // 1_000,
            symbol=row.symbol,
            fills=row.fills,
            qty=row.qty,
            value_milli=row.value_milli,
            last_price_milli=row.last_price_milli,
            total_qty=self.total_qty.get(),
        )


def add_volume(fills: Stream, parallelism: int) -> Stream:
    """Return rows of `VOLUMES`: one per symbol and second in which it was traded.

    Args:
        fills: rows of `FILLS`.
        parallelism: the number of instances.
    """
    seconds = fills.group_by(window("event_time", "1 second"), "symbol").agg(
        functions.count().alias("fills"),
        functions.sum("qty").alias("qty"),
        functions.sum(col("qty") * col("price_milli")).alias("value_milli"),
        functions.max_by("price_milli", "fill_no").alias("last_price_milli"),
        id="volume",
        parallelism=parallelism,
    )
    return seconds.key_by("symbol").process(RunningTotal, id="total", parallelism=parallelism)
