"""Stateless operators: a batch in, a batch out.

::

              expression           function on columns    function per row
    map       MapExpressions       MapBatches             MapRows
    filter    FilterExpression     FilterColumns          FilterRows
    flat map                       FlatMapBatches         FlatMapRows

Rows keep their event time, and batches the instant at which their oldest row was read; rows of a
flat map have the time of their parent. Exceptions of a user's function pass through unchanged, from
a function per row as the cause of a `RowFailure`; a wrong result raises UsageError.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..configs.errors import ExpressionError, Interrupted, UsageError
from ..transport.wire.types import DataType, Field, Schema
from .needed_columns import ALL, Needed, both
from .rows import Row, RowFailure, results_of, rows_of
from .transform_bases import Learning, MakesRows, Transform, a_kind, name_of

if TYPE_CHECKING:
    import numpy.typing as npt

    from ..transport.wire.batch import Batch
    from ..transport.wire.column import Column
    from .expressions.expression import Expression

__all__ = [
    "FilterColumns",
    "FilterExpression",
    "FilterRows",
    "FlatMapBatches",
    "FlatMapRows",
    "MapBatches",
    "MapExpressions",
    "MapRows",
    "Row",
    "RowFailure",
    "Transform",
]


class MapExpressions(Transform):
    """Compute columns by expressions, instead of all others or in addition to them."""

    def __init__(self, expressions: Mapping[str, Expression], keep: bool) -> None:
        self._expressions = dict(expressions)
        self._keep = keep

    @property
    def expressions(self) -> Mapping[str, Expression]:
        """The columns that it computes, by name."""
        return self._expressions

    @property
    def keeps(self) -> bool:
        """Whether the columns of the input stay."""
        return self._keep

    @classmethod
    def select(cls, expressions: Sequence[Expression]) -> MapExpressions:
        """Return the transform to exactly these columns, named by `output_name`.

        Raises:
            ExpressionError: two have the same name.
        """
        names = [expression.output_name for expression in expressions]
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            msg = f"two columns are called {repeated[0]!r}: give one another name with alias"
            raise ExpressionError(msg)
        return cls(dict(zip(names, expressions, strict=True)), keep=False)

    @classmethod
    def with_column(cls, name: str, expression: Expression) -> MapExpressions:
        """Return the transform that adds one column, or replaces the one of that name."""
        return cls.with_columns({name: expression})

    @classmethod
    def with_columns(cls, expressions: Mapping[str, Expression]) -> MapExpressions:
        """Return the transform that adds or replaces columns, all computed from the input's."""
        return cls(expressions, keep=True)

    def apply(self, batch: Batch) -> Batch | None:
        """Return the batch with the computed columns."""
        from ..transport.wire.batch import Batch
        from .expressions.evaluation import Environment

        environment = Environment(batch)
        columns: dict[str, Column] = {}
        if self._keep:
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        for name, expression in self._expressions.items():
            columns[name] = environment.evaluate(expression)
        schema = _schema_of(tuple(columns), tuple(column.type for column in columns.values()))
        return Batch(schema, list(columns.values()), batch.num_rows, batch.times, batch.origin_ns)

    def describe(self) -> str:
        """Return the label that `explain` prints."""
        shown = [
            str(expression) if expression.output_name == name else f"{expression} AS {name}"
            for name, expression in self._expressions.items()
        ]
        return f"{'with' if self._keep else 'select'} {', '.join(shown)}"

    def columns_needed(self, wanted: Needed) -> Needed:
        """See `Transform.columns_needed`: all expressions are computed, wanted or not."""
        read = {name for one in self._expressions.values() for name in one.columns}
        if not self._keep:
            return frozenset(read)
        return ALL if wanted is None else (wanted - self._expressions.keys()) | read

    def output_schema(self, schema: Schema) -> Schema | None:
        """Return the output columns; raise ExpressionError if they cannot be computed."""
        from ..transport.wire.batch import Batch

        made = self.apply(Batch.empty(schema))
        return None if made is None else made.schema


