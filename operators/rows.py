"""`Row`: one tuple as a plain Python function sees it; `RowFailure`: the one that it raised for.

Making a row costs more than most functions do with it, so `rows_for` makes each with the attributes
that its function is known to read: they cost what those of any object cost. Which these are shows
in the first rows; all others are looked up when asked for.
"""

from __future__ import annotations

import difflib
import functools
import operator
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping
from itertools import chain, islice, pairwise, repeat
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ..transport.wire.batch import Batch

__all__ = ["Row", "RowColumns", "RowFailure", "rows_for"]

_FIRST_ROWS = (32, 1024)
"""After so many rows of a batch it is looked again which attributes their function reads."""

_READ_BY: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
"""The columns that a function has read as attributes of its rows."""


class RowColumns(dict[str, list[Any]]):
    """The columns of a batch as lists of Python values, each made when first asked for."""

    __slots__ = ("_batch", "names", "read")

    names: KeysView[str]  # of all columns, in order
    read: set[str]  # those that were read as attributes

    def __init__(self, batch: Batch, read: set[str] | None = None) -> None:
        super().__init__()
        self._batch = batch
        self.names = _keys(batch.schema.names)
        self.read = set() if read is None else read

    def __missing__(self, name: str) -> list[Any]:
        if name not in self.names:
            raise KeyError(_unknown(name, self.names))
        values = self[name] = self._batch.column(name).to_pylist()
        return values


class Row(Mapping[str, Any]):
    """One row: a read-only mapping of column name → Python value, None for null.

    `row["speed"]` and `row.speed` are the same; `{**row, "speed": 0}` copies and changes it. Only
    the columns that are asked for are converted. A row refers to its batch: keep `dict(row)`.
    """

    __slots__ = ("_columns", "_row")

    def __init__(self, columns: RowColumns, row: int) -> None:
        self._columns = columns
        self._row = row

    def __getitem__(self, name: str) -> Any:
        return self._columns[name][self._row]

    def __getattr__(self, name: str) -> Any:
        columns = self._columns
        try:
            value = columns[name][self._row]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None
        columns.read.add(name)  # a method's name never comes here, so it is none of theirs
        return value

    def keys(self) -> KeysView[str]:
        """Return the names of all columns, in order."""
        return self._columns.names

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns.names)

    def __len__(self) -> int:
        return len(self._columns.names)

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)


def rows_for(function: Callable[..., Any], batch: Batch) -> Iterator[Row]:
    """Return the rows of a batch that `function` is called with, one after another."""
    return chain.from_iterable(_stretches(batch, _read_by(function)))


def _stretches(batch: Batch, read: set[str]) -> Iterator[Iterable[Row]]:
    """Yield the rows in stretches, each made with what the function has read in those before."""
    columns = RowColumns(batch, read)
    rows = batch.num_rows
    stops = [stop for stop in _FIRST_ROWS if stop < rows]
    for start, stop in pairwise([0, *stops, rows]):
        kept = tuple(name for name in columns.names if name in read and name[:1] != "_")
        values = (islice(columns[name], start, stop) for name in kept)
        make = cast("Callable[..., Row]", _row_class(kept))
        yield map(make, repeat(columns), range(start, stop), *values)


def _read_by(function: Callable[..., Any]) -> set[str]:
    """Return the columns that a function has read as attributes so far, to be added to."""
    try:
        return _READ_BY.setdefault(getattr(function, "__func__", function), set())
    except TypeError:  # it has no hash, or no room for a weak reference
        return set()


@functools.lru_cache(maxsize=256)
def _row_class(names: tuple[str, ...]) -> type[Row]:
    """Return a class of rows that are made with the values of these columns."""
    slots = [f"_{position}" for position in range(len(names))]
    lines = [f"def __init__({', '.join(['self', '_columns', '_row', *slots])}):"]
    lines += [f"    self.{slot} = {slot}" for slot in ("_columns", "_row", *slots)]
    body: dict[str, Any] = {
        "__slots__": tuple(slots),
        "__doc__": Row.__doc__,
        "__module__": __name__,
    }
    exec("\n".join(lines), {}, body)  # noqa: S102  # only numbers vary; a loop takes twice as long
    # Behind properties, since a row is read-only, and of a kind that runs no Python.
    for name, slot in zip(names, slots, strict=True):
        body[name] = property(operator.attrgetter(slot))
    return cast(
        "type[Row]", types.new_class("Row", (Row,), exec_body=lambda space: space.update(body))
    )


@functools.lru_cache(maxsize=256)
def _keys(names: tuple[str, ...]) -> KeysView[str]:
    return dict.fromkeys(names).keys()


class RowFailure(Exception):  # noqa: N818 - it only carries the user's own error to the runtime
    """A user's function raised for one row; the cause is what it raised.

    Attributes:
        row_index: the row's number in the batch.
        preview: the row as a short line.
    """

    def __init__(self, row_index: int, preview: str) -> None:
        super().__init__(row_index, preview)
        self.row_index = row_index
        self.preview = preview

    def __str__(self) -> str:
        return f"row {self.row_index}: {self.preview}"


def _unknown(name: str, names: KeysView[str]) -> str:
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names)}"
    return f"no column {name!r}; {hint}"
