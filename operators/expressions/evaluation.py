"""Evaluates column expressions: a batch's columns are converted to Arrow, then `kernels` run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from ...configs.errors import ExpressionError, InputError
from ...transport.wire.arrow import column_to_arrow
from ...transport.wire.batch import Batch
from ...transport.wire.column import Column
from ...transport.wire.types import DataType, Schema
from .kernels.arrays import Value, truths
from .kernels.coercion import literal_scalar

if TYPE_CHECKING:
    import numpy.typing as npt

    from .expression import Expression, FunctionCall

__all__ = ["Environment", "Value", "output_type"]


class Environment:
    """The columns of one batch as Arrow arrays, each converted at most once."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._arrays: dict[str, Value] = {}

    def evaluate(self, expression: Expression) -> Column:
        """Return the resulting column; raise ExpressionError if it cannot be computed."""
        if (name := expression.plain_column) is not None:
            return self._find(name)
        value = expression.value(self)
        if isinstance(value, pa.Scalar):
            value = pa.repeat(value, self._batch.num_rows)
        if isinstance(value, pa.ChunkedArray):  # text beyond what one Arrow array holds
            value = value.combine_chunks()
        try:
            return Column.of(value)
        except InputError as error:
            msg = f"the result of {expression} cannot be a column: {error}"
            raise ExpressionError(msg) from None

    def mask(self, condition: Expression) -> npt.NDArray[np.bool_]:
        """Return for each row whether a condition is true, bool, (num_rows,); null is false."""
        value = condition.value(self)
        if isinstance(value, pa.Scalar):
            value = pa.repeat(value, self._batch.num_rows)
        if not pa.types.is_boolean(value.type):
            msg = f"a filter needs a condition, and {condition} is {value.type}: compare it"
            raise ExpressionError(msg)
        return truths(value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value)

    def column(self, name: str) -> Value:
        """Return a column of the batch; raise ExpressionError with the nearest name if none."""
        array = self._arrays.get(name)
        if array is None:
            array = self._arrays[name] = column_to_arrow(_rebased(self._find(name)))
        return array

    def scalar(self, constant: Any) -> Value:
        """Return a literal as an Arrow scalar."""
        return literal_scalar(constant)

    def call(self, call: FunctionCall, values: Sequence[Value]) -> Value:
        """Apply a kernel; if all arguments are constants, so is the result."""
        constant = all(isinstance(value, pa.Scalar) for value in values)
        if constant:
            values = _as_columns(values)
        try:
            with np.errstate(all="ignore"):  # infinities and NaN are results like any other
                result = _kernel(call.kernel)(*values, *call.options)
        except ExpressionError as error:
            msg = f"{error}, in {call}"
            raise ExpressionError(msg) from None
        except (pa.ArrowException, OverflowError) as error:
            types = ", ".join(str(value.type) for value in values)
            reason = str(error).splitlines()[0]
            msg = f"cannot compute {call} of {types} ({reason}): cast an argument"
            raise ExpressionError(msg) from error
        return result[0] if constant else result

    def _find(self, name: str) -> Column:
        try:
            return self._batch.column(name)
        except InputError as error:
            raise ExpressionError(str(error)) from None


def _as_columns(constants: Sequence[Value]) -> list[Value]:
    """Return constants as columns of one row.

    Beside a decimal, whole numbers stay literals, of which only the digits that they have count.
    """
    has_decimal = any(pa.types.is_decimal(one.type) for one in constants)
    return [
        one if has_decimal and pa.types.is_integer(one.type) else pa.repeat(one, 1)
        for one in constants
    ]


def output_type(expression: Expression, schema: Schema) -> DataType:
    """Return the type of an expression's column for rows of this schema."""
    return Environment(Batch.empty(schema)).evaluate(expression).type


def _rebased(column: Column) -> Column:
    """Return text whose offsets begin at 0; some of pyarrow's kernels (ascii_upper) need that."""
    offsets = column.offsets
    if offsets is None or offsets[0] == 0:
        return column
    pool = column.data[offsets[0] : offsets[-1]]
    return Column(column.type, pool, offsets - offsets[0], column.validity)


@functools.cache
def _kernel(name: str) -> Callable[..., Value]:
    module, _, function = name.partition(".")
    return getattr(import_module(f".kernels.{module}", __package__), function)
