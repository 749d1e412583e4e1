"""Gathers rows that a process emits one by one into batches of one schema.

The columns' types are declared, or learnt from the rows and then fixed (`operators.learnt_schema`):
until all of them are known the rows wait here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..configs.errors import InputError, TopologyError
from ..operators.learnt_schema import LearntSchema
from ..transport.wire.batch import Batch
from ..transport.wire.types import Schema

ROWS_MAX = 8192
"""A batch is passed on when it has so many rows, also in the middle of a call."""


class RowGatherer:
    """Rows of one operator instance, `operator_id`; `schema` if it is declared.

    In a job that is not `bounded`, columns of nulls are presumed to be text when rows are taken
    finally.

    Attributes:
        inputs: the columns of the operator's inputs, as far as they are known.
        rows: those that wait here; a single one is added by who emits it, without a call.
        times: the event time of each, ns, or None.
        full_at: the number of rows at which they are to be taken.
    """

    def __init__(self, operator_id: str, schema: Schema | None, *, bounded: bool = True) -> None:
        self.inputs: Sequence[Schema] = ()
        self._operator_id = operator_id
        self._declared = schema is not None
        self._learnt = LearntSchema(schema, presumes=not bounded)
        self._seen = 0
        self.rows: list[Mapping[str, Any]] = []
        self.times: list[int | None] = []
        self.full_at = ROWS_MAX

    def add_all(self, rows: Sequence[Mapping[str, Any]], time_ns: int | None) -> bool:
        """Take copies of rows of one event time; return whether there are enough to pass on."""
        self.rows.extend(map(dict, rows))
        self.times.extend([time_ns] * len(rows))
        return len(self.rows) >= self.full_at

    def take(self, final: bool) -> Batch | None:
        """Return the rows as a batch, or None if there are none or their types are not known yet.

        Raises:
            TopologyError: rows do not fit the columns, or these cannot be told, and how to mend it.
        """
        if not self.rows:
            return None
        try:
            if not self._has_learnt(final):
                return None
            self._learnt.check_presumed(self.rows)
            batch = self._learnt.batch(self.rows)
        except InputError as error:
            raise TopologyError(self._advice(error)) from error
        times = self.times
        self.rows, self.times = [], []
        self._note_seen()
        if None not in times:
            batch = batch.with_times(np.array(times, dtype=np.int64))
        return batch

    def kept(self) -> Mapping[str, Any]:
        """Return what it has learnt, and copies of the rows that wait."""
        rows = [dict(row) for row in self.rows]
        return {"columns": self._learnt.kept(), "rows": rows, "times": list(self.times)}

    def restore(
        self, dealt: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]]
    ) -> None:
        """Resume from what gatherers kept.

        Args:
            dealt: of those whose rows it takes over.
            known: of all instances; the columns of one are those of all.
        """
        for one in dealt:
            self.rows += one["rows"]
            self.times += one["times"]
        self._learnt.restore([one["columns"] for one in (*dealt, *known)], self.rows)
        self._note_seen()

    def _has_learnt(self, final: bool) -> bool:
        """Learn from the rows that were not seen yet; return whether the schema is known."""
        if self._learnt.known is None:
            self._learnt.inputs = tuple(self.inputs)
            self._learnt.look(self.rows[self._seen :])
            self._note_seen()
            if final:
                self._learnt.settle()
        return self._learnt.known is not None

    def _note_seen(self) -> None:
        self._seen = len(self.rows)
        self.full_at = self._seen + ROWS_MAX

    def _advice(self, problem: object) -> str:
        remedy = (
            "emit what its `schema` declares"
            if self._declared
            else "declare its columns in the class: schema = whale.Schema.of(…)"
        )
        return f"operator {self._operator_id!r} emitted rows that do not fit: {problem}; {remedy}"
