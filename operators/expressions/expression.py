"""Column expressions with PySpark's names and meaning: build them, then evaluate them on batches.

>>> price = (col("amount") * 100 + lit(1)).cast("long").alias("cents")
>>> str(price), price.columns
('CAST(((amount * 100) + 1) AS int64) AS cents', ('amount',))

An expression is an immutable tree; building one computes nothing and imports neither numpy (but
for `cast`) nor pyarrow. `evaluate` computes it for a whole batch at once, over Arrow views of its
columns. Values follow Spark SQL with `spark.sql.ansi.enabled=false`: logic is three-valued,
integers wrap, a division by zero and a failed cast give null, NaN equals NaN and is greater than
all numbers. `spark_names` lists the differences from Spark.
"""

from __future__ import annotations

import datetime
import decimal
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from ...configs.errors import ExpressionError
from .spark_names import CAMEL_CASE

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from ...transport.wire.column import Column
    from ...transport.wire.types import DataType, Schema
    from .evaluation import Environment, Value

__all__ = ["Case", "Expression", "Operand", "col", "lit", "when"]

_LITERALS = (
    bool,
    int,
    float,
    str,
    bytes,
    decimal.Decimal,
    datetime.date,  # datetime.datetime is one too
    datetime.time,
    datetime.timedelta,
    type(None),
)

Operand: TypeAlias = "Expression | Any"  # anything else than an expression becomes a literal


