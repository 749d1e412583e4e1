"""`Code`: what a compiled loop computes for one row; `LoopWriter`: the body of such a loop.

The loop computes every expression for every row, also for those that a filter drops, so that it
has no branches. Nothing in it may fail, whatever the row holds: a divisor of zero is replaced
before the division, and the result is null.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..kernels.type_rules import is_text

if TYPE_CHECKING:
    from ....transport.wire.types import Schema
    from ..compiled_function import CompiledFunction
    from ..expression import Expression
    from ..kernels.arrays import Value
    from ..kernels.type_rules import ArrowType

__all__ = [
    "HELPERS",
    "OF_TEXT_KEYS",
    "Code",
    "EntryTable",
    "LoopWriter",
    "NotCompilable",
    "both",
    "constructor_of",
    "plain",
]


_NAMES = re.compile(r"\bv\d+\b")
"""What `LoopWriter.let` names."""


class NotCompilable(Exception):  # noqa: N818  # it is no error: the kernels do it
    """An expression has no code; the message says why."""


@dataclass(frozen=True)
class Code:
    """One value of a row.

    Attributes:
        value: a name or a constant in the loop; it holds anything where the value is null. Of text,
            the number of its column.
        valid: a name in the loop, true where there is a value; None: there is always one.
        kind: its type in Arrow.
        constant: what it is for every row, as an Arrow scalar; None if rows differ.
    """

    value: str
    valid: str | None
    kind: ArrowType
    constant: Value | None = None


@dataclass(frozen=True, eq=False)  # expressions are not compared by ==
class EntryTable:
    """An expression over a column of coded text, which is computed once for each of its texts.

    Attributes:
        expression: the expression, whose columns are this one under some names.
        column: the number of the column.
        kind: the type of the values in Arrow.
        nullable: whether they may be null.
    """

    expression: Expression
    column: int
    kind: ArrowType
    nullable: bool


_CONSTRUCTORS = {
    pa.int8(): "np.int8",
    pa.int16(): "np.int16",
    pa.int32(): "np.int32",
    pa.int64(): "np.int64",
    pa.uint8(): "np.uint8",
    pa.uint16(): "np.uint16",
    pa.uint32(): "np.uint32",
    pa.uint64(): "np.uint64",
    pa.float32(): "np.float32",
    pa.float64(): "np.float64",
    pa.bool_(): "np.bool_",
    pa.date32(): "np.int32",
}


def constructor_of(kind: ArrowType) -> str:
    """Return numpy's type for the values of a type; raise NotCompilable if there is none."""
    found = _CONSTRUCTORS.get(kind)
    if found is None and (pa.types.is_timestamp(kind) or pa.types.is_duration(kind)):
        found = "np.int64"
    if found is None:
        msg = f"values of type {kind}"
        raise NotCompilable(msg)
    return found


def plain(*codes: Code) -> None:
    """Raise NotCompilable if an argument is no number, boolean, date, timestamp or duration."""
    for code in codes:
        constructor_of(code.kind)


def both(*valids: str | None) -> str | None:
    """Return the text for whether all are valid; None if they always are."""
    names = list(dict.fromkeys(valid for valid in valids if valid is not None))
    return " & ".join(names) if names else None


