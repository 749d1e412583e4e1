"""`Row`: one tuple as a plain Python function sees it; `RowFailure`: the one that it raised for.

Making a row costs more than most functions do with it, so `rows_for` makes each for its function.
What a function does shows in the first rows. One that reads some columns gets rows made with these,
all others being looked up when asked for: they cost what the attributes of any object cost. One
that copies its rows (`{**row}`) gets whole ones, which are dicts inside: of any other mapping
Python asks for each value by a call.
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
"""After so many rows of a batch it is looked again what their function does with them."""

_COMPARED_MAX = 4
"""So many names are compared with the one asked for before it is looked up."""

_READ_BY: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
"""The columns that a function has read as attributes of its rows."""


class RowColumns(dict[str, list[Any]]):
    """The columns of a batch as lists of Python values, each made when first asked for."""

    __slots__ = ("_batch", "copied", "names", "read")

    names: KeysView[str]  # of all columns, in order
    read: set[str]  # those that were read as attributes
    copied: int  # how often a function went through all columns of a row

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
    the columns that are asked for are converted. A row refers to its batch: keep `dict(row)`. Some
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
        columns.read.add(name)  # a method's name never comes here, so it is none of theirs
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
    """A row that holds all its values; otherwise as `Row`, and an instance of it to Python."""

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
    """Return the rows of a batch that `function` is called with, one after another."""
    return chain.from_iterable(_stretches(batch, _read_by(function)))


def _stretches(batch: Batch, read: set[str]) -> Iterator[Iterator[Row]]:
    """Yield the rows in stretches, each made for what the function did with those before."""
    columns = RowColumns(batch, read)
    names, rows = batch.schema.names, batch.num_rows
    stops = [stop for stop in _FIRST_ROWS if stop < rows]
    is_whole = False
    for start, stop in pairwise([0, *stops, rows]):
        is_whole = is_whole or (bool(names) and 2 * columns.copied >= start > 0)
        if is_whole:
            yield _whole_rows(names)(*(columns[name][start:stop] for name in names))
            continue
        # A copy asks for all columns, so those asked for say nothing once there is one.
        asked = read if columns.copied else read.union(columns)
        kept = tuple(name for name in names if name in asked and name[:1] != "_")
        values = (columns[name][start:stop] for name in kept)
        yield _rows_with(kept)(columns, range(start, stop), *values)


def _read_by(function: Callable[..., Any]) -> set[str]:
    """Return the columns that a function has read as attributes so far, to be added to."""
    try:
        return _READ_BY.setdefault(getattr(function, "__func__", function), set())
    except TypeError:  # it has no hash, or no room for a weak reference
        return set()


@functools.lru_cache(maxsize=256)
def _rows_with(names: tuple[str, ...]) -> Callable[..., Iterator[Row]]:
    """Return what makes rows with the values of these columns: columns, numbers, values → rows."""
    slots = [f"_{position}" for position in range(len(names))]
    looks = [f"    if name == name{slot}: return self.{slot}" for slot in slots[:_COMPARED_MAX]]
    body = _defined(
        ["def __getitem__(self, name):", *looks, "    return self._columns[name][self._row]"], names
    )
    body |= {"__slots__": tuple(slots), "__doc__": Row.__doc__, "__module__": __name__}
    body["__init__"] = object.__init__  # since Python calls this one without a frame
    # Behind properties, since a row is read-only, and of a kind that runs no Python.
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
    """Return what makes whole rows of the values of all columns."""
    body: dict[str, Any] = {"__slots__": (), "__doc__": Row.__doc__, "__module__": __name__}
    # What a dict can do and a row cannot, `pop` for one, is no attribute, unless a column has it.
    for name in dir(dict):
        if name[0] != "_" and not hasattr(Row, name):
            body[name] = property(_absent)
    for name in names:
        if name[:1] != "_" and not hasattr(Row, name):
            body[name] = property(operator.itemgetter(name))
    slots = [f"_{position}" for position in range(len(names))]
    items = ", ".join(f"name{slot}: {slot}" for slot in slots)
    # A dict from which nothing was removed is cloned by `{**row}`, and the clone of a row is, as
    # the row, an object that the garbage collector visits. Values that are inserted one by one, as
    # from a dict with a gap, make a dict that it leaves alone: half the time for a whole batch.
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
    raise AttributeError  # so that `__getattr__` is asked


def _class_of(base: type, body: dict[str, Any]) -> type:
    return types.new_class("Row", (base,), exec_body=lambda space: space.update(body))


def _made(lines: Sequence[str], names: Sequence[str], **known: Any) -> Callable[..., Iterator[Row]]:
    return cast("Callable[..., Iterator[Row]]", _defined(lines, names, **known)["rows"])


def _defined(lines: Sequence[str], names: Sequence[str], **known: Any) -> dict[str, Any]:
    """Return the functions that lines of Python define; they know column i's name as `name_i`.

    Only numbers vary in the lines. A loop over the columns would take twice as long for each row.
    """
    body: dict[str, Any] = {}
    known |= {f"name_{position}": name for position, name in enumerate(names)}
    exec("\n".join(lines), known, body)  # noqa: S102  # as said: nothing of the user's is in it
    return body


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