class Expression(ABC):
    """A column computed from the columns of a row; combine it with operators and methods.

    `+ - * / % **`, comparisons, and `& | ~` for and, or, not build larger expressions. Any operand
    that is not an expression is a literal: `col("city") == "Rome"`.
    """

    __slots__ = ()

    # ---- for planning and running ---------------------------------------------------------------

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns that it reads, each once, in order of first use."""
        return tuple(dict.fromkeys(self._column_names()))

    @property
    def output_name(self) -> str:
        """The resulting column's name in a `select`: alias or column name, else its text."""
        return str(self)

    @property
    def plain_column(self) -> str | None:
        """The column that it returns unchanged, or None if it computes anything."""
        return None

    def evaluate(self, batch: Batch) -> Column:
        """Return the expression's values for a batch, a column of `batch.num_rows` values.

        Raises:
            ExpressionError: a column does not exist, or types do not fit; the message names them.
        """
        from .evaluation import Environment

        return Environment(batch).evaluate(self)

    def output_type(self, schema: Schema) -> DataType:
        """Return the type of the result for rows of this schema; raise as `evaluate` does."""
        from .evaluation import output_type

        return output_type(self, schema)

    def children(self) -> tuple[Expression, ...]:
        """Return the direct operands of this expression."""
        return ()

    @abstractmethod
    def value(self, environment: Environment) -> Value:
        """Return an Arrow array or, for a constant, a scalar; internal, use `evaluate`."""

    def _column_names(self) -> Iterator[str]:
        for child in self.children():
            yield from child._column_names()

    # ---- naming and types ------------------------------------------------------------------

    def alias(self, name: str) -> Expression:
        """Name the resulting column."""
        return Alias(self, name)

    def cast(self, to: str | DataType) -> Expression:
        """Convert to another type; a value that does not fit becomes null.

        Args:
            to: a name of whale-ray's (`"int64"`, `"timestamp[ms, tz=UTC]"`) or of Spark's
                (`"long"`, `"timestamp"`, `"decimal(10, 2)"`), or a `DataType`.

        Raises:
            ExpressionError: there is no such type.
        """
        from .spark_types import parse_type  # which imports numpy

        kind = parse_type(to)
        return FunctionCall("casts.cast", (self,), (kind,), f"CAST({{0}} AS {kind})")

    # ---- arithmetic ------------------------------------------------------------------------

    def __add__(self, other: Operand) -> Expression:
        return _binary("arithmetic.add", self, "+", other)

    def __radd__(self, other: Operand) -> Expression:
        return _binary("arithmetic.add", other, "+", self)

    def __sub__(self, other: Operand) -> Expression:
        return _binary("arithmetic.subtract", self, "-", other)

    def __rsub__(self, other: Operand) -> Expression:
        return _binary("arithmetic.subtract", other, "-", self)

    def __mul__(self, other: Operand) -> Expression:
        return _binary("arithmetic.multiply", self, "*", other)

    def __rmul__(self, other: Operand) -> Expression:
        return _binary("arithmetic.multiply", other, "*", self)

    def __truediv__(self, other: Operand) -> Expression:
        return _binary("arithmetic.divide", self, "/", other)

    def __rtruediv__(self, other: Operand) -> Expression:
        return _binary("arithmetic.divide", other, "/", self)

    def __mod__(self, other: Operand) -> Expression:
        return _binary("arithmetic.remainder", self, "%", other)

    def __rmod__(self, other: Operand) -> Expression:
        return _binary("arithmetic.remainder", other, "%", self)

    def __pow__(self, other: Operand) -> Expression:
        return _binary("arithmetic.power", self, "**", other)

    def __rpow__(self, other: Operand) -> Expression:
        return _binary("arithmetic.power", other, "**", self)

    def __neg__(self) -> Expression:
        return FunctionCall("arithmetic.negative", (self,), (), "(- {0})")

    def bitwise_and(self, other: Operand) -> Expression:
        """Combine the bits of two integers with and."""
        return _binary("arithmetic.bitwise_and", self, "&", other)

    def bitwise_or(self, other: Operand) -> Expression:
        """Combine the bits of two integers with or."""
        return _binary("arithmetic.bitwise_or", self, "|", other)

    def bitwise_xor(self, other: Operand) -> Expression:
        """Combine the bits of two integers with exclusive or."""
        return _binary("arithmetic.bitwise_xor", self, "^", other)

    # ---- comparison and logic --------------------------------------------------------------

    def __eq__(self, other: Operand) -> Expression:  # type: ignore[override]  # builds, as PySpark
        return _binary("comparisons.equal", self, "=", other)

    def __ne__(self, other: Operand) -> Expression:  # type: ignore[override]  # builds, as PySpark
        return _binary("comparisons.not_equal", self, "!=", other)

    __hash__ = object.__hash__

    def __lt__(self, other: Operand) -> Expression:
        return _binary("comparisons.less", self, "<", other)

    def __le__(self, other: Operand) -> Expression:
        return _binary("comparisons.less_equal", self, "<=", other)

    def __gt__(self, other: Operand) -> Expression:
        return _binary("comparisons.greater", self, ">", other)

    def __ge__(self, other: Operand) -> Expression:
        return _binary("comparisons.greater_equal", self, ">=", other)

    def __and__(self, other: Operand) -> Expression:
        return _binary("comparisons.logical_and", self, "AND", other)

    def __rand__(self, other: Operand) -> Expression:
        return _binary("comparisons.logical_and", other, "AND", self)

    def __or__(self, other: Operand) -> Expression:
        return _binary("comparisons.logical_or", self, "OR", other)

    def __ror__(self, other: Operand) -> Expression:
        return _binary("comparisons.logical_or", other, "OR", self)

    def __invert__(self) -> Expression:
        return FunctionCall("comparisons.logical_not", (self,), (), "(NOT {0})")

    def eq_null_safe(self, other: Operand) -> Expression:
        """Compare for equality, where null equals null and the result is never null."""
        return _binary("comparisons.equal_null_safe", self, "<=>", other)

    def is_null(self) -> Expression:
        """Tell whether the value is null."""
        return FunctionCall("comparisons.is_null", (self,), (), "({0} IS NULL)")

    def is_not_null(self) -> Expression:
        """Tell whether the value is not null."""
        return FunctionCall("comparisons.is_not_null", (self,), (), "({0} IS NOT NULL)")

    def isin(self, *values: Any) -> Expression:
        """Tell whether the value is one of these literals, given one by one or as one list."""
        if len(values) == 1 and isinstance(values[0], (list, tuple, set, frozenset)):
            values = tuple(values[0])
        literals = tuple(lit(value) for value in values)
        places = ", ".join(f"{{{place}}}" for place in range(1, len(literals) + 1))
        return FunctionCall("comparisons.isin", (self, *literals), (), f"({{0}} IN ({places}))")

    def between(self, lower: Operand, upper: Operand) -> Expression:
        """Tell whether lower ≤ value ≤ upper."""
        return (self >= lower) & (self <= upper)

    # ---- text ------------------------------------------------------------------------------

    def contains(self, part: Operand) -> Expression:
        """Tell whether the text contains another."""
        return function("text.contains", self, _expression(part))

    def startswith(self, part: Operand) -> Expression:
        """Tell whether the text starts with another."""
        return function("text.startswith", self, _expression(part))

    def endswith(self, part: Operand) -> Expression:
        """Tell whether the text ends with another."""
        return function("text.endswith", self, _expression(part))

    def like(self, pattern: str) -> Expression:
        r"""Match SQL's LIKE: `%` any text, `_` any character, `\` before either for itself."""
        return _with_text("text.like", self, "LIKE", pattern)

    def ilike(self, pattern: str) -> Expression:
        """Match as `like`, upper and lower case alike."""
        return _with_text("text.ilike", self, "ILIKE", pattern)

    def rlike(self, pattern: str) -> Expression:
        """Tell whether a regular expression (Python's, ASCII classes) is found in the text."""
        return _with_text("text.rlike", self, "RLIKE", pattern)

    def substr(self, start: int, length: int) -> Expression:
        """Cut out `length` characters from `start` on, counted from 1, or from the end if < 0."""
        return function("text.substring", self, options=(_constant(start), _constant(length)))

    def __bool__(self) -> bool:
        msg = (
            f"{self} has no truth value before it is evaluated: write & for and, | for or, ~ for"
            " not, and parentheses around comparisons: (col('a') > 0) & (col('b') < 1)"
        )
        raise ExpressionError(msg)

    def __getattr__(self, name: str) -> Any:
        here = CAMEL_CASE.get(name)
        hint = f": it is called {here} here" if here else ""
        msg = f"a column expression has no attribute {name!r}{hint}"
        raise AttributeError(msg)

    def __repr__(self) -> str:
        return f"<{self}>"


