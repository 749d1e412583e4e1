"""The two kinds of user functions: those of one row, and those of a batch.

A plain function takes **one row**: it is the simplest to write and the slowest to run. A function
marked with :func:`columns` takes **a batch** and computes whole columns, with numpy or any other
library. A column expression needs no function at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from ...configs.errors import TopologyError
from ...operators.arguments import accepts
from .checks import describe_value, name_of

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True)
class ColumnFunction(Generic[R_co]):
    """A function that takes a `Batch` instead of one row; `columns` returns it.

    Attributes:
        function: the user's function.
    """

    function: Callable[[Batch], R_co]

    def __call__(self, batch: Batch) -> R_co:
        """Call the function, for instance in the user's own tests."""
        return self.function(batch)

    @property
    def __name__(self) -> str:
        return name_of(self.function)


def columns(function: Callable[[Batch], R_co]) -> ColumnFunction[R_co]:
    """Mark a function as a function of columns: it takes a `Batch`, not one row.

    ::

        @whale.columns
        def speed(batch):
            return {"id": batch["id"], "speed": batch["distance_m"] / batch["seconds"]}

        trips.map(speed)
        trips.filter(whale.columns(lambda batch: batch["seconds"] > 0))

    For `map` and `flat_map` it returns a `Batch`, or a mapping of column name → array in which all
    arrays have the same length; for `filter` it returns booleans, shape (num_rows,).

    Raises:
        TopologyError: `function` cannot be called with one argument.
    """
    if not callable(function) or isinstance(function, ColumnFunction):
        msg = f"columns takes a function (batch), not {describe_value(function)}"
        raise TopologyError(msg)
    if not accepts(function, 1):
        msg = f"columns calls {name_of(function)}(batch): it must take one argument"
        raise TopologyError(msg)
    return ColumnFunction(function)
