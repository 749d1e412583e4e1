"""The same keyed process in its three forms: what each bidder has bid so far, at every bid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ....operators.keyed.keyed_process import KeyedProcess, compiled
from ....state import declarations as state
from ....transport.wire.types import Schema

if TYPE_CHECKING:
    from ....operators.process import Output
    from ....transport.wire.batch import Batch

__all__ = ["SpentCompiled", "SpentOnColumns", "SpentOnRows"]


class SpentOnRows(KeyedProcess):
    """Emits for every bid how many its bidder has made so far, and for how much."""

    bids = state.count()
    spent = state.sum("int64")

    def on_row(self, row: Any, out: Output) -> None:
        """Add one bid."""
        self.bids.add(1)
        self.spent.add(row.price)
        out.emit_row(
            bidder=row.bidder,
            bids=self.bids.get(),
            spent=self.spent.get(),
        )


class SpentCompiled(KeyedProcess):
    """The same, as one compiled loop."""

    bids = state.count()
    spent = state.sum("int64")
    schema = Schema.of(bidder="int64", bids="int64", spent="int64")

    @compiled
    def on_row(self, row: Any, out: Output) -> None:
        """Add one bid."""
        self.bids.add(1)
        self.spent.add(row.price)
        out.emit_row(bidder=row.bidder, bids=self.bids.get(), spent=self.spent.get())


class SpentOnColumns(KeyedProcess):
    """Emits for every bid what its bidder has bid up to the end of the batch."""

    bids = state.count()
    spent = state.sum("int64")

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Add a batch of bids."""
        slots = self.slots(batch)
        bids: Any = self.bids
        spent: Any = self.spent
        bidders, place = np.unique(slots, return_inverse=True)
        sums = np.zeros(len(bidders), np.int64)
        np.add.at(sums, place, batch["price"])
        bids[bidders] += np.bincount(place)
        spent[bidders] += sums
        out.emit({"bidder": batch["bidder"], "bids": bids[slots], "spent": spent[slots]})
