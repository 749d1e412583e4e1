"""`AggregatingText`: a chain of operators and the partial aggregate behind it, as one function.

The function goes through the rows by blocks. In each it first writes down, without a branch, which
rows pass the filters that stand before all look-ups in tables: a selection vector, as in
MonetDB/X100 (Boncz et al. 2005, section 4.1). Then it goes through these rows alone. Each is
assigned to its slice of time, its group is found in a small hash table, and the group's state is
updated. Rows are written nowhere.

::

    loop(rows, counts, marks, progress, selected, times, earliest, latest, c0, o0, m0, …,
         x0, y0, z0, …, e0, …, s0, p0, q0, n0, …, direct, index, groups)

    rows         how many
    counts       int64 (filters,): how many rows passed each operator that may leave some out
    marks        int64 (4,): see `LoopGroups`
    progress     int64 (3,): the next of the rows in `selected`, how many these are, and the row
                 behind their block; without such filters `selected` stands for all rows
    selected     uint32 (BLOCK_ROWS,): the rows of a block that pass
    times        int64 (rows,), or empty: event times
    earliest     int64 (blocks,): the earliest time of each block, if slices are told by time
    latest       int64 (blocks,): the latest, likewise
    c0 … z0      as in `LoopText`
    e0           int32: the code of a key that is a column of a table, times `GOLDEN`; by the
                 table's row, or by the place in `x0` of a look-up by distance
    s0 … n0      of another key of text: its codes; see `TextCodes`
    direct       int32 (2 × places,), or empty: for slices of even and of odd number, the number
                 of the last group of each place of a table, or 0
    index        int32 (2^k,): the number of a group, or 0
    groups       records: hash, slice, which keys are null, keys, states

    It returns whether it has taken all rows. Else there is no room for the group, or the text, of
    the next one: then it is called again, with the same `progress`.

Keys are multiplied by odd constants, of which the first is 2^64 divided by the golden ratio: then
the integers of a small range have places of their own (Fibonacci hashing, Knuth, volume 3, section
6.4). Codes of a table's column were multiplied before (`GOLDEN`); a second such key is multiplied
again. So the first look at the index mostly finds the group. All else leaves the inner loop:
another slice, a new group, and one that has collided with another, which then change places.

Where the only key is a column of a table with dense keys, the group stands at the place of the
table's row in `direct`, without a hash. One that is of another slice leaves the inner loop, too.

Times of rows are read only in a block that does not lie in one slice, or may lower the earliest
time. They are noted before a row's group is found, so that the inner loop asks once: the earliest
time may be that of the next row, which found no room.
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
from ..windows.block_times import BLOCK_ROWS
from ..windows.loop_groups import GROUPS_MAX
from .coded_texts import CodedParts
from .loop_arguments import rows_of
from .loop_outputs import LookedUp
from .loop_text import ChainWriter, Step, filters, indented
from .slice_lines import BY_ROW_LINES, slice_lines

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
        direct: the look-up by distance whose places tell groups; None if none does.
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
    direct: int | None

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
        self._direct: int | None = None
        self._compared = ["(r.slice == slice_)", "(r.nulls == nulls)"]
        self._carried = ["hashed = np.uint64(0)", "nulls = np.uint64(0)"]
        self._new = ["r.hash = hashed", "r.slice = slice_", "r.nulls = nulls"]

    def loop(self, steps: Sequence[Step]) -> AggregatingText:
        chain = self._chain
        schemas = chain.take(steps)
        before = schemas[-1] if schemas else self._schema
        slices, keys = slice_lines(self._asked), self._key_lines(before)
        updates = self._updates(before)
        chain.check_size()
        return AggregatingText(
            self._text(slices, keys, updates),
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
            self._direct,
        )

    def _key_lines(self, before: Schema) -> list[str]:
        """Return the lines that set the keys, `hashed` and `nulls`, and leave the loop at some."""
        lines = []
        hashed, nulls = ["slice_hash"], []
        if len(self._asked.keys) > _KEYS_MAX:
            msg = f"more than {_KEYS_MAX} keys"
            raise NotCompilable(msg)
        for number, name in enumerate(self._asked.keys):
            value, valid, kind = self._key(number, name, before)
            if valid is not None:  # the value of a null key may be anything
                value = f"({value} if {valid} else {kind}(0))"
                nulls.append(f"(np.uint64(not {valid}) << np.uint64({number}))")
            lines.append(f"key{number} = {kind}({value})")
            if number in self._texts:
                lines += [f"if key{number} < 0:", "    break"]
            lines.append(f"word{number} = np.uint64(np.int64(key{number}))")
            # Codes were multiplied before, all by the same number: this suffices for one key of
            # them, but sums of two would be the same for many groups.
            if list(self._codes) == [number]:
                hashed.append(f"(word{number} << np.uint64(32))")
            else:
                hashed.append(f"word{number} * np.uint64({_factor(number)})")
                if kind in _WIDE:
                    lines.append(f"word{number} ^= word{number} >> np.uint64(32)")
            self._carried.append(f"key{number} = {kind}(0)")
            self._compared.append(f"(r.k{number} == key{number})")
            self._new.append(f"r.k{number} = key{number}")
        if nulls:
            lines.append(f"nulls = {' | '.join(nulls)}")
        return [*lines, f"hashed = {' + '.join(hashed)}"]

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
            places, rows = self._chain.places, self._chain.rows_found
            found = places.get(column.lookup, rows[column.lookup])
            if column.lookup in places and len(self._asked.keys) == 1:
                self._note_direct(column.lookup)
            return f"e{number}[np.uint64({found})]", None, "np.int32"
        code = column if isinstance(column, Code) else self._chain.body.column(self._named(column))
        if code.constant is not None or code.kind != arrow or not code.value:
            msg = f"{name} as a key"
            raise NotCompilable(msg)
        if is_text(arrow):
            return self._code_of_text(number, code.value), code.valid, "np.int64"
        self._fields.append((f"k{number}", kind.storage))
        return code.value, code.valid, _constructor(kind.storage)

    def _note_direct(self, lookup: int) -> None:
        if len(rows_of(self._chain.lookups[lookup]).slots) <= GROUPS_MAX:  # else mostly empty
            self._direct = lookup
            self._carried.append("spot = np.uint64(0)")

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

    # -- the text -----------------------------------------------------------------------------

    def _text(self, slices: Sequence[str], keys: Sequence[str], updates: Sequence[str]) -> str:
        chain = self._chain
        counted = range(len(self._selecting) - 1)
        before = [
            *chain.lookup_lines(),
            "used, limit, moment = marks[0], marks[1], marks[2]",
            "shift, mask = np.uint64(marks[3]), np.uint64(len(index) - 1)",
            "at, count = np.uint64(progress[0]), np.uint64(progress[1])",
            "first = np.uint64(progress[2])",
            "slice_, slice_hash = np.int64(0), np.uint64(0)",
            "begin, width, by_row = np.int64(0), np.uint64(0), True",
            "done, selecting, begun = True, count - at, at",
            *(f"f{one} = np.uint64(0)" for one in counted),
            "while True:",
            *_deeper(self._block_lines(bool(slices)), 1),
            *_deeper(self._carried, 1),
            *_deeper(self._half_lines(), 1),
            "    n = at",
            "    while n < count:",
            *_deeper(self._row_lines(bool(slices), keys, updates), 2),
            "        n += np.uint64(1)",
            "    at = n",
            "    if n == count:",
            "        continue",
        ]
        if slices:
            before += [f"    time = times[{self._row_at('at')}]"]
            before += ["    if by_row and np.uint64(time - begin) >= width:"]
            before += [*_deeper(slices, 2), "        continue"]
        before += _deeper(self._missed_lines(), 1)
        before += [*self._count_lines(), "marks[0], marks[2] = used, moment"]
        before += ["progress[0], progress[1], progress[2] = at, count, first", "return done"]
        names = ["rows", "counts", "marks", "progress", "selected", "times", "earliest", "latest"]
        names += [*chain.inputs()]
        names += [f"e{number}" for number in self._codes]
        for number in self._texts:
            names += [f"{letter}{number}" for letter in _OF_TEXTS]
            if number in self._coded_keys:
                names.append(f"g{number}")
        names += ["direct", "index", "groups"]
        parts = chain.before_loop()
        parts.append(f"\ndef loop({', '.join(names)}):\n")
        return "".join([*parts, indented(before, 1)])

    def _half_lines(self) -> list[str]:
        if self._direct is None:
            return []
        return [f"half = np.uint64(slice_ & 1) * np.uint64(len(x{self._direct}))"]

    @property
    def _selecting(self) -> Sequence[str]:
        """The conditions that stand before all look-ups."""
        return self._chain.conditions[: self._chain.before_tables]

    def _block_lines(self, has_slices: bool) -> list[str]:
        """Return the lines that begin a block where one has ended, or end the loop."""
        selecting, body = self._selecting, self._chain.body
        lines = ["if at == count:", "    if first == np.uint64(rows):", "        break"]
        if not selecting and not has_slices:
            return [*lines, "    at, count, first = first, np.uint64(rows), np.uint64(rows)"]
        lines.append(f"    last = min(first + np.uint64({BLOCK_ROWS}), np.uint64(rows))")
        if has_slices:
            lines += _deeper(BY_ROW_LINES, 1)
        if not selecting:
            return [*lines, "    at, count, first = first, last, last"]
        counted = [f"f{at} += np.uint64({one})" for at, one in enumerate(selecting[:-1])]
        lines += [
            "    at, count = np.uint64(0), np.uint64(0)",
            "    for i in range(first, last):",
            *_deeper(body.lines_for(selecting), 2),
            *_deeper(counted, 2),
            "        selected[count] = np.uint32(i)",
            f"        count += np.uint64({selecting[-1]})",
            "    selecting += count",
            "    first = last",
        ]
        return lines

    def _row_lines(
        self, has_slices: bool, keys: Sequence[str], updates: Sequence[str]
    ) -> list[str]:
        """Return the lines that take a row whose group is found at once, or leave the loop."""
        chain, selecting = self._chain, self._selecting
        looked_up = chain.conditions[chain.before_tables :]
        lines = [f"i = {self._row_at('n')}"]
        lines += chain.body.lines_for([*looked_up, *keys, *updates], selecting)
        in_group = []
        if has_slices:
            in_group += ["if by_row:", "    if np.uint64(times[i] - begin) >= width:"]
            in_group += ["        break", "    moment = min(moment, times[i])"]
        in_group += [*self._group_lines(keys), *updates]
        if not has_slices and self._has_times:
            in_group.append("moment = max(moment, times[i])")
        if not looked_up:
            return [*lines, *in_group]
        lines += [f"if {looked_up[-1]}:", *_deeper(in_group, 1), "else:"]
        for at, one in enumerate(looked_up, len(selecting)):
            # Rows that pass cost nothing, not even a register, of which there are too few.
            lines.append(f"    counts[{at}] -= np.int64(not {one})")
        return lines

    def _row_at(self, place: str) -> str:
        """Return the row at a place of a block."""
        return f"np.uint64(selected[{place}])" if self._selecting else place

    def _group_lines(self, keys: Sequence[str]) -> list[str]:
        """Return the lines that set `r` to a row's group, or leave the loop."""
        if self._direct is None:
            found = f"not ({' & '.join(self._compared)})"
            return [*keys, "r = groups[np.uint64(index[hashed >> shift])]", f"if {found}:", *_BREAK]
        return [
            f"spot = half + {self._chain.places[self._direct]}",
            "r = groups[np.uint64(direct[spot])]",
            "if r.slice != slice_:",
            *_deeper(keys, 1),
            *_BREAK,
        ]

    def _missed_lines(self) -> list[str]:
        """Return the lines that let the first look at the index find a row's group from now on."""
        no_room = [line for key in self._texts for line in (f"if key{key} < 0:", *_STOP)]
        return [
            *no_room,
            "home = hashed >> shift",
            "place, group = home, index[home]",
            "while group > 0:",
            "    r = groups[np.uint64(group)]",
            f"    if {' & '.join(self._compared)}:",
            "        break",
            "    place = (place + np.uint64(1)) & mask",
            "    group = index[place]",
            "if group == 0:",
            "    if used == limit:",
            *_deeper(_STOP, 1),
            "    group = np.int32(used)",
            "    r = groups[np.uint64(used)]",
            "    used += 1",
            *_deeper(self._new, 1),
            "index[place] = index[home]",
            "index[home] = group",
            *([] if self._direct is None else ["direct[spot] = group"]),
        ]

    def _count_lines(self) -> list[str]:
        """Return the lines that count rows that passed each filter, without those left over.

        Those that failed a look-up were taken off already.
        """
        selecting, conditions = self._selecting, self._chain.conditions
        lines = ["through = selecting - (count - at)" if selecting else "through = at - begun"]
        for at in range(len(conditions)):
            passed = f"f{at}" if at < len(selecting) - 1 else "through"
            lines.append(f"counts[{at}] += np.int64({passed})")
        return lines


_BREAK = ("    break",)
_STOP = ("    done = False", *_BREAK)
_WIDE = ("np.int64", "np.uint64")


def _factor(number: int) -> int:
    """Return the odd number that a key is multiplied by: a power of 2^64 by the golden ratio."""
    return pow(0x9E3779B97F4A7C15, number + 1, 1 << 64)


def _deeper(lines: Sequence[str], depth: int) -> list[str]:
    return [f"{'    ' * depth}{line}" for line in lines]


def _constructor(storage: np.dtype[Any]) -> str:
    return "np.bool_" if storage == np.bool_ else f"np.{storage.name}"