HELPERS = {
    "remainder_of": '''
def remainder_of(dividend, divisor):
    """The remainder of whole numbers, with the sign of the dividend; the divisor is not 0."""
    rest = dividend % divisor
    if rest != 0 and (rest < 0) != (dividend < 0):
        rest -= divisor
    return rest
''',
    "same_text": '''
def same_text(left, begin, right, other, size):
    """Whether `size` bytes are the same."""
    for at in range(size):
        if left[begin + at] != right[other + at]:
            return False
    return True
''',
    "characters": '''
def characters(pool, begin, size):
    """How many characters of UTF-8 some bytes are: all but the second to fourth byte of each."""
    count = np.int32(0)
    for at in range(begin, begin + size):
        count += np.int32((pool[at] & np.uint8(0xC0)) != np.uint8(0x80))
    return count
''',
    "has_part": '''
def has_part(pool, begin, size, part, part_size):
    """Whether some bytes occur in others."""
    wanted = np.uint64(part_size)
    if size < wanted:
        return False
    for at in range(begin, begin + size - wanted + np.uint64(1)):
        if same_text(pool, at, part, np.uint64(0), wanted):
            return True
    return False
''',
    "is_greater_text": '''
def is_greater_text(left, begin, size, right, other, other_size, if_equal):
    """Whether some bytes come after others in their order; what to return if they are the same."""
    for at in range(min(size, other_size)):
        if left[begin + at] != right[other + at]:
            return left[begin + at] > right[other + at]
    return size > other_size or (if_equal and size == other_size)
''',
    "months_of_days": '''
def months_of_days(days):
    """The whole months from 1970-01 to a day; years are counted from March, leap days end them."""
    days += 719468
    era = days // 146097
    day = days - era * 146097
    year = (day - day // 1460 + day // 36524 - day // 146096) // 365
    day -= 365 * year + year // 4 - year // 100
    return (year + era * 400 - 1970) * 12 + (5 * day + 2) // 153 + 2
''',
    "days_of_months": '''
def days_of_months(months):
    """The first day of a month, counted as `months_of_days` does."""
    months += 1970 * 12 - 2
    year = months // 12
    month = months - year * 12
    era = year // 400
    year -= era * 400
    return era * 146097 + year * 365 + year // 4 - year // 100 + (153 * month + 2) // 5 - 719468
''',
    "word_at": '''
def word_at(pool, at):
    """Eight bytes as one word, little-endian; LLVM makes one load of them."""
    value = np.uint64(0)
    for byte in range(8):
        value |= np.uint64(pool[at + np.uint64(byte)]) << np.uint64(8 * byte)
    return value
''',
    "rest_of_text": '''
def rest_of_text(pool, begin, size):
    """The last eight of some bytes as one word, or all of fewer; none beside them is read."""
    if size >= np.uint64(8):
        return word_at(pool, begin + size - np.uint64(8))
    value = np.uint64(0)
    for byte in range(size):
        value |= np.uint64(pool[begin + byte]) << (np.uint64(8) * byte)
    return value
''',
    "row_of_text": '''
def row_of_text(pool, begin, size, slots, keys, offsets):
    """The row of a table that has these bytes as its key; -1 - place if none: there it would be.

    Loops over words count, so that LLVM unrolls them where the size is a number.
    """
    eight, hashed, words = np.uint64(8), size, size // np.uint64(8)
    for word in range(words):
        hashed = (hashed ^ word_at(pool, begin + eight * word)) * np.uint64(0x9E3779B185EBCA87)
        hashed ^= hashed >> np.uint64(32)
    rest = rest_of_text(pool, begin, size)
    hashed = (hashed ^ rest) * np.uint64(0xC2B2AE3D27D4EB4F)
    hashed ^= hashed >> np.uint64(29)
    mask = np.uint64(len(slots) - 1)
    place = (hashed ^ (hashed >> np.uint64(17))) & mask
    while slots[place] >= 0:
        row = np.uint64(slots[place])
        other = np.uint64(offsets[row])
        if np.uint64(offsets[row + np.uint64(1)]) - other == size:
            differs = rest ^ rest_of_text(keys, other, size)
            for word in range(words):
                at = eight * word
                differs |= word_at(pool, begin + at) ^ word_at(keys, other + at)
            if differs == 0:
                return np.int64(row)
        place = (place + np.uint64(1)) & mask
    return np.int64(-1) - np.int64(place)
''',
    "code_of_text": '''
def code_of_text(pool, begin, end, slots, texts, offsets, sizes):
    """The code of some bytes, which are added if they are new; -1 if there is no room for them."""
    code = row_of_text(pool, begin, end - begin, slots, texts, offsets)
    if code >= 0:
        return code
    count, size = np.uint64(sizes[0]), end - begin
    used = np.uint64(offsets[count])
    if count + np.uint64(1) == np.uint64(len(offsets)) or size > np.uint64(len(texts)) - used:
        sizes[1] = np.int64(size)
        return np.int64(-1)
    for at in range(size):
        texts[used + at] = pool[begin + at]
    slots[np.uint64(np.int64(-1) - code)] = count
    offsets[count + np.uint64(1)] = used + size
    sizes[0] = np.int64(count + np.uint64(1))
    return np.int64(count)
''',
    "code_of_entry": '''
def code_of_entry(known, entry, pool, begin, end, slots, texts, offsets, sizes):
    """The code of a dictionary's text, which is found once, by its bytes; -1 as `code_of_text`."""
    code = np.int64(known[entry])
    if code < 0:
        code = code_of_text(pool, begin, end, slots, texts, offsets, sizes)
        known[entry] = code
    return code
''',
    "row_of_entry": '''
def row_of_entry(known, entry, pool, begin, end, slots, keys, offsets):
    """The row of a table that has a dictionary's text as its key, which is found once."""
    row = known[entry]
    if row == np.int64(0x7FFFFFFFFFFFFFFF):
        row = row_of_text(pool, begin, end - begin, slots, keys, offsets)
        known[entry] = row
    return row
''',
    "row_of_integer": '''
def row_of_integer(value, slots, keys):
    """The row of a table that has this key; -1 - place if none: there it would be."""
    mask = np.uint64(len(slots) - 1)
    place = np.uint64(value) * np.uint64(0x9E3779B185EBCA87)
    place = (place ^ (place >> np.uint64(32))) & mask
    while slots[place] >= 0:
        if keys[np.uint64(slots[place])] == value:
            return np.int64(slots[place])
        place = (place + np.uint64(1)) & mask
    return np.int64(-1) - np.int64(place)
''',
}
"""Functions that a loop may call, as text: a loop's file holds all that its result depends on."""

