"""`EvaluatedRows`: rows as they wait for a pass: their keys, slices, and what aggregates read.

What aggregates read is computed as the rows come: an error names the right row, and a function that
reads a clock reads it then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...transport.wire.batch import Batch
from ...transport.wire.types import Field, Schema
from .grouping import SLICE

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ...transport.wire.column import Column
    from .aggregation import Aggregation

__all__ = ["EvaluatedRows"]


class EvaluatedRows:
    """Puts the inputs of an aggregation beside the keys of rows, and finds them there again.

    Args:
        asked: whose inputs these are.
    """

    def __init__(self, asked: Aggregation) -> None:
        self._keys = asked.keys
        beside = "#" + max((SLICE, *asked.keys), key=len)  # begins no name of a key
        names: dict[object, str] = {key: key for key in asked.keys}
        self._names: list[list[str]] = []
        for number, aggregate in enumerate(asked.aggregates):
            ids = [one.plain_column or (number, at) for at, one in enumerate(aggregate.inputs)]
            self._names.append([names.setdefault(one, f"{beside}{len(names)}") for one in ids])

    def of(
        self,
        batch: Batch,
        inputs: Sequence[Sequence[Column]],
        slices: npt.NDArray[np.int64] | None,
    ) -> Batch:
        """Return rows as they wait.

        Args:
            batch: the rows.
            inputs: what `evaluated_inputs` returned for them.
            slices: of each row, int64 (n,); None where all rows have the same.
        """
        rows = batch.select(self._keys)
        columns = {
            name: column
            for names, read in zip(self._names, inputs, strict=True)
            for name, column in zip(names, read, strict=True)
            if name not in self._keys
        }
        fields = [*rows.schema, *(Field(name, one.type) for name, one in columns.items())]
        found = Batch(
            Schema(tuple(fields)),
            [*rows.columns, *columns.values()],
            rows.num_rows,
            times=batch.times,
        )
        return found if slices is None else found.with_column(SLICE, slices)

    def inputs(self, rows: Batch) -> list[list[Column]]:
        """Return what `evaluated_inputs` returned for these rows."""
        return [[rows.column(name) for name in names] for names in self._names]
