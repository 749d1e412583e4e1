"""The base of all transforms, and the bases of those whose function returns new columns.

The columns that a function returns are declared (`schema`), or learnt and then fixed: from its
first batch, or row by row (`learnt_schema`), so that rows may have to wait for their types.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..configs.errors import InputError, UsageError
from .learnt_schema import LearntSchema
from .needed_columns import ALL, Needed

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..transport.wire.batch import Batch
    from ..transport.wire.types import Schema


class Transform(ABC):
    """A stateless operator."""

    @abstractmethod
    def apply(self, batch: Batch) -> Batch | None:
        """Return the transformed rows, or None if there are none."""

    @abstractmethod
    def describe(self) -> str:
        """Return the label that `explain` prints."""

    def output_schema(self, schema: Schema) -> Schema | None:
        """Return the output columns for this input schema; None if only rows can show them.

        Raises:
            ExpressionError: an expression does not fit the schema.
        """
        return None

    @property
    def declared(self) -> Schema | None:
        """The output columns that the user declared, None if not."""
        return None

    def columns_needed(self, wanted: Needed) -> Needed:
        """Return which columns of the input it needs for those of its output that are wanted."""
        return ALL

    def instance(self, *, bounded: bool = True) -> Transform:
        """Return a copy for one operator instance, which may keep rows back until it has learnt.

        The original never keeps rows back. In an unbounded job, `finish` must be called once they
        have waited for `learnt_schema.WAITING_NS_MAX`.
        """
        return copy.copy(self)

    @property
    def waiting_rows(self) -> int:
        """The number of rows kept back; they are returned with later ones, or by `finish`."""
        return 0

    def finish(self) -> Batch | None:
        """Return the rows that were kept back, at the end of the input or when they are due."""
        return None

    def learnt(self) -> Mapping[str, Any]:
        """Return what it has learnt from its rows, and the rows kept back: picklable, a copy."""
        return {}

    def restore_learnt(
        self, dealt: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]]
    ) -> None:
        """Resume from what instances have returned from `learnt`, before the first row.

        Args:
            dealt: of those whose rows it takes over.
            known: of all instances; the columns of one are those of all.
        """
        return


class Learning(Transform):
    """A transform whose columns are declared, or learnt from the first rows and then fixed.

    `function` is the user's, `_verb` the method of a stream that it was passed to.
    """

    _verb = ""
    _takes = ""

    def __init__(self, function: Callable[[Any], Any], schema: Schema | None = None) -> None:
        self._function = function
        self._declared = schema is not None
        self._schema = schema

    @property
    def function(self) -> Callable[[Any], Any]:
        """The user's function."""
        return self._function

    def describe(self) -> str:
        """Return the label that `explain` prints."""
        return f"{self._verb} by {name_of(self._function)} ({self._takes})"

    def output_schema(self, schema: Schema) -> Schema | None:
        """Return the declared columns, if they are."""
        return self.declared

    @property
    def declared(self) -> Schema | None:
        """The output columns that the user declared, None if not."""
        return self._schema if self._declared else None

    def learnt(self) -> Mapping[str, Any]:
        """See `Transform.learnt`."""
        return {"schema": self._schema}

    def restore_learnt(
        self, dealt: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]]
    ) -> None:
        """See `Transform.restore_learnt`."""
        found = (one["schema"] for one in (*dealt, *known))
        self._schema = self._schema or next(filter(None, found), None)

    def _refuse(self, reason: object) -> NoReturn:
        """Raise UsageError for a wrong result of the function."""
        msg = f"{self._verb.replace(' ', '_')} function {name_of(self._function)}: {reason}"
        raise UsageError(msg) from None

    def _refuse_columns(self, error: InputError) -> NoReturn:
        """Raise UsageError for columns that do not fit the schema, or whose types are unknown."""
        if self._schema is None and str(error).endswith("declare its type"):
            self._refuse(f"{error} with schema=whale.Schema.of(…)")
        if self._schema is None or self._declared:
            self._refuse(error)
        self._refuse(
            f"{error} (the columns were learnt from its first rows: {self._schema}; declare them"
            " with schema=whale.Schema.of(…))"
        )

    def _of_columns(self, result: Any) -> Batch:
        """Return a function's result as a batch of the schema, which is learnt from the first."""
        from ..transport.wire.batch import Batch

        if isinstance(result, Batch) and self._schema in (None, result.schema):
            self._schema = result.schema
            return result
        times = result.times if isinstance(result, Batch) else None
        if isinstance(result, Batch):
            result = dict(zip(result.schema.names, result.columns, strict=True))
        if not isinstance(result, Mapping):
            fix = "return a Batch or a mapping of column name → array"
            self._refuse(f"it returned {a_kind(result)}; {fix}")
        for name, values in result.items():
            if isinstance(values, (str, bytes)) or not hasattr(values, "__len__"):
                fix = f"give one value per row, such as np.full(len(batch), {values!r})"
                self._refuse(f"column {name!r} is {a_kind(values)}; {fix}")
        try:
            made = Batch.from_pydict(result, self._schema)
        except InputError as error:
            self._refuse_columns(error)
        self._schema = made.schema
        return made if times is None else made.with_times(times)


