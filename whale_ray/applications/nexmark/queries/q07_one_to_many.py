"""Query 7 as the one-to-many join that it was written to be.

The highest price of each window is broadcast to all instances, which keep the bids of the window
until it arrives::

    bids ─┬─ by auction ──────────────────────┐
          │                                   ├─ highest-bids
          └─ window, max(price) ─── to all ───┘
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from .... import functions
from ....operators.expressions.expression import col
from ....operators.process import CoProcess, InstanceContext, Output
from ....operators.windows.specifications import window
from ....transport.wire.batch import Batch
from ...shared.columns import check_columns

if TYPE_CHECKING:
    import numpy.typing as npt

    from ....api.topology import Stream
    from ..inputs import Inputs

_WINDOW_S = 10
_LEAST_PRICE = -(1 << 63)


class HighestBids(CoProcess):
    """Left: bids. Right: the highest price of each window, at the end of the window.

    In event-time order a window's bids come before its highest price, and that before the bids of
    the next window. Only bids that reach the highest price so far are kept.
    """

    per_worker: ClassVar[bool] = True

    def __init__(self) -> None:
        """Start without bids."""
        self._kept: list[Batch] = []
        self._highest = _LEAST_PRICE

    def on_left(self, batch: Batch, out: Output) -> None:
        """Keep the bids that may be the highest."""
        check_columns("bids", batch, {"price": ("int64",)})
        prices = batch["price"]
        highest = int(prices.max())
        if highest >= self._highest:
            self._highest = highest
            self._kept.append(batch.filter(prices == highest).copy())

    def on_right(self, batch: Batch, out: Output) -> None:
        """Emit the bids with the highest price of the window that ends."""
        for price in batch["price"].tolist():
            for bids in self._kept:
                out.emit(bids.filter(bids["price"] == price))
            self._kept, self._highest = [], _LEAST_PRICE

    def open(self, context: InstanceContext) -> None:
        """Take what tells virtual nodes."""
        self._context = context

    def dump(self, nodes: npt.NDArray[np.int64]) -> Iterable[Batch]:
        """Return the bids that are kept."""
        for bids in self._kept:
            yield bids.filter(np.isin(self._context.nodes_of(bids), nodes))

    def load(self, batch: Batch) -> None:
        """Keep bids; those below the highest price never match it."""
        if batch.num_rows:
            self._kept.append(batch)
            self._highest = max(self._highest, int(batch["price"].max()))


def build(inputs: Inputs) -> Stream:
    """Return the bids with the highest price of each 10 s."""
    bids = (
        inputs.bids("auction", "price", "bidder", "extra")
        .filter(col("price").is_not_null())
        .select("auction", "price", "bidder", "date_time", "extra")
    )
    highest = bids.group_by(window("date_time", f"{_WINDOW_S} seconds")).agg(
        functions.max("price").alias("price"), id="highest"
    )
    return (
        bids.key_by("auction")
        .connect(highest.broadcast())
        .process(HighestBids, id="highest-bids", parallelism=inputs.parallelism)
    )
