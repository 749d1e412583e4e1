"""`AggregatingText`: a chain of operators and the partial aggregate behind it, as one function.

The function goes through the rows once. Each row that passes all filters is assigned to its slice
of time, its group is found in a small hash table, and the group's state is updated. Rows are
written nowhere. Where a group must be added and there is no room, the function returns before that
row and is called again from there.

::

    loop(start, rows, counts, marks, times, c0, o0, m0, …, x0, y0, z0, …, e0, …,
         s0, p0, q0, n0, …, index, groups)

    start, rows  the first row, and how many there are
    counts       int64 (filters,): how many rows passed each operator that may leave some out
    marks        int64 (4,): groups in use, how many there may be, the earliest and the latest event
                 time of a row that was aggregated; see `LoopGroups`
    times        int64 (rows,), or empty: event times
    c0 … z0      as in `LoopText`
    e0           int32: the code of a key that is a column of a table, by the table's row
    s0 … n0      of another key of text: its codes; see `TextCodes`
    index        int32 (2^k,): the number of a group, or −1
    groups       records: hash, slice, which keys are null, keys, states

    It returns the row before which it stopped.

A branch stands before the group is looked up: rows that were dropped must not reach the table. The
slice of the row before is tried first, since rows come nearly in order; so most rows need no
division.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from ...configs.errors import WhaleError
from ...transport.wire.arrow import type_to_arrow
from ..aggregates.loop_updates import field_name, update_lines
from ..expressions.emitters.code import Code, NotCompilable
from ..expressions.kernels.type_rules import is_text
from ..windows.slices import ClockSlices, TimeSlices, WholeInput, slices_of
from .coded_texts import CodedParts
from .loop_text import ChainWriter, LookedUp, Step, filters, indented

if TYPE_CHECKING:
    from typing import Any

    from ...transport.wire.types import Schema
    from ..expressions.compiled_function import CompiledFunction
    from ..windows.aggregation import Aggregation
    from .table_lookup import TableLookup

__all__ = ["AggregatingText", "CodedKey", "write_aggregating_loop"]

_KEYS_MAX = 64
_OF_TEXTS = "spqn"
"""The arguments of a key of text."""
_STOP = ("    stop = np.int64(i)", "    break")


@dataclass(frozen=True)
class CodedKey:
    """A key that is a column of a table: rows with the same value have the same code."""

    lookup: int
    name: str


@dataclass(frozen=True)
class AggregatingText:
    """A loop that ends in an aggregate, before it is compiled.

    Attributes:
        text: the module that has the functions `loop` and `helpers`.
        helpers: names of functions that `loop` calls.
        functions: the user's functions that `loop` calls, by their names there.
        nullable: whether it reads the validity of columns.
        is_filter: of each operator, whether it may leave rows out; those that pass are counted.
        lookups: the look-ups in tables, in order.
        columns: the numbers of the input columns that it reads.
        text_bytes: the least size of the pools of text columns.
        schemas: what comes out of each operator.
        before: the columns of the rows that are aggregated.
        has_times: whether rows have event times.
        codes: of each key that is a column of a table, by its number.
        texts: the numbers of the other keys that are text.
        coded: what it reads by codes of texts.
        coded_keys: of each of `texts` whose column is coded, the column.
        record: numpy's type of a group.
    """

    text: str
    helpers: tuple[str, ...]
    functions: Mapping[str, CompiledFunction]
    nullable: bool
    is_filter: tuple[bool, ...]
    lookups: tuple[TableLookup, ...]
    columns: tuple[int, ...]
    text_bytes: int
    schemas: tuple[Schema, ...]
    before: Schema
    has_times: bool
    codes: dict[int, CodedKey]
    texts: tuple[int, ...]
    coded: CodedParts
    coded_keys: dict[int, int]
    record: np.dtype[Any]

    @property
    def filters(self) -> int:
        """How many of the operators filter."""
        return sum(self.is_filter)


def write_aggregating_loop(
    steps: Sequence[Step],
    asked: Aggregation,
    schema: Schema,
    *,
    nullable: bool,
    has_times: bool,
    coded: frozenset[int] = frozenset(),
) -> AggregatingText:
    """Return the loop of a chain of operators, none at times, and the aggregate behind it.

    `coded` as for `write_loop`.

    Raises:
        NotCompilable: one of them cannot be part of a loop; the message says why.
    """
    chain = ChainWriter(schema, nullable, has_times, coded)
    return _Ending(asked, chain, schema, has_times).loop(steps)


class _Ending:
    def __init__(
        self, asked: Aggregation, chain: ChainWriter, schema: Schema, has_times: bool
    ) -> None:
        self._asked, self._chain, self._schema = asked, chain, schema
        self._has_times = has_times
        self._fields: list[Any] = [("hash", np.uint64), ("slice", np.int64), ("nulls", np.uint64)]
        self._codes: dict[int, CodedKey] = {}
        self._texts: list[int] = []
        self._coded_keys: dict[int, int] = {}
        self._compared = ["r.slice == slice_", "r.nulls == nulls"]
        self._new = ["r.hash = hashed", "r.slice = slice_", "r.nulls = nulls"]

    def loop(self, steps: Sequence[Step]) -> AggregatingText:
        chain = self._chain
        schemas = chain.take(steps)
        before = schemas[-1] if schemas else self._schema
        in_group = [*self._slice_lines(), *self._key_lines(before)]
        updates = self._updates(before)
        chain.check_size()
        return AggregatingText(
            self._text(in_group, updates),
            tuple(sorted(chain.body.helpers)),
            chain.body.functions,
            chain.body.nullable,
            tuple(filters(one) for one in steps),
            tuple(chain.lookups),
            tuple(sorted(chain.body.columns)),
            chain.body.text_bytes,
            tuple(schemas),
            before,
            self._has_times,
            self._codes,
            tuple(self._texts),
            chain.coded_parts,
            self._coded_keys,
            np.dtype(self._fields, align=True),
        )

    def _slice_lines(self) -> list[str]:
        """Return the lines that set `slice_`, for times that `TimeSlices.takes` lets through."""
        slices = slices_of(self._asked)
        if isinstance(slices, WholeInput):
            return []
        if not isinstance(slices, TimeSlices) or isinstance(slices, ClockSlices):
            msg = "windows that are not told by event time"
            raise NotCompilable(msg)
        window = self._asked.window
        slide, origin, rest = slices.slide_ns, slices.origin_ns, slices.rest_ns
        assert window is not None
        lines = [
            f"slice_ = (time - {origin}) // {slide}",
            f"begin = {origin} + slice_ * {slide}",
            f"end = begin + {slide}",
        ]
        if rest:
            lines += [
                "slice_ = 2 * slice_",
                f"if time - begin >= {rest}:",
                f"    begin, slice_ = begin + {rest}, slice_ + 1",
                "else:",
                f"    end = begin + {rest}",
            ]
        return ["if time < begin or time >= end:", *(f"    {line}" for line in lines)]

    def _key_lines(self, before: Schema) -> list[str]:
        """Return the lines that set `hashed` and `nulls`."""
        lines = ["hashed = np.uint64(slice_) * np.uint64(0x9E3779B97F4A7C15)"]
        nulls = []
        if len(self._asked.keys) > _KEYS_MAX:
            msg = f"more than {_KEYS_MAX} keys"
            raise NotCompilable(msg)
        for number, name in enumerate(self._asked.keys):
            value, valid, kind = self._key(number, name, before)
            if valid is not None:  # the value of a null key may be anything
                value = f"({value} if {valid} else {kind}(0))"
                nulls.append(f"(np.uint64(not {valid}) << np.uint64({number}))")
            lines.append(f"key{number} = {value}")
            if number in self._texts:
                lines += [f"if key{number} < 0:", *_STOP]
            lines += [
                f"hashed ^= np.uint64(np.int64(key{number}))",
                "hashed *= np.uint64(0x9E3779B185EBCA87)",
                "hashed ^= hashed >> np.uint64(32)",
            ]
            self._compared.append(f"r.k{number} == key{number}")
            self._new.append(f"r.k{number} = key{number}")
        return [*lines, f"nulls = {' | '.join(nulls) or 'np.uint64(0)'}"]

    def _key(self, number: int, name: str, before: Schema) -> tuple[str, str | None, str]:
        """Return the text of a key's value, whether it is valid, and the type that it is kept in.

        Raises:
            NotCompilable: keys of its type are not compared by their bits, or have no fixed width.
        """
        column = self._chain.columns.get(name)
        kind = before.field(name).type if name in before else None
        if column is None or kind is None:
            msg = f"no column {name} to group by"
            raise NotCompilable(msg)
        arrow = type_to_arrow(kind)
        if pa.types.is_floating(arrow):
            msg = f"{name}, a key of type {kind}"
            raise NotCompilable(msg)
        if isinstance(column, LookedUp):
            self._codes[number] = CodedKey(column.lookup, column.name)
            self._fields.append((f"k{number}", np.int32))
            found = self._chain.rows_found[column.lookup]
            return f"e{number}[np.uint64({found})]", None, "np.int32"
        code = column if isinstance(column, Code) else self._chain.body.column(self._named(column))
        if code.constant is not None or code.kind != arrow or not code.value:
            msg = f"{name} as a key"
            raise NotCompilable(msg)
        if is_text(arrow):
            return self._code_of_text(number, code.value), code.valid, "np.int64"
        self._fields.append((f"k{number}", kind.storage))
        return code.value, code.valid, _constructor(kind.storage)

    def _code_of_text(self, number: int, column: str) -> str:
        self._texts.append(number)
        self._fields.append((f"k{number}", np.int32))
        self._chain.body.text_finder()
        body = self._chain.body
        find, known = body.helper("code_of_text"), ""
        if int(column) in body.coded:
            self._coded_keys[number] = int(column)
            find, known = body.helper("code_of_entry"), f"g{number}, {body.entry(column)}, "
        ends = ", ".join(body.text_ends(column))
        texts = ", ".join(f"{letter}{number}" for letter in _OF_TEXTS)
        return f"{find}({known}c{column}, {ends}, {texts})"

    def _named(self, column: int) -> str:
        return self._schema.names[column]

    def _updates(self, before: Schema) -> list[str]:
        lines: list[str] = []
        try:
            accumulators = self._asked.accumulators(before)
        except WhaleError as error:
            raise NotCompilable(str(error)) from None
        for number, (aggregate, accumulator) in enumerate(
            zip(self._asked.aggregates, accumulators, strict=True)
        ):
            inputs = [self._chain.code(one) for one in aggregate.inputs]
            for code, expression in zip(inputs, aggregate.inputs, strict=True):
                expected = type_to_arrow(expression.output_type(before))
                if code.kind != expected:
                    msg = f"a column of {code.kind}, which the kernels make {expected},"
                    raise NotCompilable(msg)
            lines += update_lines(aggregate, accumulator, number, inputs)
            for field in accumulator.fields:
                name = field_name(number, field.name)
                self._fields.append((name, field.dtype))
                self._new.append(f"r.{name} = {field.initial!r}")
        return lines

    def _text(self, in_group: Sequence[str], updates: Sequence[str]) -> str:
        chain = self._chain
        conditions = chain.conditions
        per_row = ["time = times[i]"] if self._has_times else []
        per_row += [
            *in_group,
            "place = (hashed ^ (hashed >> np.uint64(29))) & mask",
            "group = index[place]",
            "while group >= 0:",
            "    r = groups[np.uint64(group)]",
            f"    if {' and '.join(self._compared)}:",
            "        break",
            "    place = (place + np.uint64(1)) & mask",
            "    group = index[place]",
            "if group < 0:",
            "    if used == limit:",
            *(f"    {line}" for line in _STOP),
            "    index[place] = used",
            "    r = groups[np.uint64(used)]",
            "    used += 1",
            *(f"    {line}" for line in self._new),
            *updates,
        ]
        if self._has_times:
            per_row += ["earliest = min(earliest, time)", "latest = max(latest, time)"]
        if conditions:
            per_row = _counted(conditions, per_row)
        before = [
            "used, limit, earliest, latest = marks[0], marks[1], marks[2], marks[3]",
            "mask, stop = np.uint64(len(index) - 1), rows",
            "slice_, begin, end = np.int64(0), np.int64(1), np.int64(0)",
            *(f"f{at} = np.uint64(0)" for at in range(len(conditions))),
        ]
        after = [f"counts[{at}] += np.int64(f{at})" for at in range(len(conditions))]
        after += ["marks[0], marks[2], marks[3] = used, earliest, latest", "return stop"]
        parts = chain.before_loop()
        names = ["start", "rows", "counts", "marks", "times", *chain.inputs()]
        names += [f"e{number}" for number in self._codes]
        for number in self._texts:
            names += [f"{letter}{number}" for letter in _OF_TEXTS]
            if number in self._coded_keys:
                names.append(f"g{number}")
        names += ["index", "groups"]
        parts.append(f"\ndef loop({', '.join(names)}):\n")
        parts.append(indented(before, 1))
        parts.append("    for i in range(np.uint64(start), np.uint64(rows)):\n")
        parts.append(indented([*chain.body.lines, *per_row], 2) + indented(after, 1))
        return "".join(parts)


def _counted(conditions: Sequence[str], in_group: Sequence[str]) -> list[str]:
    """Return the lines that count the rows that pass each filter, and what is done if all are.

    Each condition holds all those before it. Counted where the branches are, rows cost less than
    with an addition for each.
    """
    lines: list[str] = []
    for at in reversed(range(len(conditions))):
        lines.append(f"{'elif' if lines else 'if'} {conditions[at]}:")
        inside = [] if at < len(conditions) - 1 else in_group
        counts = [f"f{one} += np.uint64(1)" for one in range(at + 1)]
        lines += [f"    {line}" for line in (*inside, *counts)]
    return lines


def _constructor(storage: np.dtype[Any]) -> str:
    return "np.bool_" if storage == np.bool_ else f"np.{storage.name}"