class FilterExpression(Transform):
    """Keep the rows for which a condition is true; null counts as false."""

    def __init__(self, condition: Expression) -> None:
        self._condition = condition

    @property
    def condition(self) -> Expression:
        """What is true for the rows that it keeps."""
        return self._condition

    def apply(self, batch: Batch) -> Batch | None:
        """Return the rows that are kept."""
        from .expressions.evaluation import Environment

        return _kept(batch, Environment(batch).mask(self._condition))

    def describe(self) -> str:
        """Return the label that `explain` prints."""
        return f"filter {self._condition}"

    def columns_needed(self, wanted: Needed) -> Needed:
        """See `Transform.columns_needed`."""
        return both(wanted, frozenset(self._condition.columns))

    def output_schema(self, schema: Schema) -> Schema | None:
        """Return the same columns; raise ExpressionError if the condition does not fit them."""
        from ..transport.wire.batch import Batch

        self.apply(Batch.empty(schema))
        return schema


class FilterColumns(Transform):
    """Keep the rows that a function on columns marks: batch → booleans, shape (num_rows,)."""

    def __init__(self, function: Callable[[Batch], Any]) -> None:
        self._function = function

    @property
    def function(self) -> Callable[[Batch], Any]:
        """The user's function."""
        return self._function

    def apply(self, batch: Batch) -> Batch | None:
        """Return the rows that are kept.

        Raises:
            UsageError: the function did not return one boolean per row.
        """
        returned = self._function(batch)
        mask = np.asarray(np.ma.filled(returned, False))
        if mask.dtype != np.bool_ or mask.shape != (batch.num_rows,):
            got = f"{mask.dtype} of shape {mask.shape}"
            if mask.dtype == np.object_ and mask.shape == ():
                got = a_kind(returned)
            msg = (
                f"filter function {name_of(self._function)} returned {got}: return one boolean per"
                f" row, shape ({batch.num_rows},), such as batch['speed'] > 0"
            )
            raise UsageError(msg)
        return _kept(batch, mask)

    def describe(self) -> str:
        """Return the label that `explain` prints."""
        return f"filter by {name_of(self._function)} (columns)"

    def output_schema(self, schema: Schema) -> Schema | None:
        """Return the same columns."""
        return schema


class FilterRows(Transform):
    """Keep the rows for which a function is true: row → bool."""

    def __init__(self, function: Callable[[Row], Any]) -> None:
        self._function = function

    @property
    def function(self) -> Callable[[Row], Any]:
        """The user's function."""
        return self._function

    def apply(self, batch: Batch) -> Batch | None:
        """Return the rows that are kept.

        Raises:
            RowFailure: the function raised.
            UsageError: it did not return a bool; None is most often a forgotten `return`.
        """
        from ..transport.wire.value_kinds import classes_of

        results = results_of(self._function, batch)
        for kind in classes_of(results):
            if kind is not bool and kind is not np.bool_:
                at = next(at for at, result in enumerate(results) if type(result) is kind)
                self._refuse(results[at], batch.preview(at))
        return _kept(batch, np.fromiter(results, np.bool_, len(results)))

    def _refuse(self, result: Any, row: str) -> NoReturn:
        why = "without `return`, a function returns None" if result is None else "bool(…) makes one"
        msg = (
            f"filter function {name_of(self._function)} returned {a_kind(result)}: return True or"
            f" False ({why}); input: {row}"
        )
        raise UsageError(msg)

    def describe(self) -> str:
        """Return the label that `explain` prints."""
        return f"filter by {name_of(self._function)} (rows)"

    def output_schema(self, schema: Schema) -> Schema | None:
        """Return the same columns."""
        return schema


class MapBatches(Learning):
    """Map columns: batch → `Batch` or mapping of column name → array, with as many rows."""

    _verb, _takes = "map", "columns"

    def apply(self, batch: Batch) -> Batch | None:
        """Return the rows that the function returns.

        Raises:
            UsageError: the number of rows is not that of the input, or the columns have changed.
        """
        result = self._of_columns(self._function(batch))
        if result.num_rows != batch.num_rows:
            fix = "use flat_map to change the number of rows, filter to drop some"
            self._refuse(f"it returned {result.num_rows} rows for {batch.num_rows}; {fix}")
        return _inherit(result, batch, batch.times)


