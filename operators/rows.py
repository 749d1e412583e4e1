"""`Row`: one tuple as a plain Python function sees it; `RowFailure`: the one that it raised for."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, KeysView, Mapping
from typing import TYPE_CHECKING, Any

from ..configs.errors import InputError

if TYPE_CHECKING:
    from ..transport.wire.batch import Batch

__all__ = ["Row", "RowColumns", "RowFailure"]


class RowColumns(dict[str, list[Any]]):
    """The columns of a batch as lists of Python values, each made when first asked for."""

    __slots__ = ("_batch", "names")

    names: KeysView[str]  # of all columns, in order

    def __init__(self, batch: Batch) -> None:
        super().__init__()
        self._batch = batch
        self.names = dict.fromkeys(batch.schema.names).keys()

    def __missing__(self, name: str) -> list[Any]:
        try:
            values = self[name] = self._batch.column(name).to_pylist()
        except InputError:
            raise KeyError(_unknown(name, self.names)) from None
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
        try:
            return self._columns[name][self._row]
        except KeyError as error:
            raise AttributeError(error.args[0]) from None

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
