"""`Row`: one row of a batch, as Python functions get it; `RowFailure`: an error at one row.

Creating a row takes longer than most functions need to process it, so `rows_for` adapts rows to
their function, by what it does with the first ones. If it reads some columns, rows are created with
these as attributes, which are as fast as those of any object; other columns are looked up when they
are read. If it copies rows (`{**row}`), it gets rows that are dicts, since Python copies any other
mapping with a call per value.
"""

from __future__ import annotations

import difflib
import functools
import operator
import types
import weakref
from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NoReturn, cast

if TYPE_CHECKING:
    from ..transport.wire.batch import Batch

__all__ = ["Row", "RowColumns", "RowFailure", "rows_for"]

_FIRST_ROWS = (32, 1024)
"""The numbers of rows of a batch after which rows are adapted to their function."""

_COMPARED_MAX = 4
"""`row[name]` compares the name with this many columns before it is looked up in the batch."""

_READ_BY: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
"""By function: the columns that it has read as attributes of rows."""


class RowColumns(dict[str, list[Any]]):
    """The columns of a batch as lists of Python values, each converted when first read."""

    __slots__ = ("_batch", "copied", "names", "read")

    names: KeysView[str]  # of all columns, in order
    read: set[str]  # the columns that were read as attributes
    copied: int  # how many times a function iterated over the columns of a row

    def __init__(self, batch: Batch, read: set[str] | None = None) -> None:
        super().__init__()
        self._batch = batch
        self.names = _keys(batch.schema.names)
        self.read = set() if read is None else read
        self.copied = 0

    def __missing__(self, name: str) -> list[Any]:
        if name not in self.names:
            raise KeyError(_unknown(name, self.names))
        values = self[name] = self._batch.column(name).to_pylist()
        return values


