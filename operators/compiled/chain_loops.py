"""`ChainLoops`: the loops of a chain of operators, of which each batch is taken by the one it fits.

A loop is made for rows of one schema, with or without nulls, with or without event times, for the
columns whose texts are codes of a dictionary, and for what the tables hold.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from ..transform_bases import Transform
from .coded_texts import NOT_CODED, KeptForDictionaries
from .loop_arguments import LoopInputs
from .loop_function import LoopFunction, LoopModule, begin_beside, compiled_or_none, is_kept

if TYPE_CHECKING:
    from ...transport.wire.batch import Batch
    from ...transport.wire.column import Column
    from ...transport.wire.types import Schema
    from .loop_text import Step
    from .table_lookup import TableLookup

__all__ = ["COMPILE_AFTER_ROWS", "ChainLoops", "LookupTable", "LoopVariant", "Mode"]

Mode: TypeAlias = Literal["auto", "compiled", "interpreted"]

COMPILE_AFTER_ROWS = 1 << 20
"""After how many rows a loop is worth being compiled: that takes as long as some million rows."""


class LookupTable(Protocol):
    """A table that rows of a chain are joined with."""

    @property
    def loaded(self) -> bool:
        """Whether all of its rows are there."""

    @property
    def keys(self) -> int:
        """The number of different keys."""

    @property
    def makes_lookup_quickly(self) -> bool:
        """Whether `lookup` takes about as long as joining `keys` rows: it compiles nothing."""

    @property
    def lookup(self) -> TableLookup:
        """The join; another object whenever the rows of the table are others."""


class _Source(LoopModule, LoopInputs, Protocol):
    """A loop before it is compiled."""


SourceT = TypeVar("SourceT", bound=_Source)


class LoopVariant(ABC, Generic[SourceT]):
    """One loop.

    Attributes:
        text: the loop before it is compiled; None if none of the operators can be part of a loop.
        names: the columns that it reads.
        kept: what it reads of dictionaries.
        function: its machine code.
    """

    def __init__(self, schema: Schema, text: SourceT | None) -> None:
        self.text = text
        self.kept = KeptForDictionaries(NOT_CODED if text is None else text.coded)
        self.names = () if text is None else tuple(schema.names[at] for at in text.columns)
        self.function = LoopFunction(
            self._make, is_kept=lambda: text is not None and is_kept(text), begin=begin_beside
        )
        self._schema = schema

    def _make(self) -> Any:
        return None if self.text is None else compiled_or_none(self.text, self.signature(self.text))

    @abstractmethod
    def signature(self, text: SourceT) -> tuple[Any, ...]:
        """Return numba's types of the loop's arguments."""


VariantT = TypeVar("VariantT", bound=LoopVariant[Any])


class Fitting(NamedTuple, Generic[VariantT]):
    """The loop that takes a batch: its variant, its machine code, and the columns that it reads."""

    variant: VariantT
    loop: Any
    columns: list[Column]


class ChainLoops(ABC, Generic[VariantT]):
    """The loops of a chain.

    Args:
        operators: in the order in which rows pass them; a table join as its table.
        mode: `auto` compiles once enough rows have come, while they go on by the operators, and
            loads at once what was compiled before; with tables only after more rows than these
            have keys, since they are indexed for the loop first.
    """

    def __init__(
        self,
        operators: Sequence[Transform | LookupTable],
        mode: Mode,
    ) -> None:
        self._operators = tuple(operators)
        self._mode = mode
        self._tables = [one for one in operators if not isinstance(one, Transform)]
        self._steps: tuple[Step, ...] = ()
        self._rows_seen = 0
        self._index_after_rows: int | None = None
        self._variants: dict[tuple[Schema, bool, bool, frozenset[int]], VariantT] = {}
        self._last_asked: LoopFunction | None = None

    @property
    def is_coming(self) -> bool:
        """Whether the loop that the last batch fits is being compiled."""
        return self._last_asked is not None and self._last_asked.is_coming

    @abstractmethod
    def _write(
        self, schema: Schema, *, nullable: bool, has_times: bool, coded: frozenset[int]
    ) -> VariantT:
        """Return the loop of rows of a schema; `coded` as for `write_loop`."""

    def _takes(self, batch: Batch) -> bool:
        """Return whether a loop may take a batch at all."""
        return True

    def _forget_loops(self) -> None:
        """Forget all that depends on the rows of tables."""
        self._variants.clear()

    def _fitting(self, batch: Batch, may_begin: bool) -> Fitting[VariantT] | None:
        """Return the loop that takes a batch; None if there is none, or none yet.

        `may_begin`: whether it may begin to be compiled beside the rows.
        """
        if self._mode == "interpreted" or not batch.num_rows:
            return None
        self._rows_seen += batch.num_rows
        is_due = self._mode == "compiled" or self._rows_seen > COMPILE_AFTER_ROWS
        if not (is_due or self._may_index) or not self._takes(batch):
            return None
        self._look_at_tables()
        coded = frozenset(batch.coded)
        for nullable in (False, True):  # with nulls it may hold fewer operators, or none
            variant = self._variant(batch.schema, nullable, batch.has_times, coded)
            if variant.text is None:
                return None
            columns = [batch.column(name) for name in variant.names]
            if nullable or all(column.validity is None for column in columns):
                break
        self._last_asked = variant.function
        loop = variant.function.get(at_once=self._mode == "compiled", is_due=is_due and may_begin)
        return None if loop is None else Fitting(variant, loop, columns)

    def _prepared(
        self, schema: Schema, *, has_times: bool, coded: Collection[str]
    ) -> VariantT | None:
        """Load or compile the loop of rows that are to come, as far as the mode says so.

        Returns the loop of rows without nulls; None if it depends on tables that are not there yet,
        or, unless all is compiled, are not to be indexed before enough rows have come.
        """
        if self._mode == "interpreted":
            return None
        if self._tables and self._mode == "auto":
            return None
        if not all(table.loaded for table in self._tables):
            return None
        self._look_at_tables()
        places = frozenset(schema.index(name) for name in coded if name in schema)
        plain, nullable = (
            self._variant(schema, nullable, has_times, places) for nullable in (False, True)
        )
        plain.function.get(at_once=self._mode == "compiled", is_due=False)
        nullable.function.get(at_once=False, is_due=False)
        return plain

    @property
    def _may_index(self) -> bool:
        """Whether so many rows have come that indexing the tables is worth it."""
        if self._index_after_rows is None:
            quick = all(one.makes_lookup_quickly for one in self._tables)
            keys = sum(one.keys for one in self._tables)
            self._index_after_rows = keys if quick else COMPILE_AFTER_ROWS
        return self._rows_seen > self._index_after_rows

    def _look_at_tables(self) -> None:
        """Forget all loops if a table has other rows."""
        steps = tuple(one if isinstance(one, Transform) else one.lookup for one in self._operators)
        if steps != self._steps:
            self._steps = steps
            self._forget_loops()

    def _variant(
        self, schema: Schema, nullable: bool, has_times: bool, coded: frozenset[int]
    ) -> VariantT:
        key = schema, nullable, has_times, coded
        found = self._variants.get(key)
        if found is None:
            found = self._write(schema, nullable=nullable, has_times=has_times, coded=coded)
            self._variants[key] = found
        return found
