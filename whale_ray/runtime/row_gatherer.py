"""Gathers rows that a process emits one by one into batches of one schema.

The columns' types are declared, or learnt from the first rows and then fixed. A column that has
held nothing but nulls so far keeps its rows waiting, up to a limit, until a value tells its type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..configs.errors import InputError, TopologyError
from ..transport.wire.batch import Batch
from ..transport.wire.types import Schema

ROWS_MAX = 8192
"""A batch is passed on when it has so many rows, also in the middle of a call."""

WAITING_ROWS_MAX = 65_536
"""So many rows may wait for their columns' types."""


class RowGatherer:
    """Rows of one operator instance, `operator_id`; `schema` if it is declared."""

    def __init__(self, operator_id: str, schema: Schema | None) -> None:
        self._operator_id = operator_id
        self._declared = schema is not None
        self._schema = schema
        self._rows: list[dict[str, Any]] = []
        self._times: list[int | None] = []

    @property
    def holds_rows(self) -> bool:
        """Whether rows wait here."""
        return bool(self._rows)

    def add(self, rows: Sequence[Mapping[str, Any]], time_ns: int | None) -> bool:
        """Take rows of one event time; return whether there are enough to pass on."""
        self._rows.extend(dict(row) for row in rows)
        self._times.extend([time_ns] * len(rows))
        return len(self._rows) >= ROWS_MAX

    def take(self, final: bool) -> Batch | None:
        """Return the rows as a batch, or None if there are none or their types are not known yet.

        Raises:
            TopologyError: rows do not fit the columns, or these cannot be told, and how to mend it.
        """
        if not self._rows:
            return None
        if self._schema is None and not self._learn(final):
            return None
        try:
            batch = Batch.from_rows(self._rows, self._schema)
        except InputError as error:
            raise TopologyError(self._advice(error)) from error
        times = self._times
        self._rows, self._times = [], []
        if all(time is not None for time in times):
            batch = batch.with_times(np.array(times, dtype=np.int64))
        return batch

    def _learn(self, final: bool) -> bool:
        """Fix the schema from the rows at hand; return whether that was possible."""
        names = list(self._rows[0])
        untold = [name for name in names if all(row.get(name) is None for row in self._rows)]
        if untold and not final and len(self._rows) < WAITING_ROWS_MAX:
            return False
        if untold:
            raise TopologyError(self._advice(f"column {untold[0]!r} holds nothing but nulls"))
        try:
            self._schema = Batch.from_rows(self._rows).schema
        except InputError as error:
            raise TopologyError(self._advice(error)) from error
        return True

    def _advice(self, problem: object) -> str:
        remedy = (
            "emit what its `schema` declares"
            if self._declared
            else "declare its columns in the class: schema = whale.Schema.of(…)"
        )
        return f"operator {self._operator_id!r} emitted rows that do not fit: {problem}; {remedy}"
