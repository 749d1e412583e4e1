"""Aggregates of the user's own, on columns: `AggregateFunction`.

::

    class GeometricMean(whale.AggregateFunction):
        state = {"logarithms": "float64", "count": "int64"}
        output = "float64"

        def update(self, state, groups, values):
            numpy.add.at(state["logarithms"], groups, numpy.log(values))
            numpy.add.at(state["count"], groups, 1)

        def merge(self, state, other):
            state["logarithms"] += other["logarithms"]
            state["count"] += other["count"]

        def finish(self, state):
            return numpy.exp(state["logarithms"] / state["count"])

    mean = GeometricMean()
    prices.group_by("symbol").agg(mean("price").alias("mean"), output_mode="update")
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from ...configs.errors import ExpressionError
from ..expressions.functions.arguments import ColumnOrName, as_column
from .aggregate import Aggregate

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    State = Mapping[str, npt.NDArray[Any]]

__all__ = ["AggregateFunction"]


class AggregateFunction(ABC):
    """The base of users' own aggregates; an object of it is called with columns, as `F.sum` is.

    Each method works on many groups at once. `state` is a mapping of field name → array with one
    element per group, which `update` and `merge` change in place.

    A row whose first input is null is left out. `update` gets the inputs as `batch["name"]` gives
    them: a numpy array, masked where it has nulls, or a `BytesView` of text.

    `whale_ray.testing.check_merge` finds a merge that depends on the order of its parts.
    """

    state: ClassVar[Mapping[str, str]]
    """The fields of the state: name → type, a number, bool, date or time of fixed width."""

    output: ClassVar[str]
    """The type of the result."""

    def init(self) -> Mapping[str, Any]:
        """Return the fields of a group without rows; those left out are 0."""
        return {}

    @abstractmethod
    def update(self, state: State, groups: npt.NDArray[np.int64], *columns: Any) -> None:
        """Add rows.

        Args:
            state: the fields of the groups in this call, each of shape (g,).
            groups: the group of each row, int64 (n,), 0 … g − 1; a group may occur any number of
                times, so add with `numpy.add.at` and the like.
            columns: the inputs, n values each.
        """

    @abstractmethod
    def merge(self, state: State, other: State) -> None:
        """Add the groups of `other`, pair by pair: shapes (g,) on both sides.

        Windows that overlap are merged from parts, in any order.
        """

    @abstractmethod
    def finish(self, state: State) -> Any:
        """Return the results: shape (g,), masked or None where null; `state` stays as it is."""

    def __call__(self, *columns: ColumnOrName) -> Aggregate:
        """Apply the function to columns, by name or expression.

        Raises:
            ExpressionError: there is no column, or the class declares no state or output.
        """
        name = type(self).__name__
        if not columns:
            msg = f"{name} needs at least one column"
            raise ExpressionError(msg)
        for attribute in ("state", "output"):
            if not getattr(self, attribute, None):
                msg = f"{name} declares no {attribute}: see whale_ray.AggregateFunction"
                raise ExpressionError(msg)
        return Aggregate(self, tuple(as_column(one) for one in columns))