class MakesRows(Learning):
    """A transform whose function returns rows, which may wait until column types are known."""

    _takes = "rows"

    def __init__(self, function: Callable[[Any], Any], schema: Schema | None = None) -> None:
        super().__init__(function, schema)
        self._learnt = LearntSchema(schema, keeps_input_types=True)
        self._waiting: list[Mapping[str, Any]] = []
        self._inputs: list[tuple[npt.NDArray[np.int64] | None, int]] = []
        self._may_wait = False

    def instance(self, *, bounded: bool = True) -> Transform:
        """Return a copy for one operator instance; see `Transform.instance`."""
        schema = self._schema if self._declared else None
        one = type(self)(self._function, schema)
        one._learnt = LearntSchema(schema, keeps_input_types=True, presumes=not bounded)
        one._may_wait = True
        return one

    @property
    def waiting_rows(self) -> int:
        """The number of rows that wait for the types of their columns."""
        return len(self._waiting)

    def learnt(self) -> Mapping[str, Any]:
        """See `Transform.learnt`."""
        inputs = [(None if times is None else times.copy(), at) for times, at in self._inputs]
        waiting = [dict(row) for row in self._waiting]
        return {"columns": self._learnt.kept(), "waiting": waiting, "inputs": inputs}

    def restore_learnt(
        self, dealt: Sequence[Mapping[str, Any]], known: Sequence[Mapping[str, Any]]
    ) -> None:
        """See `Transform.restore_learnt`."""
        for one in dealt:
            self._waiting += one["waiting"]
            self._inputs += [(times, 0) for times, _ in one["inputs"]]
        self._learnt.restore([one["columns"] for one in (*dealt, *known)], self._waiting)
        self._schema = self._learnt.known

    def finish(self) -> Batch | None:
        """Return the waiting rows; raise UsageError if a column's type is still unknown."""
        try:
            self._learnt.settle()
        except InputError as error:
            self._refuse_columns(error)
        self._schema = self._learnt.known
        return self._gathered([])

    def _batch_of(
        self, rows: list[Any], times: npt.NDArray[np.int64] | None, batch: Batch
    ) -> Batch | None:
        """Return a function's rows, with what waited before them; None if they have to wait."""
        from ..transport.wire.value_kinds import classes_of

        for kind in classes_of(rows):
            if not issubclass(kind, Mapping):
                wrong = next(row for row in rows if type(row) is kind)
                fix = "return a mapping of column name → value, such as {**row, 'speed': 0}"
                self._refuse(f"it returned {a_kind(wrong)} for a row; {fix}")
        self._inputs.append((times, batch.origin_ns))
        if self._schema is None and not self._has_learnt(rows, batch):
            # A row refers to its batch, and would keep the memory of a ring.
            self._waiting += [row if type(row) is dict else dict(row) for row in rows]
            return None
        return self._gathered(rows)

    def _has_learnt(self, rows: list[Any], batch: Batch) -> bool:
        self._learnt.inputs = (batch.schema,)
        try:
            if not self._learnt.look(rows) and not self._may_wait:
                self._learnt.settle()
        except InputError as error:
            self._refuse_columns(error)
        self._schema = self._learnt.known
        return self._schema is not None

    def _gathered(self, rows: list[Any]) -> Batch | None:
        """Return the waiting rows and these as one batch."""
        (waiting, inputs), (self._waiting, self._inputs) = (self._waiting, self._inputs), ([], [])
        if waiting:
            rows = waiting + rows
        if not rows:
            return None
        try:
            self._learnt.check_presumed(rows)
            made = self._learnt.batch(rows)
        except InputError as error:
            self._refuse_columns(error)
        times = [one for one, _ in inputs if one is not None]
        if len(times) == len(inputs):
            made = made.with_times(times[0] if len(times) == 1 else np.concatenate(times))
        return made.with_origin(min((origin for _, origin in inputs if origin), default=0))


def name_of(function: Any) -> str:
    """Return the name of a user's function."""
    return getattr(function, "__name__", type(function).__name__)


def a_kind(value: Any) -> str:
    """Return the type of a value with an article."""
    kind = type(value).__name__
    return "None" if value is None else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