class Row(Mapping[str, Any]):
    """One row: a read-only mapping of column name → Python value, None for null.

    `row["speed"]` and `row.speed` are the same; `{**row, "speed": 0}` copies and changes it. Only
    the columns that are read are converted. A row refers to its batch: keep `dict(row)`. Some
    rows are dicts, too, so ask whether an object is a `Mapping`.
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
        columns.read.add(name)  # never the name of a method, which Python finds by itself
        return value

    def keys(self) -> KeysView[str]:
        """Return the names of all columns, in order."""
        columns = self._columns
        columns.copied += 1
        return columns.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._columns.names)

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)


class _WholeRow(dict[str, Any]):
    """A row that is a dict of all its values; registered as a subclass of `Row`."""

    __slots__ = ()

    def __missing__(self, name: str) -> Any:
        raise KeyError(_unknown(name, self.keys()))

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None

    def _refuse(self, *_: object) -> Any:
        msg = "a row is read-only: change a copy of it, {**row, 'speed': 0}"
        raise TypeError(msg)

    __setitem__ = __delitem__ = __ior__ = _refuse
    __or__ = __ror__ = __reversed__ = None  # type: ignore[assignment]  # as of any other mapping
    __repr__ = Row.__repr__
    __reduce__ = Row.__reduce__


Row.register(_WholeRow)


def rows_for(function: Callable[..., Any], batch: Batch) -> Iterator[Row]:
    """Return an iterator over the rows of a batch, adapted to `function`."""
    return chain.from_iterable(_stretches(batch, _read_by(function)))


def _stretches(batch: Batch, read: set[str]) -> Iterator[Iterator[Row]]:
    """Yield the rows in stretches, each adapted to what the function did with earlier rows."""
    columns = RowColumns(batch, read)
    names, rows = batch.schema.names, batch.num_rows
    stops = [stop for stop in _FIRST_ROWS if stop < rows]
    is_whole = False
    for start, stop in pairwise([0, *stops, rows]):
        is_whole = is_whole or (bool(names) and 2 * columns.copied >= start > 0)
        if is_whole:
            yield _whole_rows(names)(*(columns[name][start:stop] for name in names))
            continue
        # A copy reads all columns, so after one only the attributes say which ones are needed.
        needed = read if columns.copied else read.union(columns)
        kept = tuple(name for name in names if name in needed and name[:1] != "_")
        values = (columns[name][start:stop] for name in kept)
        yield _rows_with(kept)(columns, range(start, stop), *values)


def _read_by(function: Callable[..., Any]) -> set[str]:
    """Return the set of columns that a function has read as attributes; callers add to it."""
    try:
        return _READ_BY.setdefault(getattr(function, "__func__", function), set())
    except TypeError:  # it is not hashable, or does not support weak references
        return set()


@functools.lru_cache(maxsize=256)
def _rows_with(names: tuple[str, ...]) -> Callable[..., Iterator[Row]]:
    """Return a function that creates rows with these columns: columns, numbers, values → rows.

    The code is generated: a row has a slot per column, set by an unrolled loop.
    """
    slots = [f"_{position}" for position in range(len(names))]
    looks = [f"    if name == name{slot}: return self.{slot}" for slot in slots[:_COMPARED_MAX]]
    body = _defined(
        ["def __getitem__(self, name):", *looks, "    return self._columns[name][self._row]"], names
    )
    body |= {"__slots__": tuple(slots), "__doc__": Row.__doc__, "__module__": __name__}
    body["__init__"] = object.__init__  # Python calls this one without creating a frame
    # A row is read-only, so slots are read through properties, here ones implemented in C.
    for name, slot in zip(names, slots, strict=True):
        if not hasattr(Row, name):
            body[name] = property(operator.attrgetter(slot))
    lines = [
        "def rows(columns, *values):",
        f"    for {', '.join(['number', *slots])}, in zip(*values):",
        "        row = make()",
        "        row._columns = columns",
        "        row._row = number",
        *(f"        row.{slot} = {slot}" for slot in slots),
        "        yield row",
    ]
    return _made(lines, names, make=_class_of(Row, body))


@functools.lru_cache(maxsize=256)
def _whole_rows(names: tuple[str, ...]) -> Callable[..., Iterator[Row]]:
    """Return a function that creates whole rows from the values of all columns."""
    body: dict[str, Any] = {"__slots__": (), "__doc__": Row.__doc__, "__module__": __name__}
    # A dict's methods that a row lacks, such as `pop`, are hidden, unless a column has the name.
    for name in dir(dict):
        if name[0] != "_" and not hasattr(Row, name):
            body[name] = property(_absent)
    for name in names:
        if name[:1] != "_" and not hasattr(Row, name):
            body[name] = property(operator.itemgetter(name))
    slots = [f"_{position}" for position in range(len(names))]
    items = ", ".join(f"name{slot}: {slot}" for slot in slots)
    # `{**row}` clones a dict from which no key was removed, and the clone is tracked by the garbage
    # collector, as the row is. From a dict with a removed key, the values are inserted one by one
    # instead, and a dict of plain values is then untracked: this halves the time of a batch.
    lines = [
        "def rows(*values):",
        f"    for {', '.join(slots)}, in zip(*values):",
        f"        row = make({{None: None, {items}}})",
        "        remove(row, None)",
        "        yield row",
    ]
    make = _class_of(_WholeRow, body)
    return _made(lines, names, make=make, remove=dict.__delitem__)


def _absent(row: object) -> NoReturn:
    raise AttributeError  # so that Python calls `__getattr__`


def _class_of(base: type, body: dict[str, Any]) -> type:
    return types.new_class("Row", (base,), exec_body=lambda space: space.update(body))


def _made(lines: Sequence[str], names: Sequence[str], **known: Any) -> Callable[..., Iterator[Row]]:
    return cast("Callable[..., Iterator[Row]]", _defined(lines, names, **known)["rows"])


def _defined(lines: Sequence[str], names: Sequence[str], **known: Any) -> dict[str, Any]:
    """Return the functions defined by lines of Python, in which `name_i` is column i's name.

    The lines contain no text of the user's, only numbers. A loop over the columns instead of
    generated code would take twice as long per row.
    """
    body: dict[str, Any] = {}
    known |= {f"name_{position}": name for position, name in enumerate(names)}
    exec("\n".join(lines), known, body)  # noqa: S102  # contains no text of the user's
    return body


@functools.lru_cache(maxsize=256)
def _keys(names: tuple[str, ...]) -> KeysView[str]:
    return dict.fromkeys(names).keys()


class RowFailure(Exception):  # noqa: N818 - it only transports the user's own error
    """A user's function raised for one row; `__cause__` is the user's exception.

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
