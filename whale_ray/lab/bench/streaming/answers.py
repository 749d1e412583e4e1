"""What a workload found, in two numbers: enough to see that two systems did the same work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ....operators.process import Process
from ....transport.wire.types import Schema

if TYPE_CHECKING:
    from ....operators.process import Output
    from ....transport.wire.batch import Batch

__all__ = ["Answer", "Tally", "answer_of"]


@dataclass(frozen=True, slots=True)
class Answer:
    """The results of one run.

    Attributes:
        rows: how many there are.
        total: the sum of one of their columns, `Workload.total`.
    """

    rows: int
    total: int

    def __str__(self) -> str:
        return f"{self.rows:,} results, sum {self.total:,}"


def answer_of(results: Any, column: str) -> Answer:
    """Return the answer that an Arrow table of results amounts to."""
    import pyarrow.compute as pc

    return Answer(results.num_rows, int(pc.sum(results[column]).as_py() or 0))


class Tally(Process):
    """Counts rows, adds up one of their columns, and emits both at the end."""

    input_order = "arrival"
    schema = Schema.of(rows="int64", total="int64")

    def __init__(self, column: str) -> None:
        """Take the name of the column, of whole numbers."""
        self._column = column
        self._rows = self._total = 0

    def on_batch(self, batch: Batch, out: Output) -> None:
        """Add a batch."""
        self._rows += len(batch)
        self._total += int(np.sum(batch[self._column]))

    def close(self, out: Output) -> None:
        """Emit the row."""
        out.emit_row(rows=self._rows, total=self._total)