@dataclass(frozen=True, eq=False, repr=False)
class ColumnReference(Expression):
    """A column of the batch."""

    name: str

    @property
    def output_name(self) -> str:
        """The column's name."""
        return self.name

    @property
    def plain_column(self) -> str | None:
        """The column's name."""
        return self.name

    def value(self, environment: Environment) -> Value:
        """Return the column as an Arrow array."""
        return environment.column(self.name)

    def _column_names(self) -> Iterator[str]:
        yield self.name

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False, repr=False)
class Literal(Expression):
    """A constant."""

    constant: Any

    def value(self, environment: Environment) -> Value:
        """Return the constant as an Arrow scalar."""
        return environment.scalar(self.constant)

    def __str__(self) -> str:
        if self.constant is None:
            return "NULL"
        plain = isinstance(self.constant, (bool, int, float, str, bytes))
        return repr(self.constant) if plain else str(self.constant)


@dataclass(frozen=True, eq=False, repr=False)
class Alias(Expression):
    """An expression under another name."""

    expression: Expression
    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            msg = f"alias takes a name, not {self.name!r}"
            raise ExpressionError(msg)

    @property
    def output_name(self) -> str:
        """The name given."""
        return self.name

    @property
    def plain_column(self) -> str | None:
        """The column under the new name, if it is only renamed."""
        return self.expression.plain_column

    def children(self) -> tuple[Expression, ...]:
        """Return the named expression."""
        return (self.expression,)

    def value(self, environment: Environment) -> Value:
        """Return the named expression's value."""
        return self.expression.value(environment)

    def __str__(self) -> str:
        return f"{self.expression} AS {self.name}"


@dataclass(frozen=True, eq=False, repr=False)
class FunctionCall(Expression):
    """A kernel applied to other expressions.

    Attributes:
        kernel: "module.function" of `kernels`, imported when first evaluated.
        arguments: what it is applied to.
        options: plain values that the kernel takes after its arguments.
        template: its text, with {0}, {1} … for the arguments.
    """

    kernel: str
    arguments: tuple[Expression, ...]
    options: tuple[Any, ...]
    template: str

    def children(self) -> tuple[Expression, ...]:
        """Return the arguments."""
        return self.arguments

    def value(self, environment: Environment) -> Value:
        """Compute the arguments, then the kernel."""
        values = [argument.value(environment) for argument in self.arguments]
        return environment.call(self, values)

    def __str__(self) -> str:
        return self.template.format(*self.arguments)


