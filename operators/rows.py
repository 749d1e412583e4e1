"""`Row`: one row of a batch, as Python functions get it; `RowFailure`: an error at one row.

Creating a row takes longer than most functions need to process it, so a row only refers to its
batch and to a place in it. A column is converted to Python values when one of them is first read.
"""

from __future__ import annotations

import difflib
import functools
import types
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

from ..configs.errors import InputError, Interrupted, UsageError, WhaleError

if TYPE_CHECKING:
    from ..transport.wire.batch import Batch

__all__ = ["Row", "RowFailure", "fail_at", "fail_at_row", "results_of", "rows_of"]


class Row(Mapping[str, Any]):
    """One row: a read-only mapping of column name → Python value, None for null.

    `row["speed"]` and `row.speed` are the same; `{**row, "speed": 0}` copies and changes it. A
    column named like a method of mappings (`items`), or with two leading underscores, is only read
    as `row["items"]`. Only the columns that are read are converted to Python values.

    A row refers to its batch, and is no dict: keep `dict(row)`, which is also what is pickled.
    """

    # No class of rows has a `__getattr__`: Python would no longer specialize reading the slots.
    __slots__ = ("_batch", "_columns", "_number")

    _names: ClassVar[KeysView[str]]
    _batch: Batch
    _columns: dict[str, list[Any]]  # those of the batch that were converted
    _number: int

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def __getitem__(self, name: str) -> Any:
        try:
            return self._columns[name][self._number]
        except KeyError:
            pass
        return self._converted(name)[self._number]

    def _converted(self, name: str) -> list[Any]:
        if name not in self._names:
            raise KeyError(_unknown(name, self._names))
        try:
            values = self._columns[name] = self._batch.column(name).to_pylist()
        except InputError as error:
            msg = f"column {name!r}: {error}"
            raise InputError(msg) from error
        return values

    def keys(self) -> KeysView[str]:
        """Return the names of all columns, in order."""
        return self._names

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a column, or `default` if there is no such column."""
        return self[name] if name in self._names else default

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"Row({', '.join(f'{name}={value!r}' for name, value in self.items())})"

    def __reduce__(self) -> tuple[type[dict[str, Any]], tuple[dict[str, Any]]]:
        return dict, (dict(self),)


class RowFailure(Exception):  # noqa: N818 - it only transports the user's own error
    """A user's function raised for one row; `__cause__` is the user's exception.

    Attributes:
        row_index: the row's number in the batch; −1 if it was called for something else.
        preview: the row, or what it was called for, as a short line.
    """

    def __init__(self, row_index: int, preview: str) -> None:
        super().__init__(row_index, preview)
        self.row_index = row_index
        self.preview = preview

    def __str__(self) -> str:
        return f"row {self.row_index}: {self.preview}"

    @classmethod
    def at(cls, row_index: int, batch: Batch, error: BaseException) -> RowFailure:
        """Return the failure to raise from `error`, which a function raised for a row of a batch.

        If it read an attribute that is no column, the error then says which columns there are.
        """
        if isinstance(error, AttributeError) and isinstance(error.obj, Row) and error.name:
            error.args = (_unknown(error.name, error.obj.keys()),)
            error.name = None  # or Python would add a suggestion of its own
        return cls(row_index, batch.preview(row_index))


def fail_at_row(error: BaseException, row_index: int, batch: Batch) -> NoReturn:
    """Raise from `error`, which a method of a process raised for a row of a batch.

    Raises:
        UsageError: it is one of whale-ray's own: now it names the row.
        WhaleError: it is another one, or Interrupted: as it is.
        RowFailure: it is anything else.
    """
    _fail(error, RowFailure.at(row_index, batch, error))


def fail_at(error: BaseException, called_for: str) -> NoReturn:
    """Raise from `error` as `fail_at_row`, with what the method was called for in words."""
    _fail(error, RowFailure(-1, called_for))


def _fail(error: BaseException, failure: RowFailure) -> NoReturn:
    if isinstance(error, UsageError):
        msg = f"{error}; input: {failure.preview}"
        raise type(error)(msg) from error
    if isinstance(error, (WhaleError, Interrupted)):
        raise error
    raise failure from error


def rows_of(batch: Batch) -> Iterator[Row]:
    """Return an iterator over the rows of a batch."""
    make = _class_of_rows(batch.schema.names)
    columns: dict[str, list[Any]] = {}
    for number in range(batch.num_rows):
        row = make()
        row._batch = batch
        row._columns = columns
        row._number = number
        yield row


def results_of(function: Callable[[Row], Any], batch: Batch) -> list[Any]:
    """Return what a function returns for each row of a batch.

    Raises:
        RowFailure: the function raised.
    """
    results: list[Any] = []
    add = results.append
    make = _class_of_rows(batch.schema.names)
    columns: dict[str, list[Any]] = {}
    try:
        # As in `rows_of`, since resuming a generator takes a tenth of the time of a short function.
        for number in range(batch.num_rows):
            row = make()
            row._batch = batch
            row._columns = columns
            row._number = number
            add(function(row))
    except Interrupted:
        raise
    except BaseException as error:
        raise RowFailure.at(len(results), batch, error) from error
    return results


@functools.lru_cache(maxsize=256)
def _class_of_rows(names: tuple[str, ...]) -> type[Row]:
    """Return the class of the rows with these columns, which are its properties."""
    body: dict[str, Any] = {
        "__doc__": Row.__doc__,
        "__module__": __name__,
        "__slots__": (),
        "_names": dict.fromkeys(names).keys(),
    }
    for name in names:
        if not (hasattr(Row, name) or name.startswith("__") or name in body):
            body[name] = property(_reader(name))
    return cast("type[Row]", types.new_class("Row", (Row,), exec_body=lambda it: it.update(body)))


def _reader(name: str) -> Callable[[Row], Any]:
    def read(row: Row) -> Any:
        try:
            return row._columns[name][row._number]
        except KeyError:
            pass
        return row._converted(name)[row._number]

    return read


def _unknown(name: object, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names)}"
    return f"no column {name!r}; {hint}"