OF_TEXT_KEYS = ("word_at", "rest_of_text", "row_of_text")
"""The helper that finds a key of text, behind those that it calls."""


class LoopWriter:
    """Writes what is done for one row, each value once.

    Args:
        schema: the columns of the rows.
        nullable: whether to read the validity of columns; else no value is null.
        coded: the numbers of columns whose texts are codes of a dictionary.

    Attributes:
        lines: the loop's body so far.
        constants: name → text of what stands before the loop.
        helpers: names of `HELPERS` that are called.
        columns: the numbers of the columns that are read.
        text_bytes: how many bytes the pools of text columns must hold at least.
        passing: whether the row has passed all filters so far; None if there was none.
        functions: the user's functions that are called, by the name that the loop calls them.
        tables: what is computed for each text of a dictionary and then looked up.
    """

    def __init__(
        self, schema: Schema, *, nullable: bool, coded: frozenset[int] = frozenset()
    ) -> None:
        self.schema = schema
        self.nullable = nullable
        self.coded = coded
        self.tables: list[EntryTable] = []
        self.lines: list[str] = []
        self.constants: dict[str, str] = {}
        self.helpers: set[str] = set()
        self.columns: set[int] = set()
        self.text_bytes = 0
        self.passing: str | None = None
        self.functions: dict[str, CompiledFunction] = {}
        self._names: dict[str, str] = {}

    def let(self, text: str) -> str:
        """Return the name of what some text computes."""
        name = self._names.get(text)
        if name is None:
            name = self._names[text] = f"v{len(self._names)}"
            self.lines.append(f"{name} = {text}")
        return name

    def lines_for(self, texts: Iterable[str], known_true: Collection[str] = ()) -> list[str]:
        """Return the lines of the body that some text needs, in their order.

        `known_true`: names of conditions that hold wherever these lines stand.
        """
        wanted = set(_NAMES.findall(" ".join(texts)))
        needed = []
        for line in reversed(self.lines):
            name, _, text = line.partition(" = ")
            if name not in wanted:
                continue
            if name in known_true:
                text = "True"
            needed.append(f"{name} = {text}")
            wanted.update(_NAMES.findall(text))
        return needed[::-1]

    def typed(self, kind: ArrowType, text: str, valid: str | None) -> Code:
        """Return the code of some text whose value is converted to a type."""
        value = self.let(f"{constructor_of(kind)}({text})")
        return Code(value, valid if valid is None else self.let(valid), kind)

    def truth(self, text: str, valid: str | None) -> Code:
        """Return the code of a condition."""
        return Code(self.let(text), None if valid is None else self.let(valid), pa.bool_())

    def column(self, name: str) -> Code:
        """Return the code that reads a column; raise NotCompilable if its type has none."""
        from ....transport.wire.arrow import type_to_arrow

        at = self.schema.index(name)
        kind = type_to_arrow(self.schema.field(name).type)
        if is_text(kind):
            value = str(at)
        else:
            constructor_of(kind)
            value = self.let(f"c{at}[i]")
        self.columns.add(at)
        return Code(value, self.let(f"m{at}[i]") if self.nullable else None, kind)

    def entry(self, column: str) -> str:
        """Return where a text of the row is among the texts of its column: of one not coded, i."""
        return self.let(f"np.uint64(j{column}[i])") if int(column) in self.coded else "i"

    def text_ends(self, column: str) -> tuple[str, str]:
        """Return where the bytes of a text of the row begin and end."""
        entry = self.entry(column)
        return f"np.uint64(o{column}[{entry}])", f"np.uint64(o{column}[{entry} + np.uint64(1)])"

    def looked_up(self, table: EntryTable, kind: ArrowType) -> Code:
        """Return the code that looks a value up by the code of the row's text."""
        number, entry = len(self.tables), self.entry(str(table.column))
        self.tables.append(table)
        valid = self.let(f"w{number}[{entry}]") if table.nullable else None
        return Code(self.let(f"t{number}[{entry}]"), valid, kind)

    def constant(self, scalar: Value) -> Code:
        """Return the code of an Arrow scalar; text and null have only the scalar."""
        kind = scalar.type
        if is_text(kind):
            return Code("", None if scalar.is_valid else "False", kind, scalar)
        if pa.types.is_null(kind):
            return Code("0", "False", kind, scalar)
        made = constructor_of(kind)
        if not scalar.is_valid:
            return Code(self._named(f"{made}(0)"), "False", kind, scalar)
        return Code(self._named(f"{made}({_raw(scalar)})"), None, kind, scalar)

    def helper(self, name: str) -> str:
        """Return the name of a helper that the loop may then call."""
        self.helpers.add(name)
        return name

    def text_finder(self) -> str:
        """Return the name of the helper that finds a key of text, which the loop may then call."""
        for name in OF_TEXT_KEYS:
            self.helper(name)
        return OF_TEXT_KEYS[-1]

    def function(self, function: CompiledFunction) -> str:
        """Return the name of a user's function that the loop may then call."""
        for name, known in self.functions.items():
            if known is function:
                return name
        name = f"u{len(self.functions)}"
        self.functions[name] = function
        return name

    def bytes_constant(self, raw: bytes) -> str:
        """Return the name of a constant array of bytes."""
        return self._named(f"np.array({list(raw)!r}, np.uint8)")

    def _named(self, text: str) -> str:
        for name, known in self.constants.items():
            if known == text:
                return name
        name = f"K{len(self.constants)}"
        self.constants[name] = text
        return name


def _raw(scalar: Any) -> str:
    """Return the text of a scalar's number, to the last bit."""
    kind = scalar.type
    if pa.types.is_floating(kind):
        return f"float.fromhex({float(scalar.as_py()).hex()!r})"
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_date(kind):
        return str(scalar.value)
    return str(scalar.as_py())