class Case(FunctionCall):
    """SQL's CASE: the first value whose condition is true, else null; see `when`."""

    def when(self, condition: Expression, value: Operand) -> Case:
        """Add a condition, tested after the earlier ones, and its value."""
        return _case((*self.arguments[:-1], _condition(condition), _expression(value)), lit(None))

    def otherwise(self, value: Operand) -> Expression:
        """Set the value for rows where no condition is true, and end the chain."""
        last = _expression(value)
        call = _case(self.arguments[:-1], last)
        return FunctionCall(call.kernel, call.arguments, call.options, call.template)


def col(name: str) -> Expression:
    """Refer to a column by its name, which may be empty, as pandas writes its index to CSV."""
    if not isinstance(name, str):
        msg = f"col takes a column's name, not {name!r}"
        raise ExpressionError(msg)
    return ColumnReference(name)


def lit(value: Any) -> Expression:
    """Make a constant column; an expression is returned unchanged.

    An int is an int32 if it fits, else an int64; a float is a float64; a datetime without a zone is
    a timestamp without a zone; numpy scalars keep their type.

    Raises:
        ExpressionError: no column type holds such a value.
    """
    if isinstance(value, Expression):
        return value
    if not isinstance(value, _LITERALS) and not _is_numpy_scalar(value):
        msg = (
            f"a {type(value).__name__} cannot be a literal in an expression: use a number, text,"
            " bytes, a date or time, or None"
        )
        raise ExpressionError(msg)
    if type(value) is int and not -(2**63) <= value < 2**63:
        msg = f"the literal {value} does not fit in 64 bits: use decimal.Decimal"
        raise ExpressionError(msg)
    return Literal(value)


def when(condition: Expression, value: Operand) -> Case:
    """Choose by conditions: `when(col("n") < 0, "below").otherwise("above")`.

    A null condition counts as false; without `otherwise` the remaining rows are null.
    """
    return _case((_condition(condition), _expression(value)), lit(None))


def function(kernel: str, *arguments: Expression, options: tuple[Any, ...] = ()) -> Expression:
    """Build the call of a kernel, shown as `name(arguments, options)`."""
    name = kernel.rpartition(".")[2]
    shown = [f"{{{place}}}" for place in range(len(arguments))]
    shown += [escape(repr(option)) for option in options]
    return FunctionCall(kernel, arguments, options, f"{name}({', '.join(shown)})")


def escape(text: str) -> str:
    """Escape the braces of text that goes into a `FunctionCall.template`."""
    return text.replace("{", "{{").replace("}", "}}")


def _is_numpy_scalar(value: Any) -> bool:
    """Tell whether a value is one of numpy's scalars, without importing numpy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic)


def _expression(value: Operand) -> Expression:
    return value if isinstance(value, Expression) else lit(value)


def _binary(kernel: str, left: Operand, symbol: str, right: Operand) -> Expression:
    return FunctionCall(
        kernel, (_expression(left), _expression(right)), (), f"({{0}} {symbol} {{1}})"
    )


def _constant(value: Operand) -> Any:
    return value.constant if isinstance(value, Literal) else value


def _with_text(kernel: str, text: Expression, symbol: str, pattern: str) -> Expression:
    pattern = _constant(pattern)
    if not isinstance(pattern, str):
        msg = f"{symbol.lower()} takes its pattern as text, not {pattern!r}"
        raise ExpressionError(msg)
    return FunctionCall(kernel, (text,), (pattern,), f"({{0}} {symbol} {escape(repr(pattern))})")


def _condition(condition: Expression) -> Expression:
    if not isinstance(condition, Expression):
        msg = f"when takes a condition such as col('a') > 0, not {condition!r}"
        raise ExpressionError(msg)
    return condition


def _case(branches: tuple[Expression, ...], last: Expression) -> Case:
    parts = [f"WHEN {{{at}}} THEN {{{at + 1}}}" for at in range(0, len(branches), 2)]
    template = f"CASE {' '.join(parts)} ELSE {{{len(branches)}}} END"
    return Case("conditionals.case", (*branches, last), (), template)
