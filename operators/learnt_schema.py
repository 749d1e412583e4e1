"""The schema of rows that Python functions return one by one: declared, or learnt from the rows.

The names are those of the first row; the type of a column is that of its first value that is not
null (`transport.wire.values`). Rows wait until all types are known, so the schema does not depend
on how rows are cut into batches. A column that has only nulls in all rows, or in the first
`WAITING_ROWS_MAX`, gets the type of the input column of the same name; if there is none, the user
must declare it.

Rows of an unbounded job must not wait for ever: there, after `WAITING_NS_MAX` or so many rows, such
a column is presumed to be text, and a first value of another type is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..configs.errors import InputError
from ..transport.wire.types import DataType, Field, Schema, shared_schema

if TYPE_CHECKING:
    from ..transport.wire.batch import Batch

_FLOAT64 = DataType.parse("float64")
_TEXT = DataType.parse("string")

WAITING_ROWS_MAX: Final = 65_536
"""The number of rows that may wait for the types of their columns."""

WAITING_NS_MAX: Final = 1_000_000_000
"""How long rows of an unbounded job may wait for the types of their columns."""


class LearntSchema:
    """The schema of one operator instance's rows. The caller keeps the rows that wait.

    Args:
        declared: the schema, if it need not be learnt.
        keeps_input_types: whether text, times and decimals that keep the name of an input column
            keep its type too, and integers the type of floats, decimals and uint64.
        skips_misfits: whether rows without names, and values of unsupported types, are skipped,
            instead of an error at once.
        presumes: whether `settle` presumes columns of nulls to be text, instead of an error.

    Attributes:
        known: the schema, None until it is known.
        inputs: the schemas of the input, in order of precedence; used until the schema is known.
    """

    def __init__(
        self,
        declared: Schema | None = None,
        *,
        keeps_input_types: bool = False,
        skips_misfits: bool = False,
        presumes: bool = False,
    ) -> None:
        self.known = declared
        self.inputs: tuple[Schema, ...] = ()
        self._is_declared = declared is not None
        self._keeps_input_types = keeps_input_types
        self._skips_misfits = skips_misfits
        self._presumes = presumes
        self._presumed: dict[str, int] = {}  # column → number of rows in which it was null
        self._types: dict[str, DataType | None] | None = None  # by name, once names are known
        self._rows = 0
        self._misfit: tuple[int, InputError] | None = None

    @property
    def misfit_row(self) -> int | None:
        """The number of the row because of which it raised, None if it is no single row."""
        return self._misfit[0] if self._misfit is not None else None

    def look(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Learn from the next rows, each of which is passed once; return if the schema is known.

        Raises:
            InputError: a name is not text, a value has a type that is not supported, or the types
                are still unknown after `WAITING_ROWS_MAX` rows.
        """
        if self.known is not None:
            return True
        rows = rows[: WAITING_ROWS_MAX - self._rows]
        first_row = self._rows
        self._rows += len(rows)
        if self._types is None:
            skipped = self._take_names(rows, first_row)
            rows, first_row = rows[skipped:], first_row + skipped
        types = self._types or {}
        for name in [name for name, kind in types.items() if kind is None]:
            types[name] = self._type_of_first(name, rows, first_row)
        if self._types is not None and None not in types.values():
            self._fix()
        elif self._rows >= WAITING_ROWS_MAX:
            self.settle()
        return self.known is not None

    def settle(self) -> None:
        """Fix the schema, if there were any rows: none follow, or they have waited long enough.

        Raises:
            InputError: a column has only nulls, and no input column has its name.
        """
        if self.known is not None or not self._rows:
            return
        if self._presumes:
            self.presume()
        types = self._types or {}
        types.update({name: kind or self._input_type(name) for name, kind in types.items()})
        unknown = [name for name, kind in types.items() if kind is None]
        if self._misfit is not None and (unknown or self._types is None):
            raise self._misfit[1]
        if unknown:
            msg = f"column {unknown[0]!r} holds nothing but nulls; declare its type"
            raise InputError(msg)
        self._fix()

    def presume(self) -> None:
        """Fix the schema, if the columns are known: those with only nulls become text.

        Where an input column has the name of one, it becomes of that type.
        """
        if self.known is not None or not self._types:
            return
        for name, kind in self._types.items():
            if kind is None and (inherited := self._input_type(name)) is None:
                self._presumed[name] = self._rows
                self._types[name] = _TEXT
            elif kind is None:
                self._types[name] = inherited
        self._fix()

    def check_presumed(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Check presumed types against the next rows.

        Raises:
            InputError: the first value of a column that was presumed to be text is not text.
        """
        for name in list(self._presumed):
            kind = self._type_of_first(name, rows, 0)
            if kind is not None and not kind.is_text:
                msg = (
                    f"column {name!r} held nothing but nulls in the first "
                    f"{self._presumed[name]:,} rows, so it was presumed to be text, but a later "
                    f"value has the type {kind}"
                )
                raise InputError(msg)
            if kind is not None:
                del self._presumed[name]

    def batch(self, rows: Sequence[Mapping[str, Any]]) -> Batch:
        """Return rows as a batch, once the schema is known.

        Raises:
            InputError: a row has other columns, or a value does not fit its column.
        """
        from ..transport.wire.conversion import batch_of_rows

        assert self.known is not None
        return batch_of_rows(rows, self.known, learnt=not self._is_declared)

    def kept(self) -> Mapping[str, Any]:
        """Return what a snapshot keeps beside the rows that wait: picklable, a copy."""
        return {"known": self.known, "presumed": dict(self._presumed), "inputs": self.inputs}

    def restore(self, kept: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> None:
        """Resume from what instances have `kept`: the columns that the first of them knew.

        Args:
            kept: of instances, in order of precedence.
            rows: those that wait, which are looked at again if no instance knew the columns.
        """
        if self.known is not None:
            return
        for one in kept:
            if one["known"] is not None:
                self.known, self._presumed = one["known"], dict(one["presumed"])
                return
            self.inputs = self.inputs or one["inputs"]
        self.look(rows)

    def _take_names(self, rows: Sequence[Mapping[str, Any]], first_row: int) -> int:
        """Take the names from the first row that has any; return the number of rows before it."""
        for skipped, row in enumerate(rows):
            try:
                self._types = dict.fromkeys(_names_of(row))
            except InputError as error:
                self._note_misfit(first_row + skipped, error)
            else:
                return skipped
        return len(rows)

    def _type_of_first(
        self, name: str, rows: Sequence[Mapping[str, Any]], first_row: int
    ) -> DataType | None:
        from ..transport.wire.value_kinds import is_null
        from ..transport.wire.values import type_of_value

        for row, values in enumerate(rows, first_row):
            value = values.get(name) if isinstance(values, Mapping) else None
            if value is None or is_null(value):
                continue
            try:
                return self._kept(name, type_of_value(value, f"column {name!r}"))
            except InputError as error:
                self._note_misfit(row, error)
        return None

    def _note_misfit(self, row: int, error: InputError) -> None:
        """Note the first row that does not fit; raise the error unless such rows are skipped."""
        self._misfit = self._misfit or (row, error)
        if not self._skips_misfits:
            raise error

    def _kept(self, name: str, learnt: DataType) -> DataType:
        own = self._input_type(name) if self._keeps_input_types else None
        return learnt if own is None else _kept_type(learnt, own)

    def _input_type(self, name: str) -> DataType | None:
        return next((one.field(name).type for one in self.inputs if name in one), None)

    def _fix(self) -> None:
        types = self._types or {}
        self.known = shared_schema(tuple(Field(n, kind) for n, kind in types.items() if kind))


def _names_of(row: object) -> Sequence[str]:
    """Return the names of a row's columns; raise InputError if it has none, or not text."""
    if not isinstance(row, Mapping):
        msg = "rows without names; give a schema, or mappings by column name"
        if hasattr(row, "columns"):
            msg = f"a {type(row).__name__} is no row: sources.batches takes what yields tables"
        raise InputError(msg)
    for name in row:
        if not isinstance(name, str):
            kind = type(name).__name__
            msg = f"a column is called {name!r}, {kind}: names are text, {str(name)!r}"
            raise InputError(msg)
    return tuple(row)


def _kept_type(learnt: DataType, own: DataType) -> DataType:
    """Return the type of values of type `learnt`, in a column whose type was `own` in the input.

    Numbers are widened, an int32 to int64 and a float32 to float64, since Python's are unlimited.
    """
    if learnt.name == "int64":
        if own.storage.kind == "f":
            return _FLOAT64
        return own if own.name == "uint64" or own.family == "decimal128" else learnt
    if learnt.family in ("bool", "float64"):
        return learnt
    text_or_bytes = own.kind == learnt.kind == "bytes" and own.is_text == learnt.is_text
    times = (_family(own), own.timezone is None) == (_family(learnt), learnt.timezone is None)
    return own if text_or_bytes or times else learnt


def _family(kind: DataType) -> str:
    return kind.family.rstrip("0123456789")
