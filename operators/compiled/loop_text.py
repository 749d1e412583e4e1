"""`LoopText`: filters, projections and table look-ups over rows of one schema, as a function.

The function goes through the rows once. For each it computes every expression, and whether the row
passes all filters; it writes what comes out of the row to the next free place of the output, which
moves on only if the row is kept. So the loop has no branch that depends on the data.

::

    loop(rows, counts, selected, times, times_out, c0, o0, m0, …, x0, y0, z0, …, q0, …, r0, …,
         d0, n0, …)

    rows              how many
    counts            int64 (filters,): how many rows pass each operator that may leave some out
    selected          int64 (rows,), or empty: the numbers of the rows that are kept
    times, times_out  int64 (rows,), or empty: event times
    c0, o0, m0        data of an input column, its offsets if it is text, validity if nullable
    x0, y0, z0        of a table: slots, keys and their offsets if they are text; see `UniqueRows`
    q0                values of a table's column that the loop reads at places: those of `x0`
    r0                int64 (rows,): the number of the table's row for each row that is kept
    d0, n0            data of a computed column, validity if it may be null
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from ...configs.errors import WhaleError
from ...transport.wire.arrow import type_to_arrow
from ...transport.wire.batch import Batch
from ..expressions.emitters.code import HELPERS, Code, LoopWriter, NotCompilable
from ..expressions.emitters.trees import code_of
from ..expressions.evaluation import Environment
from ..expressions.kernels.type_rules import is_text
from ..transforms import FilterExpression, MapExpressions
from .coded_texts import CodedParts
from .loop_outputs import AtPlace, Computed, LookedUp, Output, Passed, may_be_at_place
from .table_lookup import TableLookup

if TYPE_CHECKING:
    from ...transport.wire.types import DataType, Schema
    from ..expressions.compiled_function import CompiledFunction
    from ..expressions.expression import Expression
    from ..transform_bases import Transform

__all__ = [
    "ChainWriter",
    "LoopText",
    "NothingToCompute",
    "Step",
    "filters",
    "indented",
    "schema_after",
    "write_loop",
]

Step: TypeAlias = "Transform | TableLookup"
"""An operator of a chain."""

VALUES_MAX = 100
"""Larger loops are not made: with 200 values they took two seconds to compile."""

_KEY_BYTES_MAX = 64
"""Where all keys of a table have one size, up to this, it is a constant of the loop: comparing them
takes no loop over their words."""


class NothingToCompute(NotCompilable):
    """A chain only chooses or renames columns, which costs nothing as it is."""


@dataclass(frozen=True)
class LoopText:
    """A loop, before it is compiled.

    Attributes:
        text: the module that has the functions `loop` and `helpers`.
        helpers: names of functions that `loop` calls.
        nullable: whether it reads the validity of columns.
        is_filter: of each operator, whether it may leave rows out; those that pass are counted.
        lookups: the look-ups in tables, in order.
        numbered: the numbers of those whose rows it tells.
        functions: the user's functions that `loop` calls, by their names there.
        columns: the numbers of the input columns that it reads.
        text_bytes: the least size of the pools of text columns.
        outputs: the columns that come out, in order.
        schemas: what comes out of each operator.
        has_times: whether rows have event times.
        coded: what it reads by codes of texts.
        selects: whether it tells the numbers of the rows that are kept.
    """

    text: str
    helpers: tuple[str, ...]
    nullable: bool
    is_filter: tuple[bool, ...]
    lookups: tuple[TableLookup, ...]
    numbered: tuple[int, ...]
    functions: Mapping[str, CompiledFunction]
    columns: tuple[int, ...]
    text_bytes: int
    outputs: tuple[Output, ...]
    schemas: tuple[Schema, ...]
    has_times: bool
    coded: CodedParts
    selects: bool

    @property
    def filters(self) -> int:
        """How many of the operators filter."""
        return sum(self.is_filter)


def schema_after(step: Step, before: Schema) -> Schema | None:
    """Return the columns that come out of an operator, as the kernels make them; raise as they."""
    if not isinstance(step, TableLookup):
        return step.output_schema(before)
    return None if step.table is None else step.join.output_schema(before, step.table)


def write_loop(
    steps: Sequence[Step],
    schema: Schema,
    *,
    nullable: bool,
    has_times: bool,
    coded: frozenset[int] = frozenset(),
) -> LoopText:
    """Return the loop of a chain of operators over rows of a schema.

    `coded`: the numbers of columns whose texts are codes of a dictionary.

    Raises:
        NotCompilable: one of them cannot be part of a loop; the message says why.
    """
    return ChainWriter(schema, nullable, has_times, coded).loop(steps)


class ChainWriter:
    """Writes the loop of a chain over rows of a schema: what is done for one row, step by step."""

    def __init__(
        self, schema: Schema, nullable: bool, has_times: bool, coded: frozenset[int]
    ) -> None:
        self._schema = schema
        self._has_times = has_times
        self.body = LoopWriter(schema, nullable=nullable, coded=coded)
        self._constants = Environment(Batch.empty(schema))
        self.columns: dict[str, Code | LookedUp | int] = {
            name: at for at, name in enumerate(schema.names)
        }  # an int: that column of the input
        self.conditions: list[str] = []
        self.before_tables = 0  # so many of the conditions stand before all look-ups
        self.lookups: list[TableLookup] = []
        self.rows_found: list[str] = []
        self._probes: dict[int, int] = {}
        self.places: dict[int, str] = {}  # of look-ups by distance, by their number

    def take(self, steps: Sequence[Step]) -> list[Schema]:
        """Write the steps of a chain; return what comes out of each; raise NotCompilable."""
        schemas: list[Schema] = []
        for step in steps:
            if isinstance(step, TableLookup) and step.refusal:
                raise NotCompilable(step.refusal)
            schemas.append(self._schema_after(step, schemas[-1] if schemas else self._schema))
            if isinstance(step, FilterExpression):
                self._filter(step.condition)
            elif isinstance(step, MapExpressions):
                self._map(step.expressions, step.keeps)
            elif isinstance(step, TableLookup):
                self._look_up(step)
            else:
                msg = "a function of Python"
                raise NotCompilable(msg)
        return schemas

    def loop(self, steps: Sequence[Step]) -> LoopText:
        """Return the loop that writes out the rows of a chain; raise NotCompilable."""
        schemas = self.take(steps)
        outputs = self._outputs(schemas[-1])
        computes = self.lookups or any(isinstance(one, Computed) for one in outputs)
        if not self.conditions and not computes:
            msg = "it only chooses or renames columns"
            raise NothingToCompute(msg)
        selects = bool(self.conditions) and any(
            isinstance(one, Passed) and not one.copied for one in outputs
        )
        self.check_size()
        looked_up = {one.lookup for one in outputs if isinstance(one, LookedUp)}
        numbered = tuple(sorted(looked_up))
        text = self._text(outputs, [*self.columns.values()], selects, numbered)
        return LoopText(
            text,
            tuple(sorted(self.body.helpers)),
            self.body.nullable,
            tuple(filters(one) for one in steps),
            tuple(self.lookups),
            numbered,
            self.body.functions,
            tuple(sorted(self.body.columns)),
            self.body.text_bytes,
            tuple(outputs),
            tuple(schemas),
            self._has_times,
            self.coded_parts,
            selects,
        )

    @property
    def coded_parts(self) -> CodedParts:
        """What the loop reads by codes of texts, once all of it is written."""
        read = self.body.coded & self.body.columns
        return CodedParts(frozenset(read), tuple(self.body.tables), dict(self._probes))

    def check_size(self) -> None:
        """Raise NotCompilable if it would take too long to compile."""
        if len(self.body.lines) > VALUES_MAX:
            msg = f"more than {VALUES_MAX} values in a loop"
            raise NotCompilable(msg)

    def _schema_after(self, step: Step, before: Schema) -> Schema:
        """Return the columns as the kernels make them; the loop's must be the same."""
        try:
            after = schema_after(step, before)
        except WhaleError as error:
            raise NotCompilable(str(error)) from None
        if after is None:
            msg = "a function of Python"
            raise NotCompilable(msg)
        return after

    def _filter(self, condition: Expression) -> None:
        code = self.code(condition)
        passes = code.value if code.valid is None else f"{code.value} & {code.valid}"
        if code.constant is not None and code.valid is not None:
            passes = "False"
        self._let_pass(passes)

    def _let_pass(self, passes: str) -> None:
        before = self.conditions[-1:]
        self.conditions.append(self.body.let(" & ".join([*before, f"({passes})"])))
        if not self.lookups:
            self.before_tables += 1
        self.body.passing = self.conditions[-1]

    def _look_up(self, lookup: TableLookup) -> None:
        """Find the row of the table.

        Where keys are hashed, only for rows that have passed so far: there a branch pays.
        """
        key, number = self._key(lookup.join.left_keys[0]), len(self.lookups)
        if is_text(key.kind):
            found = self._find_text(lookup, key.value, number)
        elif lookup.is_dense:
            place = f"np.uint64(np.int64({key.value})) - least{number}"
            if key.valid:
                place = f"{place} if {key.valid} else others{number}"
            if not lookup.place_tells:
                place = f"min({place}, others{number})"
            place = self.places[number] = self.body.let(place)
            found = f"np.int64(x{number}[{self._place(number)}])"
        else:
            find = self.body.helper("row_of_integer")
            found = f"{find}(np.int64({key.value}), x{number}, y{number})"
        has_to = " & ".join([*self.conditions[-1:], *([key.valid] if key.valid else [])])
        if has_to and not lookup.is_dense:
            found = f"{found} if {has_to} else np.int64(-1)"
        found = self.body.let(found)
        self.lookups.append(lookup)
        if lookup.filters:
            if lookup.place_tells:
                place = self.places[number]
                there, missing = f"{place} < others{number}", f"{place} >= others{number}"
            else:
                there, missing = f"{found} >= 0", f"{found} < 0"
            self._let_pass(missing if lookup.join.how == "anti" else there)
            self.rows_found.append(found)
        else:  # the table's row of nulls stands before all others
            self.rows_found.append(f"max({found}, np.int64(-1)) + np.int64(1)")
        if lookup.join.only_left_columns:
            return
        assert lookup.table is not None
        for name in lookup.join.right_names(lookup.table.names):
            self.columns[name] = LookedUp(number, name)

    def _place(self, number: int) -> str:
        """Return the text of a place in the slots, also for a key that has no place of its own."""
        return f"min({self.places[number]}, others{number})"

    def _find_text(self, lookup: TableLookup, at: str, number: int) -> str:
        """Return the text that finds the row of the table by the text of a column."""
        find, rows = self.body.text_finder(), f"x{number}, y{number}, z{number}"
        begin, end = self.body.text_ends(at)
        if int(at) in self.body.coded:
            self._probes[number] = int(at)
            find = self.body.helper("row_of_entry")
            return f"{find}(h{number}, {self.body.entry(at)}, c{at}, {begin}, {end}, {rows})"
        size = f"{end} - {begin}"
        same = lookup.key_bytes
        if same is None or same > _KEY_BYTES_MAX:
            return f"{find}(c{at}, {begin}, {size}, {rows})"
        found = f"{find}(c{at}, {begin}, np.uint64({same}), {rows})"
        return f"({found} if {size} == {same} else np.int64(-1))"

    def _key(self, name: str) -> Code:
        column = self.columns[name]
        if isinstance(column, LookedUp):
            msg = f"{name}, a column of a table, as a key"
            raise NotCompilable(msg)
        key = column if isinstance(column, Code) else self.body.column(self._schema.names[column])
        if key.constant is not None or not (is_text(key.kind) or pa.types.is_integer(key.kind)):
            msg = f"{name} as a key"
            raise NotCompilable(msg)
        return key

    def _map(self, expressions: Mapping[str, Expression], keeps: bool) -> None:
        columns = dict(self.columns) if keeps else {}
        for name, expression in expressions.items():
            plain = expression.plain_column
            columns[name] = self.code(expression) if plain is None else self.columns[plain]
        self.columns = columns

    def code(self, expression: Expression) -> Code:
        """Return the code of an expression over the columns so far; raise NotCompilable."""
        known = {name: one for name, one in self.columns.items() if isinstance(one, Code)}
        renamed = {}
        for name, column in self.columns.items():
            if isinstance(column, Code) or name not in expression.columns:
                continue
            if isinstance(column, LookedUp):
                msg = f"{name}, a column of a table, in {expression}"
                raise NotCompilable(msg)
            renamed[name] = self.body.column(self._schema.names[column])
        return code_of(expression, self.body, {**known, **renamed}, self._constants)

    def _outputs(self, schema: Schema) -> list[Output]:
        outputs: list[Output] = []
        for field, made in zip(schema, self.columns.values(), strict=True):
            if isinstance(made, LookedUp):
                is_at_place = may_be_at_place(self.lookups[made.lookup], made.name)
                at_place = AtPlace(made.lookup, made.name, field.type)
                outputs.append(at_place if is_at_place else made)
                continue
            if isinstance(made, int):
                outputs.append(Passed(made, self._is_copied(made)))
                continue
            if made.kind != type_to_arrow(field.type):
                msg = f"a column of {made.kind}, which the kernels make {field.type},"
                raise NotCompilable(msg)
            if not made.value or (made.constant is not None and pa.types.is_null(made.kind)):
                msg = f"a column of constant {field.type}"
                raise NotCompilable(msg)
            if is_text(made.kind):
                outputs.append(self._same_text(made, field.type))
                continue
            outputs.append(Computed(field.type, made.valid is not None))
        return outputs

    def _same_text(self, made: Code, kind: DataType) -> Passed:
        """Return the column of text that an expression leaves as it is: F.coalesce("s")."""
        if made.constant is not None or self._schema.fields[int(made.value)].type != kind:
            msg = f"a column of {kind} that no input is"
            raise NotCompilable(msg)
        return Passed(int(made.value), copied=False)

    def _is_copied(self, column: int) -> bool:
        """Whether the loop copies a column, if it filters; else those of the rows are gathered."""
        if not self.conditions:
            return False
        type_ = self._schema.fields[column].type
        try:
            self.body.column(self._schema.names[column])
        except NotCompilable:
            return False
        return type_.kind == "fixed"

    def _text(
        self,
        outputs: Sequence[Output],
        made: Sequence[Code | LookedUp | int],
        selects: bool,
        numbered: Sequence[int],
    ) -> str:
        stores = self._stores(outputs, made, selects, numbered)
        before_last = self.conditions[:-1]
        counts = [f"f{at} += np.uint64({one})" for at, one in enumerate(before_last)]
        if self.conditions:
            counts.append(f"k += np.uint64({self.conditions[-1]})")
        parts = self.before_loop()
        parts.append(f"\ndef loop({', '.join(self._arguments(outputs, numbered))}):\n")
        counters = [*(f"f{at}" for at in range(len(before_last))), "k"]
        before = [*self.lookup_lines(), *(f"{name} = np.uint64(0)" for name in counters)]
        after = [f"counts[{at}] = {name}" for at, name in enumerate(counters) if self.conditions]
        parts.append(indented(before, 1) + "    for i in range(np.uint64(rows)):\n")
        parts.append(indented([*self.body.lines, *stores, *counts], 2) + indented(after, 1))
        return "".join(parts)

    def _stores(
        self,
        outputs: Sequence[Output],
        made: Sequence[Code | LookedUp | int],
        selects: bool,
        numbered: Sequence[int],
    ) -> list[str]:
        """Return the lines that write a row, at the place of the next one that passes."""
        place = "k" if self.conditions else "i"
        stores = []
        if selects:
            stores.append(f"selected[{place}] = i")
        if self._has_times and self.conditions:
            stores.append(f"times_out[{place}] = times[i]")
        stores += [f"r{number}[{place}] = {self.rows_found[number]}" for number in numbered]
        for number, (output, one) in enumerate(zip(outputs, made, strict=True)):
            if isinstance(output, Passed):
                if output.copied:
                    stores.append(f"d{number}[{place}] = c{output.column}[i]")
                    if self.body.nullable:
                        stores.append(f"n{number}[{place}] = m{output.column}[i]")
            elif isinstance(output, AtPlace):
                stores.append(f"d{number}[{place}] = q{number}[{self._place(output.lookup)}]")
            elif isinstance(one, Code) and isinstance(output, Computed):
                stores.append(f"d{number}[{place}] = {one.value}")
                if output.nullable:
                    stores.append(f"n{number}[{place}] = {one.valid}")
        return stores

    def before_loop(self) -> list[str]:
        """Return the text of what stands before the function: constants, then helpers.

        Of the user's functions it tells what they compute, so that a loop is kept for these alone.
        """
        functions = self.body.functions.items()
        parts = [f"# {name}: {one.fingerprint()}\n" for name, one in functions]
        parts += [f"{name} = {text}\n" for name, text in self.body.constants.items()]
        return parts + [HELPERS[name] for name in sorted(self.body.helpers)]

    def lookup_lines(self) -> list[str]:
        """Return the lines that stand before the first row where keys are found by distance."""
        return [
            f"least{at}, others{at} = np.uint64(y{at}[0]), np.uint64(len(x{at}) - 1)"
            for at in self.places
        ]

    def inputs(self) -> list[str]:
        """Return the names of the arguments that are read: columns, then what is of tables."""
        names = []
        for at in sorted(self.body.columns):
            names.append(f"c{at}")
            if self._schema.fields[at].type.kind == "bytes":
                names.append(f"o{at}")
            if at in self.body.coded:
                names.append(f"j{at}")
            if self.body.nullable:
                names.append(f"m{at}")
        for number, lookup in enumerate(self.lookups):
            names += [f"{letter}{number}" for letter in ("xyz" if lookup.by_text else "xy")]
        for number, table in enumerate(self.body.tables):
            names += [f"t{number}", f"w{number}"] if table.nullable else [f"t{number}"]
        return [*names, *(f"h{number}" for number in self._probes)]

    def _arguments(self, outputs: Sequence[Output], numbered: Sequence[int]) -> list[str]:
        names = ["rows", "counts", "selected", "times", "times_out", *self.inputs()]
        names += [f"q{number}" for number, one in enumerate(outputs) if isinstance(one, AtPlace)]
        names += [f"r{number}" for number in numbered]
        for number, output in enumerate(outputs):
            if isinstance(output, AtPlace):
                names.append(f"d{number}")
            elif isinstance(output, Computed) or (isinstance(output, Passed) and output.copied):
                names.append(f"d{number}")
                if output.nullable if isinstance(output, Computed) else self.body.nullable:
                    names.append(f"n{number}")
        return names


def filters(step: Step) -> bool:
    """Whether an operator may leave rows out."""
    return step.filters if isinstance(step, TableLookup) else isinstance(step, FilterExpression)


def indented(lines: Sequence[str], depth: int) -> str:
    """Return lines as a block of text."""
    return textwrap.indent("".join(f"{line}\n" for line in lines), "    " * depth)
