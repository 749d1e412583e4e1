"""`Aggregate`: an aggregate function applied to column expressions, as a value.

>>> from whale_ray import functions as F
>>> highest = F.max("price").alias("highest")
>>> str(highest), highest.output_name, highest.columns
('max(price) AS highest', 'highest', ('price',))

Building one computes nothing and loads neither numpy nor numba. `bind` turns it into an
`Accumulator` once the types of its inputs are known.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from ...configs.errors import ExpressionError
from ..expressions.expression import Expression

if TYPE_CHECKING:
    from ...transport.wire.types import DataType, Schema
    from .accumulator import Accumulator
    from .user_defined import AggregateFunction

__all__ = ["Aggregate"]


@dataclass(frozen=True, repr=False)
class Aggregate:
    """An aggregate function with its arguments; `alias` names the resulting column.

    Attributes:
        function: its name in `whale_ray.functions`, or the object of an `AggregateFunction`.
        inputs: the columns that it reads; none for `count("*")`.
        options: plain values that shape it, such as the percentage of a percentile.
        name: the resulting column's name; None: its text, such as "max(price)".
    """

    function: str | AggregateFunction
    inputs: tuple[Expression, ...]
    options: tuple[Any, ...] = ()
    name: str | None = None

    def alias(self, name: str) -> Aggregate:
        """Name the resulting column."""
        if not isinstance(name, str) or not name:
            msg = f"alias takes a name, not {name!r}"
            raise ExpressionError(msg)
        return replace(self, name=name)

    @property
    def output_name(self) -> str:
        """The resulting column's name."""
        return self.name or self._call()

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that it reads, each once."""
        return tuple(dict.fromkeys(name for one in self.inputs for name in one.columns))

    def bind(self, schema: Schema) -> Accumulator:
        """Return what computes it for rows of this schema.

        Raises:
            ExpressionError: a column does not exist, or the function does not take its type.
        """
        from .binding import accumulator_of

        types: list[DataType] = [one.output_type(schema) for one in self.inputs]
        return accumulator_of(self, tuple(types))

    if not TYPE_CHECKING:  # hidden from type checkers, which then report a missing operator

        def _refuse(self, *_: object) -> NoReturn:
            msg = (
                f"{self} is an aggregate, which is no part of an expression: name it in agg,"
                " .alias('total'), and compute with whale.col('total') after that"
            )
            raise ExpressionError(msg)

        __add__ = __sub__ = __mul__ = __truediv__ = __mod__ = __pow__ = __neg__ = _refuse
        __radd__ = __rsub__ = __rmul__ = __rtruediv__ = __rmod__ = __rpow__ = _refuse
        __lt__ = __le__ = __gt__ = __ge__ = __and__ = __or__ = __invert__ = _refuse
        cast = over = _refuse

    def _call(self) -> str:
        called = self.function if isinstance(self.function, str) else type(self.function).__name__
        shown = [str(one) for one in self.inputs] or (["*"] if called == "count" else [])
        shown += [repr(option) for option in self.options]
        return f"{called}({', '.join(shown)})"

    def __str__(self) -> str:
        return self._call() if self.name is None else f"{self._call()} AS {self.name}"

    def __repr__(self) -> str:
        return f"<{self}>"