class MapRows(MakesRows):
    """Map each row to a row: row → mapping of column name → value.

    Learnt columns are int64, float64, bool, or as documented in `transport.wire.values`; text,
    times and decimals that keep the name of an input column keep its type, too.
    """

    _verb = "map"

    def apply(self, batch: Batch) -> Batch | None:
        """Return the rows that the function returns.

        Raises:
            RowFailure: the function raised.
            UsageError: it did not return a mapping, or other columns than before.
        """
        rows = results_of(self._function, batch)
        return self._batch_of(rows, batch.times, batch) if rows else None


class FlatMapBatches(Learning):
    """Map a batch to any number of rows.

    The function returns a `Batch` or a mapping of column name → array; or a pair of either and the
    parents, integers of shape (output rows,): the number of the input row of each output row; or
    None for no rows. If the input has event times, each row gets the time of its parent; parents
    may be left out if the returned `Batch` has times, as those of `take` and `filter` have.
    """

    _verb, _takes = "flat map", "columns"

    def apply(self, batch: Batch) -> Batch | None:
        """Return the function's rows; raise UsageError if it returns anything else."""
        returned = self._function(batch)
        parents = None
        if isinstance(returned, tuple) and len(returned) == 2:
            returned, parents = returned
        if returned is None:
            return None
        result = self._of_columns(returned)
        if result.num_rows == 0:
            return None
        if parents is not None:
            times = self._times_of(np.asarray(parents), result, batch)
        elif result.has_times or batch.times is None:
            times = result.times
        else:
            self._refuse(
                "its rows have no event time; return (rows, parents), with the number of the input"
                " row that each row comes from, or rows made by batch.take"
            )
        return _inherit(result, batch, times)

    def _times_of(
        self, parents: npt.NDArray[Any], result: Batch, batch: Batch
    ) -> npt.NDArray[np.int64] | None:
        shape = (result.num_rows,)
        if parents.shape != shape or parents.dtype.kind not in "iu":
            fix = f"give the input row of each row, integers of shape {shape}"
            self._refuse(f"its parents are {parents.dtype} {parents.shape}; {fix}")
        if parents.min() < 0 or parents.max() >= batch.num_rows:
            wrong = parents.min() if parents.min() < 0 else parents.max()
            self._refuse(f"parent {wrong} is no row of the {batch.num_rows} that came in")
        return None if batch.times is None else batch.times[parents]


class FlatMapRows(MakesRows):
    """Map each row to any number of rows: row → iterable of mappings, or None for none."""

    _verb = "flat map"

    def apply(self, batch: Batch) -> Batch | None:
        """Return the function's rows; raise as `MapRows.apply`."""
        made: list[Any] = []
        ends: list[int] = []
        function, extend = self._function, made.extend
        try:
            for row in rows_of(batch):
                returned = function(row)
                extend(returned if type(returned) is list else self._rows_of(returned))
                ends.append(len(made))
        except (UsageError, Interrupted):
            raise
        except BaseException as error:
            raise RowFailure.at(len(ends), batch, error) from error
        if not made:
            return None
        times = None if batch.times is None else np.repeat(batch.times, np.diff(ends, prepend=0))
        return self._batch_of(made, times, batch)

    def _rows_of(self, returned: Any) -> Iterable[Any]:
        if returned is None:
            return ()
        if isinstance(returned, (Mapping, str, bytes)) or not isinstance(returned, Iterable):
            self._refuse(f"it returned {a_kind(returned)}; return a list of rows, or yield them")
        return returned


def _kept(batch: Batch, mask: npt.NDArray[np.bool_]) -> Batch | None:
    count = int(np.count_nonzero(mask))
    if count == batch.num_rows:
        return batch if count else None
    return batch.filter(mask) if count else None


def _inherit(result: Batch, batch: Batch, times: npt.NDArray[np.int64] | None) -> Batch:
    """Set the event times of a function's rows, and the instant at which the oldest was read."""
    return result.with_times(times).with_origin(batch.origin_ns)


@functools.lru_cache(maxsize=256)
def _schema_of(names: tuple[str, ...], kinds: tuple[DataType, ...]) -> Schema:
    return Schema(tuple(Field(name, kind) for name, kind in zip(names, kinds, strict=True)))
